"""Losses if `keras.config.floatx()` is float64 or half precision: their values and dtypes."""

import keras
import numpy as np
import pytest
from backend import value_and_gradient
from loss_cases import DEFAULTS, each

from keras_dml import losses, models
from keras_dml.metrics import LossPart

pytestmark = pytest.mark.any_backend

NO_FLOAT64 = keras.backend.backend() == "jax" and not __import__("jax").config.jax_enable_x64
IDS = np.array([0, 0, 1, 1, 2, 2])
Z = np.random.default_rng(0).uniform(-0.5, 0.5, (6, 4))
NEEDS_FLOAT64 = pytest.mark.skipif(NO_FLOAT64, reason="needs jax_enable_x64")
FLOAT64 = pytest.param("float64", marks=NEEDS_FLOAT64)


@pytest.fixture
def floatx(request):
    keras.config.set_floatx(request.param)
    yield request.param
    keras.config.set_floatx("float32")


@pytest.mark.parametrize("floatx", [FLOAT64, "float16", "bfloat16"], indirect=True)
@each(DEFAULTS, {"ce", "contrastive", "pce", "fastap", "margin"})
def test_value_and_gradient(case, floatx):
    loss = losses.get(case.name)
    dtype = "float64" if floatx == "float64" else "float32"
    assert loss.dtype == dtype
    value, gradient = value_and_gradient(loss, IDS, Z, dtype=dtype)
    expected, slope = value_and_gradient(losses.get(case.name, dtype="float32"), IDS, Z, "float32")
    assert value == pytest.approx(expected, rel=1e-4, abs=1e-6)
    np.testing.assert_allclose(gradient, slope, rtol=1e-3, atol=1e-4 * np.abs(slope).max() + 1e-6)
    half = keras.ops.cast(keras.ops.convert_to_tensor(Z), floatx)
    assert keras.backend.standardize_dtype(loss(IDS, half).dtype) == dtype


@pytest.mark.parametrize(
    ("loss", "floatx"),
    [
        pytest.param(losses.SupConLoss(), "float64", marks=NEEDS_FLOAT64),
        (losses.ContrastiveLoss(2.0), "bfloat16"),
        (None, "float16"),
    ],
    indirect=["floatx"],
)
def test_memory_chunks_and_rankmi_train(loss, floatx):
    inputs = keras.Input((4,))
    net = keras.Model(inputs, keras.layers.Dense(3)(inputs))
    eager = keras.backend.backend() != "jax"
    if loss is None:
        model = models.RankMI(net)
        model.compile("sgd", run_eagerly=eager)
    else:
        # Unused rows of the memory are zeros.
        model = models.CrossBatchMemory(models.CachedGradients(net, 3), 12, start_step=0)
        model.compile("sgd", loss, metrics=[LossPart(loss, "tightness")], run_eagerly=eager)
    history = model.fit(Z, IDS, batch_size=6, epochs=2, verbose=0).history
    assert np.isfinite([float(value) for values in history.values() for value in values]).all()
