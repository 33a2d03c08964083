"""Each format computes the Keras model's embeddings, and a comparison measures the difference."""

import contextlib
import importlib
import pathlib
import sys
import warnings

import keras
import numpy as np
import pytest
import tensorflow as tf

from experiments.exporting import formats
from experiments.exporting.exported_run import compare
from experiments.exporting.formats import FORMATS, Source, check_packages
from experiments.options import UsageError
from keras_dml._common.extras import MissingExtraError
from keras_dml.models.backbones import build_backbone

IMAGES = np.random.default_rng(0).uniform(0, 255, (6, 16, 16, 3)).astype(np.float32)


def model(*more):
    keras.utils.set_random_seed(0)
    backbone = build_backbone("small_convnet", 16, weights=None, filters=(8, 16))
    inputs = keras.Input((16, 16, 3))
    outputs = keras.layers.GlobalAveragePooling2D()(backbone(inputs))
    for layer in more:
        outputs = layer(outputs)
    return keras.Model(inputs, keras.layers.Dense(5)(outputs))


def decoded(image):
    return tf.ensure_shape(tf.cast(tf.io.decode_png(image, 3), tf.float32), [16, 16, 3])


def exported(name, folder):
    """Export a model. Return its embeddings of `IMAGES`, and the function of the export."""
    format, source = FORMATS[name], Source(model(), decoded)
    for package in format.packages:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            pytest.importorskip(package, exc_type=ImportError)
    formats.write(name, format, source, folder / format.file)
    return source.model(IMAGES, training=False).numpy(), format.load(folder / format.file)


@pytest.mark.slow
@pytest.mark.parametrize("name", list(FORMATS))
def test_embeddings_equal_the_keras_model(name, tmp_path, capfd, monkeypatch):
    format, (expected, answer) = FORMATS[name], exported(name, tmp_path)
    for count in (6, 1):
        np.testing.assert_allclose(answer(IMAGES[:count]), expected[:count], rtol=0, atol=2e-5)
    assert "".join(capfd.readouterr()) == ""
    if name == "litert":  # no TensorFlow operations
        assert b"Flex" not in (tmp_path / format.file).read_bytes()
    # The model card's example runs unchanged.
    monkeypatch.chdir(tmp_path)
    words = {"tf": tf, "np": np, "images": IMAGES}
    words |= {package: importlib.import_module(package) for package in format.packages}
    if name == "litert":
        words["Interpreter"] = words.pop("ai_edge_litert.interpreter").Interpreter
    exec(format.example, words)
    np.testing.assert_allclose(words["embeddings"], expected, rtol=0, atol=0.05)


def test_the_unsupported_layer_is_identified():
    class Refusing(keras.layers.Layer):
        def call(self, vectors):
            return 2 * vectors

    def write(source, path):
        if any(isinstance(layer, Refusing) for layer in source.model.layers):
            raise RuntimeError("of a converter")

    format = FORMATS["onnx"]._replace(write=write, load=lambda path: None)
    formats.write("onnx", format, Source(model(), decoded), pathlib.Path("nowhere"))
    source = Source(model(keras.layers.Dense(4), Refusing(name="mine")), decoded)
    with pytest.raises(UsageError, match=r"onnx does not have the layer 'mine' \(Refusing\)"):
        formats.write("onnx", format, source, pathlib.Path("nowhere"))

    def full(source, path):
        raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space"):
        formats.write("onnx", format._replace(write=full), source, pathlib.Path("nowhere"))


@pytest.mark.parametrize("name", ["onnx", "openvino", "litert"])
def test_a_missing_package_names_its_extra(name, monkeypatch):
    monkeypatch.setitem(sys.modules, FORMATS[name].packages[0], None)
    with pytest.raises(MissingExtraError, match=rf"format={name} needs \w+.*keras-dml\[{name}\]'"):
        check_packages(name)


def test_openvino_telemetry_is_disabled():
    with contextlib.suppress(MissingExtraError):
        check_packages("openvino")
    with pytest.raises(ImportError):
        importlib.import_module("openvino_telemetry")


def test_numbers_of_a_comparison():
    of_keras = np.array([[3, 4], [3, 4.1], [-5, 0], [-5, 0.1]], np.float32)
    of_export = of_keras.copy()
    of_export[0] = [-5, 0.5]
    labels = np.array([0, 0, 1, 1])
    found = compare({"test": of_export}, {"test": of_keras}, {"test": labels}, [1, 3], 7, 2.5)
    assert found.difference == 8 and (found.bytes, found.milliseconds) == (7, 2.5)
    assert found.length == pytest.approx(np.linalg.norm(of_keras, axis=1).mean())
    assert found.similarity == pytest.approx((-15 + 2) / (5 * np.hypot(5, 0.5)))
    assert found.keras_recalls == {1: 1.0, 3: 1.0}
    assert found.recalls[1] < 1 and found.recalls[3] == 1


def test_a_gallery_is_searched():
    queries = np.eye(2, dtype=np.float32)
    labels = np.array([0, 1])
    both = {"test": queries, "gallery": queries[::-1].copy()}
    same = {"test": queries, "gallery": queries}
    found = compare(both, same, {"test": labels, "gallery": labels}, [1], 0, 0.0)
    assert (found.recalls[1], found.keras_recalls[1]) == (0.0, 1.0)
