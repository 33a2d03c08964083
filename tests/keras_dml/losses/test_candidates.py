"""Candidates outside the batch: losses that no configuration describes, scales, dtypes, and ICE."""

import backend
import keras
import numpy as np
import pytest
import tiers
from batches import functional
from oracles import unit
from scipy.special import logsumexp, softmax

from keras_dml import losses, mining, models, relations

pytestmark = pytest.mark.any_backend

RNG = np.random.default_rng(2)
QUERIES, ITEMS = RNG.normal(size=(6, 4)), RNG.normal(size=(9, 4))
OF_QUERIES, OF_ITEMS = np.array([0, 0, 1, 1, 2, 2]), np.array([0, 1, 2, 0, 1, 2, 0, 1, 3])
BOTH = OF_QUERIES, QUERIES, OF_ITEMS, ITEMS
# In eager mode, JAX would compile each operation separately.
QUICKER = {"run_eagerly": keras.backend.backend() != "jax"}


def parity(anchors, candidates):
    same = keras.ops.equal(anchors[:, None] % 2, candidates[None, :] % 2)
    return same, keras.ops.logical_not(same)


def near(similarities, positive, negative):
    return positive, keras.ops.logical_and(negative, similarities > -0.5)


class Unregistered(losses.ContrastiveLoss):
    """A loss that its configuration does not describe, because it lacks `factor`."""

    def __init__(self, factor, **options):
        super().__init__(**options)
        self.factors = [factor]

    def compute_pair_loss(self, pairs):
        return self.factors[0] * super().compute_pair_loss(pairs)


def contrastive(positive, negative, queries=QUERIES, items=ITEMS):
    """Return the mean over the queries of Σ_P D² + Σ_N max(0, 1 − D)², by loops."""
    total = 0.0
    for i, query in enumerate(queries):
        for j, item in enumerate(items):
            distance = np.linalg.norm(query - item)
            total += distance**2 if positive(i, j) else 0.0
            total += max(0.0, 1.0 - distance) ** 2 if negative(i, j) else 0.0
    return total / len(queries)


def same(i, j):
    return OF_QUERIES[i] == OF_ITEMS[j]


def differ(i, j):
    return not same(i, j)


def of_one_parity(i, j):
    return OF_QUERIES[i] % 2 == OF_ITEMS[j] % 2


def cosine(query, item):
    return query @ item / np.linalg.norm(query) / np.linalg.norm(item)


def is_near(i, j):
    return differ(i, j) and 1 - np.sum((QUERIES[i] - ITEMS[j]) ** 2) / 2 > -0.5


WITHOUT_CONFIGURATION = {
    "relation": (
        lambda: losses.ContrastiveLoss(relation=parity, dtype="float64"),
        lambda: contrastive(of_one_parity, lambda i, j: not of_one_parity(i, j)),
    ),
    "graded": (
        lambda: losses.ContrastiveLoss(
            relation=relations.Graded(
                0.5,
                0.5,
                similarity=lambda a, b: keras.ops.cast(a[:, None] == b[None, :], "float32"),
            ),
            dtype="float64",
        ),
        lambda: contrastive(same, differ),
    ),
    "mining": (
        lambda: losses.ContrastiveLoss(mining=near, dtype="float64"),
        lambda: contrastive(same, is_near),
    ),
    "unregistered": (
        lambda: Unregistered(3.0, dtype="float64"),
        lambda: 3 * contrastive(same, differ),
    ),
}


@tiers.parametrize(
    "name",
    WITHOUT_CONFIGURATION,
    tiers.few_elsewhere(WITHOUT_CONFIGURATION, lambda name: name in ("graded", "mining")),
)
def test_losses_without_a_configuration_compare_two_sets(name):
    make, expected = WITHOUT_CONFIGURATION[name]
    loss = make()
    assert float(loss.between(*BOTH)) == pytest.approx(expected())
    prefixes = losses.MatryoshkaLoss(loss, (4,), weights=[2.0])
    assert float(prefixes.between(*BOTH)) == pytest.approx(2 * expected())
    encoder = functional((4,), keras.layers.Dense(4))
    for model in (models.DualEncoder(encoder, encoder), encoder):
        memory = models.CrossBatchMemory(model, 12, start_step=0)
        memory.compile("sgd", loss, **QUICKER)
        x = [QUERIES, QUERIES[::-1]] if model is not encoder else QUERIES
        assert np.isfinite(float(memory.train_on_batch(x, OF_QUERIES)))


