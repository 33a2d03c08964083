"""Users' saved models as backbones: functional, sequential, nested, subclassed, and refused."""

import json
import sys
import zipfile

import keras
import numpy as np
import pytest
import tiers
from batches import functional, images

from keras_dml import layers, models
from keras_dml._backend.cloning import all_layers
from keras_dml._common.extras import MissingExtraError
from keras_dml.export import check_export
from keras_dml.export.float32 import float32_copy


@keras.saving.register_keras_serializable("test_keras_files")
class Subclassed(keras.Model):
    """A subclassed model with its own `call`."""

    def __init__(self, width=5, **kwargs):
        super().__init__(**kwargs)
        self.width = width
        self.scaling = keras.layers.Rescaling(1 / 255)
        self.conv = keras.layers.Conv2D(width, 3, strides=4)

    def call(self, inputs):
        return self.conv(self.scaling(inputs))

    def get_config(self):
        return {**super().get_config(), "width": self.width}


class Unregistered(keras.layers.Layer):
    def call(self, inputs):
        return inputs * 2


class Another(Unregistered):
    pass


def net(size=16, *layers):
    return functional(
        (size, size, 3),
        keras.layers.Rescaling(1 / 255),
        keras.layers.Conv2D(4, 3, strides=2, name="features"),
        keras.layers.BatchNormalization(name="projection"),
        *layers,
        name="mine",
    )


def sequence(*first):
    return keras.Sequential([*first, keras.layers.Rescaling(1 / 255), keras.layers.Conv2D(4, 5)])


def nested():
    inner = keras.Sequential([keras.layers.Conv2D(6, 3), keras.layers.BatchNormalization()])
    return functional((16, 16, 3), net(), inner, keras.layers.ReLU())


def of_one_image():
    inputs = keras.Input(batch_shape=(1, 16, 16, 3))
    return keras.Model(inputs, keras.layers.Conv2D(4, 3)(inputs))


def called(model):
    model(images())
    return model


def of_a_dict():
    inputs = {"pixels": keras.Input((16, 16, 3), name="pixels")}
    return keras.Model(inputs, keras.layers.Conv2D(4, 3)(inputs["pixels"]))


def vectors():
    return net(16, keras.layers.Flatten(), keras.layers.Dense(3, name="embeddings"))


KINDS = {
    "any size": lambda: net(None),
    "nested": nested,
    "sequential": lambda: sequence(keras.Input((16, 16, 3))),
    "built on images": lambda: called(sequence()),
    "subclassed": lambda: called(Subclassed()),
    "a dict": of_a_dict,
    "tokens": lambda: net(16, keras.layers.Reshape((49, 4))),
    "vectors": vectors,
    "of one image": of_one_image,
}


def saved(model, tmp_path):
    model.save(tmp_path / "mine.keras")
    return str(tmp_path / "mine.keras")


@tiers.parametrize("kind", KINDS, ["nested"])
def test_a_saved_model_becomes_a_backbone_that_can_be_saved_copied_and_exported(kind, tmp_path):
    theirs = KINDS[kind]()
    path = saved(theirs, tmp_path)
    backbone = models.build_backbone(path, 16)
    given = {"pixels": images()} if kind == "a dict" else images()
    expected = np.asarray(theirs(given, training=False))
    np.testing.assert_allclose(backbone(images(), training=True), expected, rtol=1e-5, atol=1e-6)
    model = models.embedding_model(backbone, 3, feature_batch_norm=True)
    assert model.input_shape == (None, 16, 16, 3) and model.output_shape == (None, 3)
    embeddings = model(images(), training=False).numpy()
    model.save(tmp_path / "embedding.keras")
    again = models.load_keras_file(tmp_path / "embedding.keras")
    for copy in (again, float32_copy(model), models.with_frozen_statistics(again)):
        np.testing.assert_allclose(copy(images(), training=False), embeddings, atol=1e-5)

    import tensorflow as tf

    def preprocessing(data):
        return tf.image.resize(tf.io.decode_png(data, 3), (16, 16))

    check_export(model, preprocessing)


# Frozen statistics


def test_statistics_are_frozen_by_default(tmp_path):
    path = saved(nested(), tmp_path)
    for asked, expected in (
        (None, layers.FrozenStatisticsBatchNormalization),
        (False, keras.layers.BatchNormalization),
    ):
        every = all_layers(models.build_backbone(path, 16, frozen_batch_norm=asked))
        norms = [type(x) for x in every if isinstance(x, keras.layers.BatchNormalization)]
        assert norms == [expected] * 2


