"""BN-Inception against a NumPy forward pass of its blocks, and its levels in an embedding."""

import keras
import numpy as np
import pytest
from numpy.lib.stride_tricks import sliding_window_view

from keras_dml import models

SIZE = 35  # an odd map before the second pooling, as at 227
BLOCKS = ["3a", "3b", "3c", "4a", "4b", "4c", "4d", "4e", "5a", "5b"]


def checkpoint(model):
    """Random arrays with the public file's names and shapes, including batch norms `[1, c]`."""
    rng = np.random.default_rng(0)
    arrays = {}
    for layer in model.layers:
        parts = {}
        if isinstance(layer, keras.layers.Conv2D):
            kernel = rng.normal(size=layer.kernel.shape) / np.sqrt(np.prod(layer.kernel.shape[:3]))
            bias = rng.normal(size=layer.filters) / 10
            parts = {"weight": kernel.transpose(3, 2, 0, 1), "bias": bias}
        elif isinstance(layer, keras.layers.BatchNormalization):
            shape = 1, layer.gamma.shape[0]
            parts = {name: rng.uniform(0.5, 1.5, shape) for name in ("weight", "running_var")}
            parts |= {name: rng.normal(size=shape) / 10 for name in ("bias", "running_mean")}
        arrays |= {f"{layer.name}.{name}": array for name, array in parts.items()}
    return {name: array.astype("float32") for name, array in arrays.items()}


@pytest.fixture(scope="module")
def loaded(tmp_path_factory):
    """The backbone, its arrays, and the outputs of poolings and blocks for two images."""
    path = tmp_path_factory.mktemp("weights") / "bn_inception.npz"
    arrays = checkpoint(models.build_backbone("bn_inception", SIZE))
    np.savez(path, **arrays)
    backbone = models.build_backbone("bn_inception", SIZE, weights=str(path))
    names = ["pool1_3x3_s2", "pool2_3x3_s2", *(f"inception_{block}_output" for block in BLOCKS)]
    images = np.random.default_rng(1).uniform(0, 255, (2, SIZE, SIZE, 3)).astype("float32")
    found = keras.Model(backbone.input, [backbone.get_layer(name).output for name in names])(images)
    return backbone, arrays, images, {name: x.numpy() for name, x in zip(names, found)}


def windows(x, size, stride, outside, padding, ceil=False):
    """Return `[n, h, w, c, size, size]`: the inputs of each window, padded with `outside`."""
    length = x.shape[1] + 2 * padding - size
    positions = (-(-length // stride) if ceil else length // stride) + 1
    far = padding + size  # enough for a last window beyond the edge
    x = np.pad(x, [(0, 0), (padding, far), (padding, far), (0, 0)], constant_values=outside)
    last = stride * (positions - 1) + 1
    return sliding_window_view(x, (size, size), (1, 2))[:, :last:stride, :last:stride]


def unit(x, arrays, name, stride=1):
    """Compute convolution with bias, batch norm by stored statistics, and ReLU."""
    kernel = arrays[f"{name}.weight"].astype(float)
    size = kernel.shape[2]
    seen = windows(x, size, stride, 0, size // 2)
    x = np.einsum("nhwcij,ocij->nhwo", seen, kernel, optimize=True) + arrays[f"{name}.bias"]
    part = {
        p: arrays[f"{name}_bn.{p}"][0] for p in ("weight", "bias", "running_mean", "running_var")
    }
    x = (x - part["running_mean"]) / np.sqrt(part["running_var"] + 1e-5)
    return np.maximum(x * part["weight"] + part["bias"], 0)


def largest(x, stride, padding):
    return windows(x, 3, stride, -np.inf, padding, ceil=True).max(axis=(4, 5))


def block(x, arrays, name):
    stride = 1 if f"{name}_1x1.weight" in arrays else 2
    paths = [unit(x, arrays, f"{name}_1x1")] if stride == 1 else []
    path = unit(x, arrays, f"{name}_3x3_reduce")
    paths.append(unit(path, arrays, f"{name}_3x3", stride))
    path = unit(x, arrays, f"{name}_double_3x3_reduce")
    path = unit(path, arrays, f"{name}_double_3x3_1")
    paths.append(unit(path, arrays, f"{name}_double_3x3_2", stride))
    if stride == 2:
        return np.concatenate([*paths, largest(x, 2, 0)], axis=-1)
    average = windows(x, 3, 1, 0, 1).mean(axis=(4, 5))
    pooled = largest(x, 1, 1) if name == "inception_5b" else average
    return np.concatenate([*paths, unit(pooled, arrays, f"{name}_pool_proj")], axis=-1)


def close(found, expected):
    assert found.shape == expected.shape
    assert expected.std() > 0.05
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4 * expected.std())


@pytest.mark.slow
def test_the_number_of_parameters_matches_the_original():
    backbone = models.build_backbone("bn_inception", SIZE)
    weights = sum(np.prod(variable.shape) for variable in backbone.trainable_variables)
    assert weights + 1024 * 1000 + 1000 == 11_295_240
    assert len(backbone.non_trainable_variables) == 2 * 69


@pytest.mark.slow
def test_the_stem_accepts_rgb_for_a_bgr_checkpoint(loaded):
    _, arrays, images, found = loaded
    x = images[..., ::-1] - np.array([104.0, 117.0, 128.0])
    x = largest(unit(x, arrays, "conv1_7x7_s2", 2), 2, 0)
    close(found["pool1_3x3_s2"], x)
    x = unit(unit(x, arrays, "conv2_3x3_reduce"), arrays, "conv2_3x3")
    close(found["pool2_3x3_s2"], largest(x, 2, 0))


@pytest.mark.slow
@pytest.mark.parametrize("number", range(len(BLOCKS)))
def test_a_block_matches_numpy(number, loaded):
    _, arrays, _, found = loaded
    outputs = list(found)[1:]
    before, after = outputs[number : number + 2]
    close(found[after], block(found[before].astype(float), arrays, after.removesuffix("_output")))
