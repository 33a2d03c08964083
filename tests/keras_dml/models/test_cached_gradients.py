"""Training in chunks equals training on the whole batch, for all models and losses."""

from concurrent import futures

import keras
import numpy as np
import pytest
import tensorflow as tf
import tiers
from batches import functional
from keras import ops
from processes import difference

from keras_dml import layers, losses, models, optimizers
from keras_dml.layers.global_batch_dropout import on_chunk
from keras_dml.metrics import LossPart

BATCH, STEPS, CLASSES = 12, 2, 4
RNG = np.random.default_rng(0)
IMAGES = RNG.normal(size=(STEPS * BATCH, 6, 6, 1)).astype("float32")
IDS = RNG.integers(0, CLASSES, STEPS * BATCH)


def embedding(*random_layers, policy="float32"):
    """A small net with a regularizer; the random layers come after its convolution."""
    keras.utils.set_random_seed(3)
    inputs = keras.Input((6, 6, 1))
    l2 = keras.regularizers.L2(0.1)
    x = keras.layers.Conv2D(4, 3, activation="tanh", dtype=policy, kernel_regularizer=l2)(inputs)
    for layer in random_layers:
        x = layer(x)
    x = keras.layers.Dense(5, dtype=policy)(keras.layers.Flatten()(x))
    x = keras.layers.Activation("linear", dtype="float32", name="embeddings")(x)
    return keras.Model(inputs, x)


def fitted(
    model, loss=None, ids=IDS, optimizer=None, number=None, weights=None, around=None, **how
):
    """Train an epoch without a graph, which is faster here; return the model and its logs."""
    loss = losses.MultiSimilarityLoss() if loss is None else loss
    # In eager mode, JAX would compile each operation separately.
    how = how or {"run_eagerly": keras.backend.backend() != "jax"}
    over_pairs = getattr(loss, "kind", None) == "pairs"
    metrics = [LossPart(loss, "tightness")] if over_pairs else None
    model = around(model) if around else model
    optimizer = optimizer(model) if optimizer else keras.optimizers.SGD(0.1, momentum=0.9)
    model.compile(optimizer, loss, metrics=metrics, **how)
    ids, weights = (x[:number] if isinstance(x, np.ndarray) else x for x in (ids, weights))
    data = {"x": IMAGES[:number], "y": ids, "sample_weight": weights}
    before = model.get_weights()
    history = model.fit(**data, batch_size=BATCH, shuffle=False, verbose=0).history
    assert difference(before, model.get_weights()) > 1e-3
    return model, {name: values[0] for name, values in history.items()}


def check_equal(plain, chunked, tolerance=1e-5):
    (model, logs), (other, other_logs) = plain, chunked
    assert difference(model.get_weights(), other.get_weights()) < tolerance
    assert other_logs == pytest.approx(logs, rel=tolerance)


# 5 does not divide the batch: some images are computed twice.
@pytest.mark.any_backend
@tiers.parametrize("chunk_size", [1, 5, 16], [5])
def test_weights_equal_the_whole_batch_even_with_dropout(chunk_size):
    plain, chunked = (embedding(layers.GlobalBatchDropout(0.4, seed=5)) for _ in range(2))
    check_equal(fitted(plain), fitted(models.CachedGradients(chunked, chunk_size)))


@pytest.mark.any_backend
def test_a_chunk_in_one_thread_changes_no_call_in_another():
    rows = np.ones((4, 8), "float32")
    one, other = (layers.GlobalBatchDropout(0.5, seed=5) for _ in range(2))
    expected = ops.convert_to_numpy(one(rows, training=True))
    with on_chunk(2, 8), futures.ThreadPoolExecutor(1) as pool:
        found = pool.submit(lambda: ops.convert_to_numpy(other(rows, training=True))).result()
    np.testing.assert_array_equal(found, expected)


def random_layers():
    shift = keras.layers.RandomTranslation(0.3, 0.3, seed=2)
    return keras.layers.RandomFlip(seed=1), shift, keras.layers.Dropout(0.4, seed=3)


@pytest.mark.slow
def test_random_layers_draw_the_same_in_both_passes():
    """Compare with one tape over the chunks of a batch that stores all activations."""
    naive, loss = embedding(*random_layers()), losses.MultiSimilarityLoss()
    with tf.GradientTape() as tape:
        chunks = np.split(IMAGES[:BATCH], BATCH // 4)
        z = tf.concat([naive(chunk, training=True) for chunk in chunks], axis=0)
        total = loss(IDS[:BATCH], z) + sum(naive.losses)
    variables = naive.trainable_variables
    keras.optimizers.SGD(0.1).apply(tape.gradient(total, variables), variables)
    chunked = models.CachedGradients(embedding(*random_layers()), 4)
    fitted(chunked, number=BATCH, optimizer=lambda _: keras.optimizers.SGD(0.1))
    assert difference(naive.get_weights(), chunked.get_weights()) < 1e-6
    # The seeds for the next step are equal, too.
    for ours, theirs in zip(naive.non_trainable_variables, chunked.non_trainable_variables):
        np.testing.assert_array_equal(ours.numpy(), theirs.numpy())


def proxies():
    merging = layers.CenterRegularizer(2)
    return models.proxy_model(embedding(), CLASSES, 2, "soft", proxies_regularizer=merging)


def with_faster_proxies(model):
    faster = optimizers.multipliers(model.get_layer("proxy_head"), 10)
    return optimizers.CoupledSGD(0.01, learning_rate_multipliers=faster)


def two_outputs():
    base = embedding()
    head = layers.ProxyHead(CLASSES)
    return keras.Model(base.input, {"embeddings": base.output, "cosines": head(base.output)})


def scaled(model):
    return keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.1))


