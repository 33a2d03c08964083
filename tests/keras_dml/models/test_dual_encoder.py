"""Two encoders: losses between their sets, chunks, memory, labels, and saving."""

import keras
import numpy as np
import pytest
import tiers
from batches import functional
from oracles import unit
from processes import difference
from scipy.special import log_softmax

from keras_dml import losses, models, relations

pytestmark = pytest.mark.any_backend

RNG = np.random.default_rng(0)
N = 12
LATENT = RNG.normal(size=(N, 3))
QUERIES = (LATENT @ RNG.normal(size=(3, 6))).astype("float32")
CANDIDATES = (LATENT @ RNG.normal(size=(3, 5))).astype("float32")
IDS = np.arange(N) // 2
# In eager mode, JAX would compile each operation separately.
QUICKER = {"run_eagerly": keras.backend.backend() != "jax"}


def encoder(width, seed, **dense):
    keras.utils.set_random_seed(seed)
    hidden = keras.layers.Dense(8, activation="tanh", **dense)
    return functional((width,), hidden, keras.layers.Dense(4))


def dual(**how):
    return models.DualEncoder(encoder(6, 1), encoder(5, 2), **how)


def fitted(model, y=None, loss=None, steps=2, x=(QUERIES, CANDIDATES)):
    loss = loss or losses.NTXentLoss(temperature=0.2)
    model.compile(keras.optimizers.SGD(0.05), loss, **QUICKER)
    batches = ((x,) if y is None else (x, y) for _ in range(steps))
    history = model.fit(batches, steps_per_epoch=steps, shuffle=False, verbose=0).history
    return history["loss"][0]


def encoded(model, candidates=CANDIDATES):
    return model.encode_queries(QUERIES), model.encode_candidates(candidates)


def clip_loss(queries, candidates, temperature=0.2, symmetric=True):
    logits = unit(queries) @ unit(candidates).T / temperature
    costs = [-np.diag(log_softmax(each, axis=1)).mean() for each in (logits, logits.T)]
    return np.mean(costs) if symmetric else costs[0]


@pytest.mark.parametrize("symmetric", [True, False])
def test_nt_xent_without_labels_is_the_loss_of_clip(symmetric):
    model = dual(symmetric=symmetric)
    expected = clip_loss(*encoded(model), symmetric=symmetric)
    assert fitted(model, steps=1) == pytest.approx(expected, rel=1e-5)


def test_a_learned_scale_multiplies_the_similarities_and_stays_below_100():
    model = dual(scale=5.0)
    expected = clip_loss(*encoded(model))
    found = fitted(model, steps=1, loss=losses.NTXentLoss(temperature=1.0))
    assert found == pytest.approx(expected, rel=1e-5)
    assert float(model.factor()) != pytest.approx(5.0, abs=1e-6)
    model = dual(scale=99.9)
    model.compile(keras.optimizers.SGD(1e4), losses.NTXentLoss(temperature=1.0), **QUICKER)
    model.fit([QUERIES, QUERIES[:, :5]], epochs=2, verbose=0)
    assert float(model.factor()) <= 100.001


def sigmoid_loss(queries, candidates, t, b):
    """Equation 1 of Zhai et al. 2023, as two loops, and its derivatives by log t and b."""
    value = slope_of_t = slope_of_b = 0.0
    for i, query in enumerate(unit(queries)):
        for j, candidate in enumerate(unit(candidates)):
            z = 1 if i == j else -1
            cosine = float(query @ candidate)
            error = 1 / (1 + np.exp(z * (t * cosine + b)))  # 1 − σ(z logit)
            value -= np.log(1 - error) / len(queries)
            slope_of_t -= z * error * t * cosine / len(queries)
            slope_of_b -= z * error / len(queries)
    return value, slope_of_t, slope_of_b


