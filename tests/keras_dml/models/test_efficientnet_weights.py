"""EfficientNet's input rescaling: the same features by name and from a file, or an error."""

import shutil
import sys

import h5py
import keras
import numpy as np
import pytest

from keras_dml import models
from keras_dml._backend.cloning import all_layers
from keras_dml.models import imagenet_rescaling

SIZE = 32
DEVIATIONS = [0.229, 0.224, 0.225]


def images():
    return np.random.default_rng(1).uniform(0, 255, (2, SIZE, SIZE, 3)).astype("float32")


def module():
    return sys.modules[keras.applications.EfficientNetB0.__module__]


def features(model):
    return model(images(), training=False).numpy()


def check(found, expected):
    scale = np.abs(expected).max()
    np.testing.assert_allclose(found / scale, expected / scale, atol=1e-5)


@pytest.fixture(scope="module")
def published(tmp_path_factory):
    """A file like Keras' original: saved by Keras 2 from a graph without the rescaling."""
    keras.utils.set_random_seed(0)
    plain = keras.applications.EfficientNetB0(
        include_top=False, weights=None, input_shape=(SIZE, SIZE, 3)
    )
    rng = np.random.default_rng(0)
    for layer in all_layers(plain):
        if isinstance(layer, keras.layers.BatchNormalization):
            layer.moving_mean.assign(rng.normal(0, 0.2, layer.moving_mean.shape))
            layer.moving_variance.assign(rng.uniform(0.05, 0.5, layer.moving_variance.shape))
        if isinstance(layer, keras.layers.Normalization):
            layer.adapt_mean.assign([0.485, 0.456, 0.406])
            layer.adapt_variance.assign(DEVIATIONS)
            layer.finalize_state()
    path = tmp_path_factory.mktemp("keras") / "efficientnetb0_notop.h5"
    plain.save(path)
    with h5py.File(path, "a") as file:
        file["model_weights"].attrs["keras_version"] = "2.4.3"
    return path


@pytest.fixture
def downloaded(published, monkeypatch):
    """The file that Keras downloads; its MD5 is the one that Keras knows."""
    monkeypatch.setattr(module().file_utils, "get_file", lambda *_, **__: str(published))
    hashes = {**module().WEIGHTS_HASHES, "b0": ("0", imagenet_rescaling._md5(published))}
    monkeypatch.setattr(module(), "WEIGHTS_HASHES", hashes)
    return published


@pytest.fixture
def by_name(downloaded):
    return models.build_backbone("efficientnetb0", SIZE, "imagenet")


@pytest.mark.thorough
@pytest.mark.slow
@pytest.mark.parametrize("frozen", [False, True])
def test_a_keras_file_gives_the_same_features_by_path_and_by_name(by_name, downloaded, frozen):
    expected = features(by_name)
    by_path = models.build_backbone("efficientnetb0", SIZE, str(downloaded), frozen)
    check(features(by_path), expected)
    ours = keras.applications.EfficientNetB0(
        include_top=False, weights="imagenet", input_shape=(SIZE, SIZE, 3)
    )
    check(features(ours), expected)
    # Without the fix: the graph has no rescaling.
    plain = keras.applications.EfficientNetB0(
        include_top=False, weights=str(downloaded), input_shape=(SIZE, SIZE, 3)
    )
    assert np.abs(features(plain) - expected).max() > 0.1 * np.abs(expected).max()
    levels = models.embedding_model(by_path, levels=["block2b_add"])
    assert levels(images()).shape == (2, 24)


@pytest.mark.thorough
@pytest.mark.slow
@pytest.mark.parametrize(
    ("rescaled", "name"),
    [(True, "own.weights.h5"), (False, "embedding.keras"), (True, "own.h5"), (False, "own.h5")],
)
def test_our_saved_file_restores_the_same_graph(by_name, rescaled, name, tmp_path):
    saved = by_name if rescaled else models.build_backbone("efficientnetb0", SIZE)
    if rescaled and name == "own.h5":
        saved = keras.applications.EfficientNetB0(
            include_top=False, weights="imagenet", input_shape=(SIZE, SIZE, 3)
        )
    expected = features(saved)
    whole = models.embedding_model(saved, 4) if name == "embedding.keras" else saved
    path = tmp_path / name
    whole.save_weights(path) if name.endswith(".weights.h5") else whole.save(path)
    check(features(models.build_backbone("efficientnetb0", SIZE, str(path))), expected)
    # The loaded model can be saved and loaded again.
    again = tmp_path / "again.keras"
    models.build_backbone("efficientnetb0", SIZE, str(path)).save(again)
    check(features(models.build_backbone("efficientnetb0", SIZE, str(again))), expected)


@pytest.mark.slow
def test_an_old_file_of_unknown_origin_is_refused(published, tmp_path):
    path = tmp_path / "noisy_student.h5"
    shutil.copy(published, path)
    message = "weights must fit one graph of EfficientNetB0.*noisy_student.*rescaling.*MD5 50bc09e7"
    with pytest.raises(ValueError, match=message):
        models.build_backbone("efficientnetb0", SIZE, str(path))


def test_keras_knows_the_md5_of_each_of_its_files():
    names = [name for name in dir(keras.applications) if imagenet_rescaling.has_rescaling(name)]
    assert len(names) == 8
    for name in names:
        hashes = module().WEIGHTS_HASHES[name[-2:].lower()]
        assert len(hashes) == 2 and all(len(each) == 32 for each in hashes)
    assert not imagenet_rescaling.has_rescaling("EfficientNetV2B0")
    assert module().IMAGENET_STDDEV_RGB == DEVIATIONS
