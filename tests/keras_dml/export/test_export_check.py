"""Models that cannot be served are refused before the training; addons' losses in SavedModels."""

import random

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_dml.export import check_export, export_saved_model

SIZE = 8


def preprocessing(data):
    return tf.ensure_shape(tf.cast(tf.io.decode_png(data, channels=3), tf.float32), [SIZE, SIZE, 3])


def named(layer="conv", model="outer", nested="inner"):
    images = keras.Input((SIZE, SIZE, 3), name="images")
    maps = keras.layers.Conv2D(2, 3, name=layer)(images)
    maps = keras.layers.Dropout(0.5, name=f"{layer}_drop")(maps)
    inside = keras.Input((6, 6, 2))
    maps = keras.Model(inside, keras.layers.Conv2D(2, 1, name=layer)(inside), name=nested)(maps)
    return keras.Model(images, keras.layers.GlobalAveragePooling2D()(maps), name=model)


@pytest.mark.parametrize("name", ["a b", "_outer"])
def test_the_name_of_the_model_does_not_matter(name, tmp_path):
    model = named(model=name)
    x = np.random.default_rng(0).uniform(0, 255, (3, SIZE, SIZE, 3)).astype("float32")
    check_export(model, preprocessing)
    export_saved_model(model, tmp_path / "served", preprocessing)
    loaded = tf.saved_model.load(str(tmp_path / "served"))
    found = loaded.signatures["embed_images"](tf.constant(x))["embeddings"]
    np.testing.assert_allclose(found, model(x), rtol=1e-5, atol=1e-4)
    assert model.name == name


@pytest.mark.parametrize(
    ("names", "message"),
    [
        ({"layer": "a b"}, "letters, digits.* but got 'a b'"),
        ({"layer": "größe"}, "letters, digits.* but got 'größe'"),
        ({"layer": "_conv"}, "begin with a letter or digit, but got '_conv'"),
        ({"nested": "_inner"}, "begin with a letter or digit, but got '_inner'"),
    ],
)
def test_names_that_tensorflow_refuses_are_reported(names, message, tmp_path):
    model = named(**names)
    with pytest.raises(ValueError, match=message):
        check_export(model, preprocessing)
    with pytest.raises(ValueError, match=message):
        export_saved_model(model, tmp_path / "served", preprocessing)
    assert not list(tmp_path.iterdir())


def test_the_check_draws_no_random_numbers():
    keras.config.set_dtype_policy("mixed_bfloat16")  # its copy has initializers
    model = named()
    keras.config.set_dtype_policy("float32")

    def drawn(check):
        keras.utils.set_random_seed(3)
        if check:
            check_export(model, preprocessing)
        dense = keras.layers.Dense(4)
        dense.build((None, 4))
        return [
            random.random(),
            np.random.uniform(),
            float(tf.random.uniform(())),
            *dense.kernel.numpy().ravel(),
            *keras.random.normal((2,)).numpy(),
        ]

    np.testing.assert_array_equal(drawn(True), drawn(False))
