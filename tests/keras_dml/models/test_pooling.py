"""Poolings of maps, tokens and vectors, against plain NumPy."""

import keras
import numpy as np
import pytest
import tiers
from batches import functional

from keras_dml import layers, models
from keras_dml.export.float32 import float32_copy
from tests.support.backend import compiled, value_and_gradient

C = 5


def maps(shape=(2, 3, 4, C)):
    return np.random.default_rng(0).uniform(0.1, 3, shape).astype("float32")


def of_maps(values, pooling, **arguments):
    backbone = functional(values.shape[1:], keras.layers.Activation("linear"))
    return models.embedding_model(backbone, pooling=pooling, **arguments)


def of_tokens(values, pooling, *layout, **arguments):
    backbone = functional(values.shape[1:], layers.TokenLayout(*layout))
    return models.embedding_model(backbone, pooling=pooling, **arguments)


def expected(positions, pooling):
    """Return the poolings of positions `[n, m, c]`."""
    average, largest = positions.mean(axis=1), positions.max(axis=1)
    gem = (positions.astype("float64").clip(0) ** 3).mean(axis=1) ** (1 / 3)
    return {"average": average, "max": largest, "sum": average + largest, "gem": gem}[pooling]


@pytest.mark.parametrize("pooling", ["average", "max", "sum", "gem"])
def test_poolings_only_use_patches(pooling):
    values = maps()
    found = of_maps(values, pooling)(values)
    np.testing.assert_allclose(found, expected(values.reshape(2, 12, C), pooling), rtol=1e-5)
    values = maps((2, 13, C))
    for class_token, registers in ((False, 0), (True, 3)):
        values[:, : class_token + registers] += 100
        found = of_tokens(values, pooling, class_token, registers)(values)
        patches = values[:, class_token + registers :]
        np.testing.assert_allclose(found, expected(patches, pooling), rtol=1e-5)


@pytest.mark.parametrize("registers", [0, 4])
def test_class_token_with_and_without_the_patches(registers):
    values = maps((2, 13, C))
    np.testing.assert_array_equal(of_tokens(values, "cls", True, registers)(values), values[:, 0])
    found = of_tokens(values, "cls_average", True, registers)(values)
    patches = values[:, 1 + registers :].mean(axis=1)
    np.testing.assert_allclose(found, np.concatenate([values[:, 0], patches], axis=1), rtol=1e-5)


@pytest.mark.parametrize("pooling", ["cls", "cls_average"])
def test_a_missing_class_token(pooling):
    ours, received = "pooling must be one of 'average', .*'gem' .* gives", f"but got '{pooling}'"
    with pytest.raises(ValueError, match=f"{ours} maps, .*no class token, {received}"):
        of_maps(maps(), pooling)
    with pytest.raises(ValueError, match=f"{ours} tokens without a class token, {received}"):
        of_tokens(maps((2, 4, C)), pooling, False)


def test_tokens_without_a_layout():
    values = maps((2, 10, C))
    average = of_maps(values, "average")(values).numpy()
    np.testing.assert_allclose(average, values.mean(axis=1), rtol=1e-5)
    np.testing.assert_array_equal(of_maps(values, "cls")(values), values[:, 0])
    both = of_maps(values, "cls_average")(values).numpy()
    np.testing.assert_allclose(both[:, C:], values[:, 1:].mean(axis=1), rtol=1e-5)


def test_the_layout_is_found_in_nested_and_loaded_models(tmp_path):
    inner = functional((8, C), layers.TokenLayout(True, 2), name="inner")
    functional((8, C), inner).save(tmp_path / "tokens.keras")
    backbone = keras.saving.load_model(tmp_path / "tokens.keras")
    values = maps((2, 8, C))
    found = models.embedding_model(backbone, pooling="average")(values).numpy()
    np.testing.assert_allclose(found, values[:, 3:].mean(axis=1), rtol=1e-5)


@pytest.mark.parametrize("pooling", list(layers.POOLINGS))
def test_every_pooling_is_saved_and_copied(pooling, tmp_path):
    keras.config.set_dtype_policy("mixed_bfloat16")
    values = maps((2, 9, C))
    model = of_tokens(values, pooling, True, 1, embedding_size=3)
    keras.config.set_dtype_policy("float32")
    found = model(values).numpy()
    assert found.dtype == "float32"
    model.save(tmp_path / "pooled.keras")
    again = keras.saving.load_model(tmp_path / "pooled.keras")
    np.testing.assert_array_equal(again(values), found)
    np.testing.assert_allclose(float32_copy(model)(values), found, atol=0.1)