@pytest.mark.parametrize("symmetric", [True, False])
def test_a_learned_scale_and_bias_give_the_loss_of_siglip_and_its_gradient(symmetric):
    model, rate = dual(scale=10.0, bias=-10.0, symmetric=symmetric), 0.05
    assert float(model.factor()) == pytest.approx(10.0, rel=1e-6)
    assert float(model.offset()) == -10.0
    value, slope_of_t, slope_of_b = sigmoid_loss(*encoded(model), 10.0, -10.0)
    loss = losses.PairwiseSigmoidLoss(scale=1.0, bias=0.0)
    assert fitted(model, steps=1, loss=loss) == pytest.approx(value, rel=1e-5)
    moved = np.log(float(model.factor())) - np.log(10.0)
    assert moved == pytest.approx(-rate * slope_of_t, rel=1e-3)
    assert float(model.offset()) + 10.0 == pytest.approx(-rate * slope_of_b, rel=1e-3)


def test_a_bias_without_a_scale_is_added_before_the_factor_of_the_loss():
    model = dual(bias=-3.0)
    value, *_ = sigmoid_loss(*encoded(model), 7.0, 7.0 * -3.0 + 18.0)
    loss = losses.PairwiseSigmoidLoss(scale=7.0, bias=18.0)
    assert fitted(model, steps=1, loss=loss) == pytest.approx(value, rel=1e-5)
    assert model.factor() is None and dual().offset() is None


def test_a_configuration_from_before_the_bias():
    config = dual(scale=2.0).get_config()
    assert config.pop("bias") is None
    again = models.DualEncoder.from_config(keras.saving.serialize_keras_object(config))
    assert again.offset() is None and float(again.factor()) == pytest.approx(2.0)


def test_with_labels_another_photograph_of_the_product_is_no_negative():
    model = dual()
    queries, candidates = encoded(model)
    loss = losses.NTXentLoss(temperature=0.2)
    there = loss.between(IDS, queries, IDS, candidates)
    back = loss.between(IDS, candidates, IDS, queries)
    assert fitted(model, IDS, steps=1) == pytest.approx(float(there + back) / 2, rel=1e-5)


def test_candidates_have_their_own_labels_and_number():
    more = np.concatenate([CANDIDATES, CANDIDATES[:4] + 1])  # hard negatives
    labels = (np.arange(N), np.concatenate([np.arange(N), np.full(4, -1)]))
    model = dual(symmetric=False)
    queries, candidates = encoded(model, more)
    loss = losses.NTXentLoss(temperature=0.2)
    expected = float(loss.between(labels[0], queries, labels[1], candidates))
    assert fitted(model, labels, steps=1, x=(QUERIES, more)) == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize(
    ("loss", "labels"),
    [(losses.NTXentLoss(0.2), None), (losses.PairwiseSigmoidLoss(), IDS)],
    ids=["rows", "ids"],
)
def test_chunks_give_the_weights_of_the_whole_batch(loss, labels):
    whole, chunked = dual(scale=3.0, bias=-1.0), dual(scale=3.0, bias=-1.0)
    first = fitted(whole, labels, loss)
    second = fitted(models.CachedGradients(chunked, chunk_size=5), labels, loss)
    assert second == pytest.approx(first, rel=1e-5)
    assert difference(whole.get_weights(), chunked.get_weights()) < 1e-5


def test_regularizers_count_once():
    l2 = keras.regularizers.L2(0.5)
    model = models.DualEncoder(encoder(6, 1, kernel_regularizer=l2), encoder(5, 2))
    penalty = 0.5 * float(np.sum(model.query_encoder.get_weights()[0] ** 2))
    plain = fitted(dual(), steps=1)
    assert fitted(model, steps=1) == pytest.approx(plain + penalty, rel=1e-5)


@tiers.slow_on_tensorflow
@pytest.mark.parametrize("same", [True, False])
def test_saved_and_loaded(same, tmp_path):
    shared = encoder(6, 1)
    other = shared if same else encoder(6, 2)
    model = models.DualEncoder(shared, other, scale=2.0, bias=-2.0)
    fitted(model, x=(QUERIES, QUERIES + 0.1))
    model.save(tmp_path / "dual.keras")
    again = keras.saving.load_model(tmp_path / "dual.keras")
    assert (again.query_encoder is again.candidate_encoder) == same
    np.testing.assert_allclose(again.encode_queries(QUERIES), model.encode_queries(QUERIES))
    np.testing.assert_allclose(float(again.factor()), float(model.factor()))
    np.testing.assert_allclose(float(again.offset()), float(model.offset()))
    assert again.bias == -2.0
    assert again.optimizer is not None and again.loss.temperature == 0.2


