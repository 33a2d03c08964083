"""ImageNet weights published as PyTorch checkpoints: the download and its checksum."""

import functools
import hashlib
import shutil

import keras
import numpy as np
import pytest
import torch_format

from keras_dml import models
from keras_dml._common.errors import DownloadError
from keras_dml.models import backbones


def one_convolution(image_size, name="one_convolution"):
    inputs = keras.Input((image_size, image_size, 3))
    return keras.Model(
        inputs, keras.layers.Conv2D(2, 1, use_bias=False, name="conv")(inputs), name=name
    )


@pytest.fixture
def published(tmp_path, monkeypatch):
    """A backbone whose checkpoint is published at an address, and the checkpoint's kernel."""
    kernel = np.random.default_rng(0).normal(size=(2, 3, 1, 1)).astype("float32")
    file = tmp_path / "web" / "one_convolution-12345678.pth"
    file.parent.mkdir()
    torch_format.save(torch_format.state_dict({"conv.weight": kernel}), file)
    monkeypatch.setattr(
        keras.utils,
        "get_file",
        functools.partial(keras.utils.get_file, cache_dir=tmp_path / "cache"),
    )

    def publish(sha256=None, url=None):
        checksum = sha256 or hashlib.sha256(file.read_bytes()).hexdigest()
        entry = backbones.Backbone(
            one_convolution, "rgb", url=url or file.as_uri(), sha256=checksum
        )
        monkeypatch.setitem(backbones.BACKBONES, "one_convolution", entry)

    publish()
    return publish, kernel


def test_imagenet_weights_of_a_published_checkpoint_are_downloaded_once(published, tmp_path):
    _, kernel = published
    for _ in range(2):
        model = models.build_backbone("one_convolution", 8, weights="imagenet")
        found = model.get_layer("conv").kernel.numpy()
        np.testing.assert_array_equal(found, kernel.transpose(2, 3, 1, 0))
        shutil.rmtree(tmp_path / "web", ignore_errors=True)


def test_a_checkpoint_with_another_checksum_is_refused(published):
    publish, _ = published
    publish(sha256="0" * 64)
    with pytest.raises(
        DownloadError, match="one_convolution could not be downloaded: .*hash.*000"
    ) as refused:
        models.build_backbone("one_convolution", 8, weights="imagenet")
    assert "\n" not in str(refused.value)


def test_a_checkpoint_without_a_network_names_its_address(published, tmp_path):
    publish, _ = published
    url = (tmp_path / "nowhere.pth").as_uri()
    publish(url=url)
    with pytest.raises(
        DownloadError, match=f"could not be downloaded: .*{url}.*give its path.*none"
    ) as refused:
        models.build_backbone("one_convolution", 8, weights="imagenet")
    assert "\n" not in str(refused.value)
