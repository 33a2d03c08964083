"""Copies of objects with all their arguments from their configurations."""

import json

import keras
import numpy as np
import pytest
import tiers
from batches import batch
from relation_cases import CASES as RELATIONS
from relation_cases import TAGS

from keras_dml import addons, layers, losses, metrics, mining, models, optimizers, relations

pytestmark = pytest.mark.any_backend

IDS, Z = batch()
BATCH = IDS, Z / np.abs(Z).max()  # also valid cosines for the losses on proxies
ROWS = np.random.default_rng(5).normal(size=(7, 4))
MATRYOSHKA = losses.MatryoshkaLoss(
    losses.TripletLoss(0.3, triplets="hard"), (2, 6), weights=(0.5, 1.0), name="mine"
)
NETWORK = models.StatisticsNetwork(
    hidden=3, depth=0, slope=0.2, residual=False, zero_at=0.5, seed=2
)


@keras.saving.register_keras_serializable("tests")
def similar_only(similarities, positive, negative):
    return similarities < 0.4, similarities > 0.0


@keras.saving.register_keras_serializable("tests")
def cosine(z):
    return keras.ops.matmul(z, keras.ops.transpose(z))


# The object, and arguments for a call whose result the copy must repeat.
OBJECTS = [
    (MATRYOSHKA, BATCH),
    (losses.PairwiseCrossEntropyLoss(0.2, classifier=keras.layers.Dense(5, name="a")), None),
    *(
        (losses.TripletLoss(mining=strategy), BATCH)
        for strategy in (
            mining.MultiSimilarity(0.2),
            [mining.EasyPositive(), mining.Hard()],
            similar_only,
        )
    ),
    *(
        (losses.SupConLoss(0.3, relation=relation), (labels, ROWS))
        for relation, labels, *_ in list(RELATIONS.values())[:-1]
    ),
    (addons.ContrastiveLoss(0.3, reduction="sum", name="mine"), None),
    (addons.TripletHardLoss(0.3, soft=True, distance_metric="squared-L2"), BATCH),
    (addons.TripletHardLoss(distance_metric=cosine), BATCH),
    (addons.LiftedStructLoss(0.3), BATCH),
    (addons.NpairsMultilabelLoss(name="mine"), None),
    (NETWORK, None),
    (layers.GeneralizedMeanPooling(p=2.5, name="gem"), (np.ones((2, 3, 3, 4), "float32"),)),
    (metrics.PositivesPerAnchor(relation=relations.SharesLabel()), (TAGS, ROWS)),
    *(
        (
            make(
                optimizers.WarmCosine(0.1, 50, 5),
                coupled_weight_decay=1e-4,
                learning_rate_multipliers={"dense/kernel": 0.1},
            ),
            None,
        )
        for make in optimizers.OPTIMIZERS.values()
    ),
    (optimizers.CoupledSGD(0.1, momentum=0.9, velocity="torch"), None),
]


@tiers.thorough_elsewhere
@pytest.mark.parametrize(("thing", "given"), OBJECTS, ids=lambda each: type(each).__name__)
def test_a_copy_from_the_configuration_is_the_same(thing, given):
    saved = keras.saving.serialize_keras_object(thing)
    copy = keras.saving.deserialize_keras_object(json.loads(json.dumps(saved)))
    assert type(copy) is type(thing)
    assert copy.get_config() == thing.get_config()
    if given is not None:
        for ours, theirs in zip(*(keras.tree.flatten(each(*given)) for each in (thing, copy))):
            np.testing.assert_array_equal(*map(keras.ops.convert_to_numpy, (ours, theirs)))


@pytest.mark.parametrize("name", ["ContrastiveLoss", "NpairsMultilabelLoss"])
def test_addons_are_saved_under_their_own_package(name):
    saved = keras.saving.serialize_keras_object(getattr(addons, name)())
    assert saved["registered_name"] == f"Addons>{name}"


def test_a_loss_without_a_relation_saves_none():
    assert "relation" not in losses.SupConLoss().get_config()
