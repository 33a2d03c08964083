"""Losses with a relation, and between two sets, against the loops of the class-id losses."""

import dataclasses
import inspect
import itertools
from collections.abc import Callable

import backend
import keras
import numpy as np
import pytest
import tiers
from loss_cases import NON_DEFAULT, each
from oracles import mean_loss, numeric_gradient
from relation_cases import CASES as RELATIONS
from relation_cases import TAGS

from keras_dml import losses, mining, relations

pytestmark = pytest.mark.any_backend

CASES = [
    case
    for case in NON_DEFAULT
    if "relation" in inspect.signature(type(losses.get(case.name))).parameters
    and case.numeric
    and not case.arguments.get("boundaries")
]
# The other losses have the mean over the anchors or pairs that count, so their values are scaled by
# the number of rows in the set.
OVER_ALL_ANCHORS = ("contrastive", "multi_similarity", "pairwise_sigmoid", "ice", "ranked_list")
# All losses get their two sets in one way.
FEW = ("contrastive", "snca", "triplet", "smooth_ap", "nt_xent", "circle")
RNG = np.random.default_rng(5)
Z = RNG.normal(size=(7, 4))


@dataclasses.dataclass(frozen=True, eq=False)
class Label:
    """The label of a candidate, "equal" to its anchors and "unequal" to anchors of others.

    With such labels, the loops over class ids of `oracles` become a relation's loops.

    The oracles compare `label of candidate == label of anchor`. In two sets, only queries are
    anchors, and only the other set's rows are candidates.
    """

    value: object
    is_positive: Callable
    is_negative: Callable
    of_set: str | None = None

    def __eq__(self, other):
        return self._may_pair(other) and bool(self.is_positive(self.value, other.value))

    def __ne__(self, other):
        return self._may_pair(other) and bool(self.is_negative(self.value, other.value))

    def _may_pair(self, anchor):
        return (self.of_set, anchor.of_set) in ((None, None), ("candidates", "queries"))


def label_objects(rows, is_positive, is_negative, of_set=None):
    """Return an object array of labels, which can be indexed as class ids."""
    labels = np.empty(len(rows), object)
    for i, row in enumerate(rows):
        labels[i] = Label(row, is_positive, is_negative, of_set)
    return labels


def make(case, **more):
    return type(losses.get(case.name))(**case.arguments, dtype="float64", **more)


def each_with_a_relation(cases):
    """`pytest.mark.parametrize` over the cases, the relations in turn.

    All losses get the pairs of a relation in one way, so on JAX and PyTorch, each relation is
    compared once.
    """
    pairs = list(zip(cases, itertools.cycle(["tags", "half", "levels", "graded"])))
    sooner = tiers.few_elsewhere(pairs, lambda pair: pair in pairs[:4])
    return tiers.parametrize(("case", "name"), pairs, sooner, ids=str)


@each_with_a_relation(CASES)
def test_a_relation_matches_the_loops(case, name):
    relation, labels, *kinds = RELATIONS[name]
    value, gradient = backend.value_and_gradient(make(case, relation=relation), labels, Z)
    objects = label_objects(labels, *kinds)
    assert value == pytest.approx(mean_loss(case.oracle, objects, Z, **case.arguments), abs=1e-9)
    expected = numeric_gradient(case.oracle, objects, Z, **case.arguments)
    np.testing.assert_allclose(gradient, expected, atol=2e-5)


TWO_SETS = [case for case in CASES if not case.arguments.get("query_in_database")]


@each_with_a_relation(TWO_SETS)
def test_two_sets_match_the_loops(case, name):
    relation, labels, *kinds = RELATIONS[name]
    of_queries, of_candidates = labels[[0, 1, 3, 2, 6]], labels[[0, 1, 3, 4]]
    queries, candidates = Z[:5], Z[3:] + 0.5
    value = make(case, relation=relation).between(of_queries, queries, of_candidates, candidates)
    # The loops over one set with both.
    both = np.concatenate([queries, candidates])
    objects = label_objects(of_queries, *kinds, of_set="queries")
    others = label_objects(of_candidates, *kinds, of_set="candidates")
    total = np.sum(case.oracle(np.concatenate([objects, others]), both, **case.arguments))
    expected = total / len(queries if case.name in OVER_ALL_ANCHORS else both)
    assert float(value) == pytest.approx(expected, abs=1e-9)


@each(CASES, FEW, few=lambda case: case.name in ("contrastive", "smooth_ap"))
def test_gradients_reach_both_sets(case):
    ids = np.array([0, 0, 1, 1, 2, 2, 2])
    loss = make(case)

    def value(labels, candidates):
        return loss.between(ids[:4], Z[:4], labels, candidates)

    _, gradient = backend.value_and_gradient(value, ids, Z + 0.3)
    direction = RNG.normal(size=Z.shape)
    ahead, behind = (float(value(ids, Z + 0.3 + step * direction)) for step in (1e-6, -1e-6))
    assert np.sum(gradient * direction) == pytest.approx((ahead - behind) / 2e-6, abs=2e-5)


def test_sample_weights_weight_the_queries():
    loss = losses.NTXentLoss(reduction=None, dtype="float64")
    sets, weights = (np.arange(3), Z[:3], np.arange(3), Z[3:6]), np.array([0.0, 2.0, 1.0])
    values = keras.ops.convert_to_numpy(loss.between(*sets))
    weighted = keras.ops.convert_to_numpy(loss.between(*sets, sample_weight=weights))
    np.testing.assert_allclose(weighted, weights * values)


def test_mining_sees_the_pairs_of_the_relation():
    relation = relations.SharesLabel()
    hard = losses.ContrastiveLoss(relation=relation, mining=mining.Hard(), dtype="float64")
    positive, negative = (np.array(mask) for mask in relation(TAGS, TAGS))
    positive &= ~np.eye(7, dtype=bool)
    distances = np.linalg.norm(Z[:, None] - Z, axis=-1)
    pulled = np.where(positive, distances, 0).max(axis=1) ** 2
    pushed = np.maximum(1 - np.where(negative, distances, 9).min(axis=1), 0) ** 2
    assert float(hard(TAGS, Z)) == pytest.approx(np.mean(pulled + pushed))


def test_a_graph_gives_nan_for_a_row_without_a_tag():
    loss = losses.SupConLoss(relation=relations.SharesLabel())
    tags = TAGS.copy()
    tags[2] = 0
    with pytest.raises(ValueError, match="row 2"):
        loss(tags, Z)
    if keras.backend.backend() == "torch":
        return  # PyTorch has no graphs
    run = backend.compiled(lambda labels: loss(labels, Z))
    assert np.isnan(float(run(keras.ops.convert_to_tensor(tags))))
    assert np.isfinite(float(run(keras.ops.convert_to_tensor(TAGS))))


def test_sets_and_boundaries_that_cannot_be_compared():
    with pytest.raises(TypeError, match="loss must be .* anchors only with candidates"):
        losses.LiftedStructureLoss().between([0], Z[:1], [0], Z[:1])
    with pytest.raises(ValueError, match="boundaries must be 0 or 1 with a relation"):
        losses.MarginLoss(boundaries=3, relation=relations.SharesLabel())
    with pytest.raises(ValueError, match="queries and candidates must .* same length.* 3 and 2"):
        losses.ContrastiveLoss().between([0], np.ones([1, 3]), [0], np.ones([1, 2]))
