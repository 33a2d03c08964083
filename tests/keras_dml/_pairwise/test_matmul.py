"""Matrix products on a GPU that rounds to TF32, simulated by rounded factors on a CPU."""

import ast
import pathlib

import keras
import numpy as np
import pytest

import keras_dml
from keras_dml import losses
from keras_dml._pairwise.arithmetic import matmul

pytestmark = pytest.mark.skipif(
    keras.backend.backend() != "tensorflow", reason="only TensorFlow's products are split"
)
tf = pytest.importorskip("tensorflow")

RNG = np.random.default_rng(0)
# Groups of close embeddings, whose squared distances are small differences of products.
CENTERS = RNG.normal(size=(4, 1, 64))
EMBEDDINGS = (CENTERS + 0.03 * RNG.normal(size=(4, 6, 64))).reshape(24, 64).astype("float32")
LABELS = np.arange(24) // 3


def tf32(x):
    """Round to the nearest number of 11 significant bits, like `cvt.rna.tf32.f32`."""
    bits = tf.bitcast(x, tf.int32) + (1 << 12)
    rounded = tf.bitcast(tf.bitwise.bitwise_and(bits, -(1 << 13)), tf.float32)
    return tf.where(tf.math.is_finite(x), rounded, x)


@tf.custom_gradient
def on_gpu(x, y):
    """Return the simulated product, whose gradients are simulated products, too."""

    def gradient(upstream):
        of_x = tf.matmul(tf32(upstream), tf32(y), transpose_b=True)
        return of_x, tf.matmul(tf32(x), tf32(upstream), transpose_a=True)

    return tf.matmul(tf32(x), tf32(y)), gradient


@pytest.fixture
def rounding_gpu(monkeypatch):
    """Simulate TF32 in every product; the argument is whether the library knows."""
    module = pytest.importorskip("keras_dml._pairwise.arithmetic")

    def becomes(known):
        monkeypatch.setattr(module, "_product", on_gpu)
        monkeypatch.setattr(module, "_is_rounded", lambda: known)

    return becomes


def product(x, y):
    x, y = tf.constant(x), tf.constant(y)
    with tf.GradientTape() as tape:
        tape.watch([x, y])
        found = matmul(x, y)
        value = tf.reduce_sum(tf.sin(found))
    return found, *tape.gradient(value, [x, y])


@pytest.mark.parametrize("shape", [(), (3,)])
def test_a_product_and_its_gradients_keep_float32(rounding_gpu, shape):
    x = RNG.normal(size=(*shape, 5, 70)).astype("float32")
    y = RNG.normal(size=(*shape, 70, 4)).astype("float32")
    exact = product(x.astype("float64"), y.astype("float64"))
    errors = {}
    for known in (True, False):
        rounding_gpu(known)
        errors[known] = [
            float(tf.norm(tf.cast(one, tf.float64) - other) / tf.norm(other))
            for one, other in zip(product(x, y), exact)
        ]
    assert max(errors[True]) < 2e-6
    assert min(errors[False]) > 1e-4  # without the split, the error is large


@pytest.mark.parametrize("scale", [1e-30, 1.0, 1e18])
def test_products_of_any_size(rounding_gpu, scale):
    rounding_gpu(True)
    x = np.array([[1.0, 1e-4], [-3.1415927, 2.7182817]], "float32") * np.float32(scale)
    np.testing.assert_allclose(matmul(x, np.eye(2, dtype="float32")), x, rtol=1e-6)


def test_nonfinite_values_are_kept(rounding_gpu):
    rounding_gpu(True)
    all_ones = np.array(0x7FFFFFFF, np.int32).view(np.float32)  # a NaN, too
    x = np.array([[np.inf, 1], [np.nan, 1], [all_ones, 1]], np.float32)
    found = matmul(x, np.ones([2, 1], np.float32)).numpy()
    assert not np.isfinite(found).any()


def loss_and_gradient(name, dtype):
    loss, z = losses.get(name, dtype=dtype), tf.constant(EMBEDDINGS.astype(dtype))
    with tf.GradientTape() as tape:
        tape.watch(z)
        value = loss(LABELS, z)
    return float(value), tape.gradient(value, z).numpy()


@pytest.mark.parametrize("name", ["contrastive", "ice", "spce"])
def test_a_loss_is_as_exact_as_without_tf32(rounding_gpu, name):
    value, gradient = loss_and_gradient(name, "float64")

    def error():
        one, of_one = loss_and_gradient(name, "float32")
        of_gradient = np.linalg.norm(of_one - gradient) / np.linalg.norm(gradient)
        return max(abs(one - value) / abs(value), of_gradient)

    without = error()
    rounding_gpu(True)
    known = error()
    rounding_gpu(False)
    assert known < max(2 * without, 1e-6)
    assert error() > 30 * known


def test_tf32_is_detected(monkeypatch):
    module = pytest.importorskip("keras_dml._pairwise.arithmetic")
    assert not module._is_rounded() or tf.config.list_physical_devices("GPU")
    monkeypatch.setattr(tf.config, "list_physical_devices", lambda kind: [kind])
    assert module._is_rounded() == tf.config.experimental.tensor_float_32_execution_enabled()


def test_the_library_uses_no_other_product_of_embeddings():
    root = pathlib.Path(keras_dml.__file__).parent
    rooms = [*(root / "losses").glob("*.py"), *(root / "addons").glob("*.py")]
    rooms += [*(root / "_pairwise").glob("*.py"), root / "models" / "proxy_head.py"]
    others = {"matmul", "dot", "einsum", "tensordot", "vdot", "inner", "outer"}
    for path in rooms:
        for node in ast.walk(ast.parse(path.read_text())):
            if path.name == "arithmetic.py":  # defines the product
                continue
            if isinstance(node, ast.Attribute) and getattr(node.value, "id", None) == "ops":
                assert node.attr not in others, f"{path.name}: ops.{node.attr}"