def test_prefixes_of_two_sets_are_the_sum_over_prefixes():
    loss = losses.NTXentLoss(0.3, dtype="float64")
    prefixes = losses.MatryoshkaLoss(loss, (2, 4), weights=[0.5, 2.0])
    short = loss.between(OF_QUERIES, QUERIES[:, :2], OF_ITEMS, ITEMS[:, :2], scale=2.0)
    expected = 0.5 * float(short) + 2.0 * float(loss.between(*BOTH, scale=2.0))
    assert float(prefixes.between(*BOTH, scale=2.0)) == pytest.approx(expected)


def test_two_sets_are_compared_without_the_fused_ranks(monkeypatch):
    from keras_dml.losses import smooth_ap

    loss = losses.SmoothAPLoss(dtype="float64")
    expected = float(loss.between(*BOTH))
    loss.fused = False
    monkeypatch.setattr(smooth_ap.fused, "smooth_ranks", None)
    assert float(loss.between(*BOTH)) == pytest.approx(expected)


class WithoutCandidates(losses.ContrastiveLoss):
    def compute_loss(self, class_ids, embeddings):
        return 2 * super().compute_loss(class_ids, embeddings)


class WithCandidates(losses.ContrastiveLoss):
    def call(self, y_true, y_pred, *candidates):
        return 2 * super().call(y_true, y_pred, *candidates)

    def compute_parts(self, class_ids, embeddings, candidates=None):
        return super().compute_parts(class_ids, embeddings, candidates)


def test_methods_of_a_subclass_must_take_candidates():
    loss = WithoutCandidates(dtype="float64")
    doubled = 2 * float(losses.ContrastiveLoss(dtype="float64")(OF_QUERIES, QUERIES))
    assert float(loss(OF_QUERIES, QUERIES)) == pytest.approx(doubled)
    with pytest.raises(TypeError, match="compute_loss of WithoutCandidates must take .*candidates"):
        loss.between(*BOTH)
    found = float(WithCandidates(dtype="float64").between(*BOTH))
    assert found == pytest.approx(2 * contrastive(same, differ))


STRATEGIES = {
    **{name: cls() for name, cls in mining.STRATEGIES.items()},
    "function": lambda s, positive, negative: (s < 0.6, s > -0.3),
}
# Losses, their arguments with and without a scale of 10, and the factor of the values.
SCALED = {
    "nt_xent": (losses.NTXentLoss, {"temperature": 1.0}, {"temperature": 0.1}, 1),
    "supcon": (losses.SupConLoss, {"temperature": 1.0}, {"temperature": 0.1}, 1),
    "snca": (losses.SNCALoss, {"temperature": 1.0}, {"temperature": 0.1}, 1),
    "smooth_ap": (losses.SmoothAPLoss, {"temperature": 1.0}, {"temperature": 0.1}, 1),
    "recall_at_k": (
        losses.RecallAtKLoss, {"rank_temperature": 1.0}, {"rank_temperature": 0.1}, 1,
    ),
    "ice": (
        losses.InstanceCrossEntropyLoss,
        {"scale": 1.0, "reweight": False},
        {"scale": 10.0, "reweight": False},
        1,
    ),
    "binomial_deviance": (
        losses.BinomialDevianceLoss, {"scale": 0.2, "base": 5.0}, {"scale": 2.0, "base": 0.5}, 1,
    ),
    "multi_similarity": (
        losses.MultiSimilarityLoss,
        {"alpha": 0.2, "beta": 5.0, "base": 5.0},
        {"alpha": 2.0, "beta": 50.0, "base": 0.5},
        10,
    ),
    "multi_similarity with epsilon": (
        losses.MultiSimilarityLoss,
        {"alpha": 0.2, "beta": 5.0, "base": 5.0, "epsilon": 0.3},
        {"alpha": 2.0, "beta": 50.0, "base": 0.5, "epsilon": 0.3},
        10,
    ),
}  # fmt: skip


