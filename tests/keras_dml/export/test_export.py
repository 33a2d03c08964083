import os
import textwrap

import keras
import numpy as np
import pytest
import tensorflow as tf
from processes import run_python

from keras_dml.export import export_saved_model

SIZE = 16


@keras.saving.register_keras_serializable("test_export")
class Doubled(keras.layers.Layer):
    """A layer that creates another layer, which has the global dtype policy."""

    def __init__(self, units, **kwargs):
        super().__init__(**kwargs)
        self.units = units
        self.inner = keras.layers.Dense(units, name="inner")

    def build(self, input_shape):
        self.inner.build(input_shape)

    def call(self, inputs):
        return self.inner(inputs) * 2

    def get_config(self):
        return {**super().get_config(), "units": self.units}


class Unregistered(Doubled):
    pass


def nested_model():
    inputs = keras.Input((None, None, 3))
    features = keras.layers.Rescaling(1 / 127.5, offset=-1)(inputs)
    features = keras.layers.Conv2D(4, 3, strides=2, name="first")(features)
    features = keras.layers.BatchNormalization(name="norm")(features)
    backbone = keras.Model(inputs, keras.ops.relu(features), name="backbone")
    layers = [keras.layers.GlobalAveragePooling2D(), keras.layers.Dropout(0.5)]
    layers += [Doubled(8, name="doubled"), Unregistered(8, name="unregistered")]
    head = keras.Sequential([keras.Input((None, None, 4)), *layers], name="head")
    inputs = keras.Input((SIZE, SIZE, 3), name="images")
    outputs = keras.layers.Dense(5, name="embedding")(head(backbone(inputs)))
    model = keras.Model(inputs, outputs, name="whole")
    generator = np.random.default_rng(0)
    model.set_weights([generator.uniform(0.1, 1, w.shape) for w in model.get_weights()])
    return model


def images(n=6, size=SIZE):
    return np.random.default_rng(1).uniform(0, 255, (n, size, size, 3)).astype(np.float32)


def encoded(n=3):
    pixels = images(n, SIZE).astype(np.uint8)
    return [tf.io.encode_png(image).numpy() for image in pixels]


def preprocessing(data):
    image = tf.io.decode_image(data, channels=3, expand_animations=False)
    image = tf.image.resize(tf.cast(image, tf.float32), [SIZE, SIZE])
    if tf.shape(image)[0] > 4096:  # AutoGraph must convert this branch
        image = image * 0.0
    return tf.ensure_shape(image, [SIZE, SIZE, 3])


@pytest.mark.slow
def test_a_mirrored_model_in_mixed_precision_is_copied_and_exported_in_float32(tmp_path):
    code = """
        import sys, numpy as np, tensorflow as tf, keras
        tf.config.set_logical_device_configuration(
            tf.config.list_physical_devices("CPU")[0],
            [tf.config.LogicalDeviceConfiguration()] * 2)
        from keras_dml.export import export_saved_model, float32_copy
        keras.config.set_dtype_policy("mixed_bfloat16")
        with tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"]).scope():
            model = keras.Sequential([
                keras.Input((4, 4, 3)), keras.layers.BatchNormalization(),
                keras.layers.Flatten(), keras.layers.Dense(2)])
            model.compile("sgd", "mse")
        x = np.random.default_rng(0).normal(3, 2, (8, 4, 4, 3)).astype("float32")
        model.fit(x, np.zeros((8, 2)), batch_size=4, epochs=2, verbose=0)
        copy = float32_copy(model)
        assert not any(isinstance(w.value, tf.distribute.DistributedValues) for w in copy.weights)
        for a, b in zip(copy.get_weights(), model.get_weights()):
            np.testing.assert_array_equal(a, b)
        export_saved_model(model, sys.argv[1], lambda data: tf.ensure_shape(
            tf.cast(tf.io.decode_png(data, channels=3), tf.float32), [4, 4, 3]))
        loaded = tf.saved_model.load(sys.argv[1])
        served = loaded.signatures["embed_images"](tf.constant(x))["embeddings"]
        np.testing.assert_allclose(served, copy.predict(x, verbose=0), rtol=1e-5, atol=1e-5)
        gamma, beta, kernel, bias, mean, variance = (w.numpy() for w in (
            *copy.trainable_weights, *copy.non_trainable_weights))
        expected = ((x - mean) / np.sqrt(variance + 1e-3) * gamma + beta).reshape(8, -1)
        np.testing.assert_allclose(
            copy.predict(x, verbose=0), expected @ kernel + bias, rtol=1e-4, atol=1e-4)
        """
    run_python("-c", textwrap.dedent(code), tmp_path / "saved_model")
    assert (tmp_path / "saved_model" / "saved_model.pb").is_file()