# Refused models


def test_the_error_names_all_unregistered_classes(tmp_path):
    path = saved(net(16, Unregistered(), Another(), keras.layers.ReLU()), tmp_path)
    message = (
        "mine.keras must have only registered custom classes, but got Another, Unregistered. "
        "Decorate them .*import_modules"
    )
    with pytest.raises(ValueError, match=message):
        models.build_backbone(path, 16)
    with keras.saving.custom_object_scope({"Unregistered": Unregistered, "Another": Another}):
        assert models.build_backbone(path, 16).output_shape == (None, 7, 7, 4)


def test_code_runs_only_if_trusted(tmp_path):
    path = saved(net(16, keras.layers.Lambda(lambda x: x * 3.0, name="thrice")), tmp_path)
    with pytest.raises(ValueError, match="Lambda layers.* thrice. .*Python code.* trust_code"):
        models.build_backbone(path, 16)
    backbone = models.build_backbone(path, 16, trust_code=True)
    plain = keras.Model(backbone.input, backbone.get_layer("projection").output)
    np.testing.assert_allclose(backbone(images()), 3 * plain(images()), rtol=1e-5)
    # Keras' safe mode is on again for the next file.
    with pytest.raises(ValueError, match="trust_code"):
        models.load_keras_file(path)


def of_two_inputs():
    pair = [keras.Input((16, 16, 3)), keras.Input((16, 16, 3))]
    return keras.Model(pair, keras.layers.Add()(pair))


@pytest.mark.parametrize(
    ("make", "size", "message"),
    [
        (net, 32, r"image_size=32, but got .* shape \(None, 16, 16, 3\)"),
        (of_two_inputs, 16, "does not take images .* expects 2"),
        (lambda: keras.Sequential([keras.Input((4,)), keras.layers.Dense(2)]), 16, r"\(None, 4\)"),
    ],
)
def test_models_with_other_inputs_are_refused(make, size, message, tmp_path):
    with pytest.raises(ValueError, match=f"mine.keras .*{message}"):
        models.build_backbone(saved(make(), tmp_path), size)


def test_invalid_files(tmp_path):
    (tmp_path / "noise.keras").write_bytes(b"noise")
    of_two_inputs().save(tmp_path / "flipped.keras")
    flipped = bytearray((tmp_path / "flipped.keras").read_bytes())
    with zipfile.ZipFile(tmp_path / "flipped.keras") as archive:
        weights = archive.getinfo("model.weights.h5")
    flipped[weights.header_offset + weights.compress_size // 2 + 100] ^= 1
    (tmp_path / "flipped.keras").write_bytes(flipped)
    with_configuration(tmp_path / "other.keras", {"class_name": "Nothing", "config": {}})
    for name, message in (
        ("gone", "No such file: .*gone.keras"),
        ("noise", "noise.keras is not a readable .keras file"),
        ("flipped", "flipped.keras is damaged: model.weights.h5 in it"),
        ("other", "other.keras cannot be loaded"),
    ):
        with pytest.raises(ValueError, match=message):
            models.build_backbone(str(tmp_path / f"{name}.keras"), 16)


def with_configuration(path, config):
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("config.json", json.dumps(config))


def test_weights_cannot_be_set_for_a_saved_model(tmp_path):
    path = saved(net(), tmp_path)
    for weights in ("none", "packaged", "w.h5"):
        with pytest.raises(ValueError, match=f"weights must be left out .* but got '{weights}'"):
            models.build_backbone(path, 16, weights=weights)
    with pytest.raises(ValueError, match="filters must be None except for small_convnet"):
        models.build_backbone(path, 16, filters=(8,))


def test_a_kerashub_file_without_kerashub_names_the_extra(tmp_path, monkeypatch):
    layer = {"module": "keras_hub.src.models.x", "class_name": "X", "config": {},
             "registered_name": "keras_hub>X"}  # fmt: skip
    with_configuration(tmp_path / "hub.keras", {"class_name": "F", "config": {"layers": [layer]}})
    monkeypatch.setitem(sys.modules, "keras_hub", None)
    for name in (str(tmp_path / "hub.keras"), "hub:dinov2_base"):
        with pytest.raises(MissingExtraError, match=r"keras_hub.*: pip install 'keras-dml\[hub"):
            models.build_backbone(name, 16)