@tiers.parametrize("strategy", STRATEGIES, ["semi_hard", "function"], pytest.mark.slow)
def test_mining_sees_similarities_without_the_scale(strategy):
    options = {"mining": STRATEGIES[strategy], "dtype": "float64"}
    for name, (loss, scaled, expected, factor) in SCALED.items():
        value = float(loss(**scaled, **options).between(*BOTH, scale=10.0))
        wanted = factor * float(loss(**expected, **options).between(*BOTH))
        assert value == pytest.approx(wanted), name


OF_SIMILARITIES = [
    name
    for name, cls in losses.LOSSES.items()
    if cls.takes_memory
    and name not in ("contrastive", "triplet", "margin", "fastap", "ranked_list")
]


@pytest.mark.parametrize("name", OF_SIMILARITIES)
def test_every_loss_of_similarities_mines_the_same_pairs_at_any_scale(name):
    seen = []

    def strategy(similarities, positive, negative):
        seen.append(keras.ops.convert_to_numpy(similarities))
        return similarities > 0.1, similarities > 0.2

    loss = losses.get(name, mining=strategy)
    for scale in (None, 10.0):
        loss.between(*BOTH, scale=scale)
    np.testing.assert_array_equal(seen[0], seen[1])


@pytest.mark.parametrize("name", ["contrastive", "triplet", "margin", "fastap", "ranked_list"])
def test_a_loss_of_distances_has_no_scale(name):
    loss = losses.get(name)
    with pytest.raises(ValueError, match="scale must be None for a loss of distances"):
        loss.between(*BOTH, scale=2.0)
    encoder = functional((4,), keras.layers.Dense(4))
    model = models.DualEncoder(encoder, encoder, scale=2.0)
    model.compile("sgd", loss)
    with pytest.raises(ValueError, match="scale must be None for a loss of distances"):
        model.train_on_batch([QUERIES, QUERIES], OF_QUERIES)


VECTORS, WHOLE = np.array([[0.6, 0.8], [0.9, 0.1], [0.2, 0.9]]), np.array([[0, 1], [1, 0]])


def of_dtypes():
    """Return a loss, labels of queries and of items, and the loops over them."""
    graded = relations.Graded(positive_above=0.7, negative_below=0.3)
    tags = relations.SharesLabel(encoding="ids")
    ids = np.array([[300], [44], [2]]), np.array([[44], [2]], "int8")
    return {
        "graded": (
            graded, VECTORS.astype("float32"), WHOLE,
            lambda a, b: cosine(a, b) > 0.7, lambda a, b: cosine(a, b) < 0.3,
        ),
        "tags": (tags, *ids, lambda a, b: a[0] == b[0], lambda a, b: a[0] != b[0]),
        "classes": (
            None, ids[0][:, 0], ids[1][:, 0], lambda a, b: a == b, lambda a, b: a != b,
        ),
    }  # fmt: skip


@pytest.mark.parametrize("case", of_dtypes())
def test_labels_of_two_dtypes_are_compared_without_loss(case):
    relation, of_queries, of_items, is_positive, is_negative = of_dtypes()[case]
    loss = losses.ContrastiveLoss(relation=relation, dtype="float64")
    queries, items = QUERIES[:3], ITEMS[:2]
    a, b = of_queries.astype("float64"), of_items.astype("float64")
    there = contrastive(
        lambda i, j: is_positive(a[i], b[j]), lambda i, j: is_negative(a[i], b[j]), queries, items
    )
    back = contrastive(
        lambda i, j: is_positive(b[i], a[j]), lambda i, j: is_negative(b[i], a[j]), items, queries
    )
    assert float(loss.between(of_queries, queries, of_items, items)) == pytest.approx(there)
    assert float(loss.between(of_items, items, of_queries, queries)) == pytest.approx(back)
    encoder = functional((4,), keras.layers.Dense(4, kernel_initializer="identity"))
    for memory_size in (0, 5):
        model = models.DualEncoder(encoder, encoder, scale=None)
        rows = np.shape(of_items)[1:]
        if memory_size:
            model = models.CrossBatchMemory(model, memory_size, start_step=0, label_shape=rows)
        loss = losses.ContrastiveLoss(relation=relation)
        model.compile(keras.optimizers.SGD(0.0), loss, **QUICKER)
        x = [queries.astype("float32"), items.astype("float32")]
        found = float(model.train_on_batch(x, (of_queries, of_items)))
        # The memory contains the items of the batch.
        expected = (there + back) / 2 + (there if memory_size else 0)
        assert found == pytest.approx(expected, rel=1e-5)