def gem_oracle(x, p):
    """Compute value `[n, c]` and gradients `[n, h, w, c]` and `[n, c]` by x and p in logarithms."""
    with np.errstate(divide="ignore"):
        logs = np.log(x)  # -inf at 0
    log_sums = np.logaddexp.reduce(p * logs, axis=(1, 2), keepdims=True)
    log_sums = np.where(np.isinf(log_sums), 0.0, log_sums)
    log_means = log_sums - np.log(x.shape[1] * x.shape[2])
    dead = (x == 0).all(axis=(1, 2))
    by_x = np.where(x > 0, np.exp(log_means / p + (p - 1) * logs - log_sums), 0.0)
    weights = np.exp(p * logs - log_sums)
    mean_logs = np.where(x > 0, weights * np.where(x > 0, logs, 0), 0.0).sum(axis=(1, 2))
    values = np.where(dead, 0.0, np.exp(log_means / p)[:, 0, 0])
    return values, by_x, values * (mean_logs / p - log_means[:, 0, 0] / p**2)


@pytest.mark.any_backend
@tiers.parametrize("dtype", ["float32", "float64"], ["float32"])
@pytest.mark.parametrize("p", [0.05, 1.0, 6.3, 100.0])
def test_gem_of_sparse_maps_and_dead_channels_matches_a_float64_oracle(p, dtype):
    p = float(np.float32(p))  # Keras converts constants of another dtype to float32 first
    x = np.random.default_rng(0).normal(size=(3, 4, 4, C)).astype(dtype)
    x[0, :, :, 0] = 0
    x[1] = -np.abs(x[1])  # a negative activation counts as 0
    x[2, :, :, 1] *= 1e-10
    x[2, :, :, 2] *= 1e10
    if p < 1:
        x[2, 0, 0, 3] = 1e-6
    layer = layers.GeneralizedMeanPooling(p=p, dtype=dtype)
    layer.build(x.shape)
    scales = np.asarray([1, 1e10, 1e-10, 1, 1], dtype)

    def of(p, x):
        return keras.ops.sum(
            layer.stateless_call([p], [], x)[0] * keras.ops.convert_to_tensor(scales)
        )

    values, by_x, by_p = gem_oracle(x.astype("float64").clip(0), p)
    start, tensor = (keras.ops.convert_to_tensor(one, dtype) for one in (p, x))
    # Keras computes float64 partly in float32 on PyTorch, and on JAX without JAX_ENABLE_X64.
    exact = keras.backend.backend() != "torch" and tensor.dtype == "float64"
    rtol = 1e-9 if exact else 2e-5
    result = compiled(lambda: layer.stateless_call([start], [], tensor)[0])()
    np.testing.assert_allclose(
        keras.ops.convert_to_numpy(keras.ops.stop_gradient(result)), values, rtol=rtol
    )
    total, found = value_and_gradient(of, start, x, dtype)
    np.testing.assert_allclose(found, by_x * scales, rtol, atol=1e-20)
    _, found = value_and_gradient(lambda x, p: of(p, x), tensor, p, dtype)
    np.testing.assert_allclose(found, (by_p * scales).sum(), rtol)
    np.testing.assert_allclose(float(compiled(of)(start, tensor)), total, rtol)


def test_a_dead_channel_does_not_destroy_a_model_with_gem():
    keras.config.set_dtype_policy("mixed_float16")
    model = functional(
        (4, 4, 3),
        keras.layers.Conv2D(C, 1, activation="relu", bias_initializer="ones"),
        layers.GeneralizedMeanPooling(p=8.0),
        keras.layers.Dense(2, dtype="float32"),
    )
    model.layers[1].bias[0].assign(-100.0)
    model.compile(keras.optimizers.SGD(1e-3), "mse")
    model.fit(np.ones((8, 4, 4, 3)), np.ones((8, 2)), epochs=2, verbose=0)
    assert all(np.isfinite(np.asarray(one)).all() for one in model.get_weights())


@pytest.mark.any_backend
def test_an_exponent_that_training_makes_negative_leaves_gem_finite():
    layer = layers.GeneralizedMeanPooling()
    layer.build((2, 3, 4, C))
    layer.p.assign(-0.5)
    assert np.isfinite(keras.ops.convert_to_numpy(keras.ops.stop_gradient(layer(maps())))).all()