def remembering(model):
    return models.CrossBatchMemory(model, 30, weight=0.5, start_step=1)


BOTH = {"embeddings": losses.SupConLoss(), "cosines": losses.ArcFaceLoss(8.0)}
WEIGHTS = RNG.uniform(0, 2, len(IDS)).astype("float32")
TRAININGS = {
    "XLA": (embedding, {"jit_compile": True}),
    "several steps": (embedding, {"steps_per_execution": 2}),
    "sample weights": (embedding, {"weights": WEIGHTS}),
    "a smaller last batch": (embedding, {"number": 22}),  # batches of 12 and 10
    "proxies": (proxies, {"loss": losses.SoftTripleLoss(), "optimizer": with_faster_proxies}),
    "memory": (embedding, {"loss": losses.SupConLoss(), "around": remembering}),
    "frozen statistics": (lambda: embedding(layers.FrozenStatisticsBatchNormalization()), {}),
    "mixed precision": (lambda: embedding(policy="mixed_float16"), {"optimizer": scaled}),
    "two outputs": (two_outputs, {
        "loss": BOTH, "ids": dict.fromkeys(BOTH, IDS), "run_eagerly": True,
        "loss_weights": {"embeddings": 0.5, "cosines": 1.0},
    }),
}  # fmt: skip


ON_ANY_BACKEND = ("a smaller last batch", "proxies", "memory")


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[pytest.mark.any_backend] if name in ON_ANY_BACKEND else [])
        for name in TRAININGS
    ],
)
def test_every_training_equals_the_whole_batch(name):
    build, how = TRAININGS[name]
    plain, chunked = fitted(build(), **how), fitted(models.CachedGradients(build(), 5), **how)
    # Tolerance for the rounding of the chunks' gradients, which are half precision, too.
    check_equal(plain, chunked, tolerance=2e-3 if name == "mixed precision" else 1e-5)
    assert int(plain[0].optimizer.iterations) == int(chunked[0].optimizer.iterations) == STEPS


@pytest.mark.slow
def test_under_a_global_policy_images_are_not_rounded_before_the_model():
    keras.config.set_dtype_policy("mixed_bfloat16")
    images = np.full((2, 6, 6, 1), 200.6, "float32")
    inner = functional((6, 6, 1), keras.layers.Flatten(dtype="float32"))
    for model in (models.CachedGradients(inner, 2), models.CrossBatchMemory(inner, 2)):
        np.testing.assert_array_equal(model(images), inner(images))


@pytest.mark.slow
def test_live_statistics_are_refused_unless_allowed():
    norm = keras.layers.BatchNormalization(name="norm")
    model = models.CachedGradients(embedding(norm), 4)
    for refused in (model, models.CrossBatchMemory(model, 12)):
        with pytest.raises(ValueError, match="batch norm .* but got norm"):
            fitted(refused)
    norm.trainable = False
    fitted(model)
    norm.trainable = True
    fitted(models.CachedGradients(model.model, 4, batch_statistics=True))


def test_each_chunk_moves_the_averages_once():
    norm = keras.layers.BatchNormalization(momentum=0.5)
    model = models.CachedGradients(functional((2,), norm), 2, batch_statistics=True)
    model.compile(keras.optimizers.SGD(0.0), losses.ContrastiveLoss(), run_eagerly=True)
    x = np.array([[1, 0], [1, 0], [4, 0], [4, 0]], "float32")
    model.train_on_batch(x, np.array([0, 0, 1, 1]))
    # 0 → 0.5 · 0 + 0.5 · 1 → 0.5 · 0.5 + 0.5 · 4
    np.testing.assert_allclose(norm.moving_mean.numpy(), [2.25, 0], rtol=1e-6)


class AddsLoss(keras.layers.Layer):
    def call(self, x):
        self.add_loss(keras.ops.sum(x))
        return x


def with_noise(x):
    return x + keras.random.normal(keras.ops.shape(x))


@pytest.mark.parametrize(
    ("layer", "message"),
    [
        (keras.layers.ReLU(activity_regularizer="l2", name="active"), "one in layer active"),
        (AddsLoss(), "losses of their activations"),
        (keras.layers.Lambda(with_noise), "global seed"),
    ],
)
def test_losses_that_do_not_split_into_chunks_are_refused(layer, message):
    model = models.CachedGradients(functional((4,), layer), 2)
    with pytest.raises(ValueError, match=message):
        model.compile("sgd", losses.SNCALoss(), run_eagerly=True)
        model.train_on_batch(np.ones((4, 4), "float32"), np.array([0, 0, 1, 1]))


def test_refused_models():
    with pytest.raises(ValueError, match=r"model must be a built keras.Model"):
        models.CachedGradients(keras.Sequential([keras.layers.Dense(3)]), 8)
    memory = models.CrossBatchMemory(embedding(), 20)
    with pytest.raises(ValueError, match="model must be a model other than CrossBatchMemory"):
        models.CachedGradients(memory, 8)


def test_no_more_than_a_chunk_is_computed_at_once():
    sizes = []

    class Sees(keras.layers.Layer):
        def call(self, x):
            sizes.append(x.shape[0])
            return x

    model = models.CachedGradients(functional((4,), Sees(), keras.layers.Dense(2)), 3)
    sizes.clear()
    model.compile("sgd", losses.SNCALoss(), run_eagerly=True)
    model.train_on_batch(np.ones((12, 4), "float32"), np.arange(12) // 2)
    # One call to inspect the model, and two passes over four chunks.
    assert sizes == [3] * 9