def ice_gradient(queries, items, scale=16.0):
    """Return the gradient of the items by the formula of the weights, Eq. 11-15, by loops."""
    gradient = np.zeros_like(items)
    for i, query in enumerate(queries):
        positive = [j for j in range(len(items)) if same(i, j)]
        negative = [j for j in range(len(items)) if differ(i, j)]
        if not positive or not negative:
            continue
        logits = scale * items @ query
        pushed = logsumexp(logits[negative])
        missing = [pushed - np.logaddexp(logits[j], pushed) for j in positive]  # log(1 − p)
        for j, weight in zip(positive, softmax(missing)):
            gradient[j] -= weight * query / 2 / len(queries)
        for j, weight in zip(negative, softmax(logits[negative])):
            gradient[j] += weight * query / 2 / len(queries)
    return gradient


def test_ice_moves_the_candidates_of_two_sets():
    queries, items = unit(QUERIES), unit(ITEMS)
    loss = losses.InstanceCrossEntropyLoss(scale=16.0, dtype="float64")
    value, gradient = backend.value_and_gradient(
        lambda labels, z: loss.between(OF_QUERIES, queries, labels, z), OF_ITEMS, items
    )
    logits = 16.0 * queries @ items.T
    terms = [
        np.logaddexp(0, logsumexp(logits[i][OF_QUERIES[i] != OF_ITEMS]) - logits[i, j])
        for i in range(len(queries))
        for j in np.flatnonzero(OF_QUERIES[i] == OF_ITEMS)
    ]
    assert value == pytest.approx(np.sum(terms) / len(queries))
    # The gradient at an embedding of length 1 is the part across it.
    along = ice_gradient(queries, items)
    across = along - np.sum(along * items, axis=1, keepdims=True) * items
    np.testing.assert_allclose(gradient, across, atol=1e-9)
    _, none = backend.value_and_gradient(
        lambda labels, z: loss.between(labels, z, OF_ITEMS, items), OF_QUERIES, queries
    )
    np.testing.assert_array_equal(none, 0.0)


def test_ice_trains_both_encoders_only_in_both_directions():
    first, second = (functional((4,), keras.layers.Dense(4)) for _ in range(2))
    loss = losses.InstanceCrossEntropyLoss(scale=16.0)
    with pytest.raises(TypeError, match="anchor_gradient must be True"):
        models.DualEncoder(first, second, symmetric=False).compile("sgd", loss)
    model = models.DualEncoder(first, second)
    model.compile(keras.optimizers.SGD(0.1), loss, **QUICKER)
    before = [encoder.get_weights()[0] for encoder in (first, second)]
    model.train_on_batch([QUERIES, QUERIES], OF_QUERIES)
    for encoder, weights in zip((first, second), before):
        assert np.abs(encoder.get_weights()[0] - weights).max() > 1e-5


@pytest.mark.parametrize("weights", [RNG.uniform(0, 2, 6), np.array(2.0), np.zeros(6), None])
def test_the_mean_with_sample_weights_is_divided_by_their_sum(weights):
    loss = losses.SupConLoss(dtype="float64", reduction="mean_with_sample_weight")
    values = losses.SupConLoss(dtype="float64", reduction=None)(OF_QUERIES, QUERIES)
    values = keras.ops.convert_to_numpy(values)
    w = np.broadcast_to(1.0 if weights is None else weights, 6)
    expected = np.sum(w * values) / np.sum(w) if w.any() else 0.0
    assert float(loss(OF_QUERIES, QUERIES, weights)) == pytest.approx(expected)


def test_a_scale_counts_for_candidates_that_are_the_queries():
    class Similarity(losses.PairLoss):
        normalize = False

        def compute_pair_parts(self, pairs):
            sums = keras.ops.sum(pairs.similarities(), axis=-1)
            return sums, keras.ops.zeros_like(sums)

    z, labels = keras.ops.convert_to_tensor(np.eye(3, dtype="float32")), np.arange(3)
    assert float(Similarity().between(labels, z, labels, z, scale=5.0)) == 5.0