MISTAKES = {
    "lengths": (
        lambda: models.DualEncoder(encoder(6, 1), functional((5,), keras.layers.Dense(3))),
        "same length.*4 and 3",
    ),
    "not a model": (lambda: models.DualEncoder(encoder(6, 1), "resnet50"), "candidate_encoder"),
    "scale": (lambda: dual(scale=200.0), "scale must be at most 100"),
    "bias": (lambda: dual(bias=float("nan")), "bias must be"),
    "bias of distances": (
        lambda: fitted(dual(bias=1.0), loss=losses.TripletLoss()), "bias must be None for a loss",
    ),
    "loss by name": (lambda: dual().compile("adam", "nt_xent"), "loss must be a loss object"),
    "loss of classes": (
        lambda: dual().compile("adam", losses.CrossEntropyLoss()), "anchors only with candidates",
    ),
    "metrics": (
        lambda: dual().compile("adam", losses.NTXentLoss(), metrics=["accuracy"]), "metrics must",
    ),
    "rows": (
        lambda: fitted(dual(), x=(QUERIES, CANDIDATES[:5])), "same number of rows.*12 and 5",
    ),
    "three label sets": (lambda: fitted(dual(), (IDS, IDS, IDS)), "tuple of 3"),
}  # fmt: skip


@pytest.mark.parametrize("case", MISTAKES)
def test_mistakes_raise_an_error(case):
    make, message = MISTAKES[case]
    with pytest.raises(ValueError, match=message):
        make()


def test_a_memory_stores_candidates_of_earlier_batches():
    """Two steps without learning: the second compares the queries with both batches' candidates."""
    model = dual(symmetric=False, scale=3.0)
    queries, candidates = encoded(model)
    memory = models.CrossBatchMemory(model, memory_size=2 * N, start_step=0)
    loss = losses.NTXentLoss(temperature=1.0)
    memory.compile(keras.optimizers.SGD(0.0), loss, **QUICKER)
    shifted = CANDIDATES[::-1].copy()
    found = []
    for each in (CANDIDATES, shifted):
        memory.reset_metrics()
        found.append(float(memory.train_on_batch([QUERIES, each])))
    of_shifted = model.encode_candidates(shifted)
    ids, scale = np.arange(N), 3.0
    first = float(loss.between(ids, queries, ids, candidates, scale=scale))
    assert found[0] == pytest.approx(2 * first, rel=1e-5)  # the batch, and the same in the memory
    second = float(loss.between(ids, queries, ids, of_shifted, scale=scale))
    both = np.concatenate([candidates, of_shifted])
    labels = np.concatenate([np.full(N, -1), ids])  # rows of the first batch match none
    against = float(loss.between(ids, queries, labels, both, scale=scale))
    assert found[1] == pytest.approx(second + against, rel=1e-4)


def test_a_memory_stores_rows_of_labels():
    relation = relations.SharesLabel()
    tags = np.eye(3, dtype="int32")[np.arange(N) % 3]
    loss = losses.SupConLoss(0.3, relation=relation)
    single = encoder(6, 1)
    embeddings = single.predict(QUERIES, verbose=0)
    memory = models.CrossBatchMemory(single, memory_size=N, start_step=0, label_shape=(3,))
    memory.compile(keras.optimizers.SGD(0.0), loss, **QUICKER)
    found = memory.train_on_batch(QUERIES, tags)
    expected = 2 * float(losses.SupConLoss(0.3)(np.arange(N) % 3, embeddings))
    assert float(found) == pytest.approx(expected, rel=1e-5)
    wrong = models.CrossBatchMemory(single, memory_size=N, start_step=0)
    wrong.compile("sgd", loss, **QUICKER)
    with pytest.raises(ValueError, match="label_shape must be .*3,"):
        wrong.train_on_batch(QUERIES, tags)


@tiers.slow_on_tensorflow
def test_a_memory_around_chunks_of_two_encoders_trains():
    plain, chunked = dual(), dual()
    for model in (plain, models.CachedGradients(chunked, 5)):
        fitted(models.CrossBatchMemory(model, memory_size=2 * N, start_step=0), IDS)
    assert difference(plain.get_weights(), chunked.get_weights()) < 1e-5
