"""Every form of the name of `from_preset`, without a network."""

import importlib.util
import shutil
import sys
from unittest import mock

import hub_presets
import keras
import numpy as np
import pytest

from keras_dml import models

IMAGES = np.random.default_rng(0).uniform(0, 255, (2, 32, 32, 3)).astype("float32")


@pytest.fixture
def saved(tmp_path):
    """The path of a saved embedding, and the model."""
    keras.utils.set_random_seed(0)
    backbone = models.small_convnet(32, filters=(4,))
    model = models.embedding_model(backbone, embedding_size=3)
    model.save(tmp_path / "model.keras")
    return tmp_path / "model.keras", model


def test_the_name_of_a_backbone_gives_the_backbone():
    built = models.from_preset("efficientnet_lite0", weights=None)
    assert built.input_shape == (None, 224, 224, 3) and len(built.output_shape) == 4
    assert models.from_preset("small_convnet", 32, None).output_shape == (None, 4, 4, 128)


def test_pooling_gives_features():
    keras.utils.set_random_seed(0)
    features = models.from_preset("small_convnet", 32, None, pooling="max")
    keras.utils.set_random_seed(0)
    expected = models.feature_extractor("small_convnet", 32, None, pooling="max")
    np.testing.assert_array_equal(features(IMAGES), expected(IMAGES))


def test_the_default_is_trained_weights():
    with pytest.raises(ValueError, match="weights must be"):
        models.from_preset("small_convnet", 32)


@pytest.mark.skipif(importlib.util.find_spec("keras_hub") is None, reason="needs the extra hub")
def test_a_preset_of_keras_hub(tmp_path):
    hub_presets.preset("resnet", tmp_path / "preset")
    name = f"hub:{tmp_path / 'preset'}"
    found, expected = models.from_preset(name, 32), models.build_backbone(name, 32)
    np.testing.assert_array_equal(found(IMAGES), expected(IMAGES))


def test_a_file_is_the_saved_model_and_with_a_size_a_backbone(saved):
    path, model = saved
    for name in (path, str(path)):
        np.testing.assert_allclose(models.from_preset(name)(IMAGES), model(IMAGES), rtol=1e-6)
        assert models.from_preset(name, 32).output_shape == (None, 3)
    with pytest.raises(ValueError, match="image_size=16"):
        models.from_preset(path, 16)


def test_a_folder_is_its_model(saved):
    path, model = saved
    for name in (path.parent, str(path.parent)):
        np.testing.assert_allclose(models.from_preset(name)(IMAGES), model(IMAGES), rtol=1e-6)


def test_a_backbone_comes_before_a_folder_of_its_name(saved, tmp_path, monkeypatch):
    path, _ = saved
    (tmp_path / "small_convnet").mkdir()
    shutil.copy(path, tmp_path / "small_convnet" / "model.keras")
    monkeypatch.chdir(tmp_path)
    assert models.from_preset("small_convnet", 32, None).output_shape == (None, 4, 4, 128)
    assert models.from_preset("./small_convnet").output_shape == (None, 3)


def test_a_repository_is_downloaded(saved, monkeypatch):
    path, model = saved
    download = mock.Mock(return_value=str(path))
    monkeypatch.setitem(sys.modules, "huggingface_hub", mock.Mock(hf_hub_download=download))
    found = models.from_preset("me/photos", revision="v1")
    np.testing.assert_allclose(found(IMAGES), model(IMAGES), rtol=1e-6)
    download.assert_called_once_with("me/photos", "model.keras", revision="v1")


@pytest.mark.parametrize(
    ("name", "given", "message"),
    [
        ("me/photos", {"image_size": 32}, "image_size must be left out for me/photos"),
        ("me/photos", {"weights": "none"}, "weights must be left out for me/photos"),
        ("resnet50", {"revision": "v1"}, "revision must be left out for resnet50"),
        ("net.keras", {"pooling": "max"}, "pooling must be left out for net.keras without image_s"),
        ("net.keras", {}, "net.keras"),
        ("resnet5", {"weights": None}, "resnet50"),
    ],
)
def test_an_argument_that_does_not_apply_and_a_name_of_nothing(name, given, message):
    with pytest.raises(ValueError, match=message):
        models.from_preset(name, **given)