@pytest.mark.slow
def test_the_saved_model_embeds_files_in_a_process_with_only_tensorflow(tmp_path, capfd):
    model = nested_model()
    export_saved_model(model, tmp_path / "saved_model", preprocessing)
    assert capfd.readouterr().out == ""
    data = encoded()
    for number, one in enumerate(data):
        (tmp_path / f"{number}.png").write_bytes(one)
    code = """
        import sys, numpy as np, tensorflow as tf
        folder = sys.argv[1]
        serve = tf.saved_model.load(folder + "/saved_model").signatures["serving_default"]
        data = [open(f"{folder}/{i}.png", "rb").read() for i in range(3)]
        results = [serve(images=tf.constant(batch, tf.string))["embeddings"].numpy()
                   for batch in (data, data[:1])]
        try:
            serve(images=tf.constant([data[0], b"no image"]))
        except tf.errors.InvalidArgumentError:
            results.append(serve(tf.constant(data))["embeddings"].numpy())
        assert not {"keras_dml", "pipelines"} & set(sys.modules)
        np.savez(folder + "/results.npz", *results)
        """
    run_python("-c", textwrap.dedent(code), tmp_path)
    expected = model.predict(np.stack([preprocessing(one) for one in data]), verbose=0)
    with np.load(tmp_path / "results.npz") as results:
        whole, single, after_error = (results[f"arr_{i}"] for i in range(3))
    assert whole.dtype == np.float32
    assert np.abs(expected).max() > 0.1
    np.testing.assert_allclose(whole, expected, atol=1e-4)
    np.testing.assert_allclose(single, expected[:1], atol=1e-4)
    np.testing.assert_array_equal(after_error, whole)


def served(path):
    loaded = tf.saved_model.load(path)  # a reference keeps the variables alive
    return loaded.serving_default(tf.constant(encoded()))["embeddings"].numpy()


def test_a_failed_export_leaves_the_old_one(tmp_path, monkeypatch):
    model = nested_model()
    target = tmp_path / "saved_model"
    export_saved_model(model, target, preprocessing)
    rename = os.rename

    def failing(source, destination):
        if str(source).endswith(".partial"):
            raise OSError("disk full")
        rename(source, destination)

    monkeypatch.setattr(os, "rename", failing)
    with pytest.raises(OSError, match="disk full"):
        export_saved_model(model, target, preprocessing)
    assert [entry.name for entry in tmp_path.iterdir()] == ["saved_model"]
    assert served(target).shape == (3, 5)


def test_export_refuses_models_that_it_cannot_serve(tmp_path):
    model = nested_model()
    with pytest.raises(ValueError, match="path must be in an existing folder"):
        export_saved_model(model, tmp_path / "missing" / "saved_model", preprocessing)
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "mine.jpg").write_bytes(b"precious")
    with pytest.raises(ValueError, match="path must be a new folder, or a SavedModel"):
        export_saved_model(model, tmp_path / "photos", preprocessing)
    with pytest.raises(TypeError, match="preprocessing must be a function"):
        export_saved_model(model, tmp_path / "new", None)
    with pytest.raises(ValueError, match=r"preprocessing must return .*\(16, 16, 3\)"):
        export_saved_model(model, tmp_path / "new", lambda data: tf.zeros([8, 8, 3]))
    with pytest.raises(ValueError, match=r"model's input, float32"):
        export_saved_model(model, tmp_path / "new", lambda data: tf.zeros([16, 16, 3], tf.uint8))
    with pytest.raises(ValueError, match=r"output shape \(None, 7, 7, 4\)"):
        inner = keras.Model(model.input, model.get_layer("backbone")(model.input))
        export_saved_model(inner, tmp_path / "new", preprocessing)
    with pytest.raises(ValueError, match=r"input shape \(None, 4\)"):
        flat = keras.Sequential([keras.Input((4,)), keras.layers.Dense(2)])
        export_saved_model(flat, tmp_path / "new", preprocessing)
    with pytest.raises(ValueError, match="functional or sequential"):
        export_saved_model(keras.layers.Dense(2), tmp_path / "new", preprocessing)
    assert [entry.name for entry in tmp_path.iterdir()] == ["photos"]


@pytest.mark.parametrize("shape", [(SIZE, SIZE, 3), (None, None, 3)])
def test_signatures_take_empty_batches_and_refuse_other_sizes(shape, tmp_path):
    inputs = keras.Input(shape)
    outputs = keras.layers.Dense(5)(keras.layers.GlobalAveragePooling2D()(inputs))
    export_saved_model(keras.Model(inputs, outputs), tmp_path / "model", preprocessing)
    loaded = tf.saved_model.load(str(tmp_path / "model"))
    embed = loaded.signatures["embed_images"]
    for count in (0, 2):
        assert embed(images=images(count))["embeddings"].shape == (count, 5)
    for size in (SIZE - 1, SIZE + 1, 1):
        with pytest.raises(tf.errors.InvalidArgumentError, match="is not compatible with expected"):
            embed(images=tf.constant(images(2, size)))
    none = loaded.signatures["serving_default"](tf.constant([], tf.string))
    assert none["embeddings"].shape == (0, 5)
