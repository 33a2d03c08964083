"""Models that cannot be served are refused before the training; addons' losses in SavedModels."""

import json
import random
import textwrap

import keras
import numpy as np
import pytest
import tensorflow as tf
import tiers
from processes import run_python

from keras_dml.export import check_export, export_saved_model

SIZE = 8


def preprocessing(data):
    return tf.ensure_shape(tf.cast(tf.io.decode_png(data, channels=3), tf.float32), [SIZE, SIZE, 3])


def named(layer="conv", model="outer", inputs="images", nested="inner"):
    images = keras.Input((SIZE, SIZE, 3), name=inputs)
    maps = keras.layers.Conv2D(2, 3, name=layer)(images)
    maps = keras.layers.Dropout(0.5, name=f"{layer}_drop")(maps)
    inside = keras.Input((6, 6, 2))
    maps = keras.Model(inside, keras.layers.Conv2D(2, 1, name=layer)(inside), name=nested)(maps)
    return keras.Model(images, keras.layers.GlobalAveragePooling2D()(maps), name=model)


@tiers.parametrize("half", ["float32", "mixed_bfloat16"], ["float32"])
@pytest.mark.parametrize(
    "names",
    [
        {"layer": "-conv"},
        {"model": "a b"},
        {"layer": "_conv", "model": "_outer", "inputs": "_images"},
    ],
    ids=str,
)
def test_names_that_are_valid_inner_scopes_are_served(names, half, tmp_path):
    keras.config.set_dtype_policy(half)
    try:
        model = named(**names)
    finally:
        keras.config.set_dtype_policy("float32")
    reference = named()
    reference.set_weights(model.get_weights())
    x = np.random.default_rng(0).uniform(0, 255, (3, SIZE, SIZE, 3)).astype("float32")
    check_export(model, preprocessing)
    export_saved_model(model, tmp_path / "served", preprocessing)
    loaded = tf.saved_model.load(str(tmp_path / "served"))
    found = loaded.signatures["embed_images"](tf.constant(x))["embeddings"]
    np.testing.assert_allclose(found, reference(x), rtol=1e-5, atol=1e-4)
    assert model.name == names.get("model", "outer")


@pytest.mark.parametrize(
    ("names", "message"),
    [
        ({"layer": "a b"}, r"letters, digits .* rename 'a b'"),
        ({"layer": "größe"}, r"letters, digits .* rename 'größe'"),
        ({"nested": "_inner"}, r"begin with a letter or digit: rename '_inner'"),
    ],
)
def test_names_that_tensorflow_refuses_are_reported(names, message, tmp_path):
    model = named(**names)
    with pytest.raises(ValueError, match=message):
        check_export(model, preprocessing)
    with pytest.raises(ValueError, match=message):
        export_saved_model(model, tmp_path / "served", preprocessing)
    assert not list(tmp_path.iterdir())


def test_the_check_refuses_the_same_models_as_the_export():
    with pytest.raises(TypeError, match="preprocessing must be a function"):
        check_export(named(), None)
    with pytest.raises(ValueError, match="preprocessing must return an image"):
        check_export(named(), lambda data: tf.zeros([4, 4, 3]))
    with pytest.raises(ValueError, match="functional or sequential"):
        check_export(keras.layers.Dense(2), preprocessing)


def test_the_check_draws_no_random_numbers():
    keras.config.set_dtype_policy("mixed_bfloat16")  # its copy has initializers
    try:
        model = named()
    finally:
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


ADDONS = """
    import json, sys
    import keras, numpy as np
    import keras_dml
    assert "scann" not in sys.modules
    model = keras.saving.load_model(sys.argv[1])
    print(json.dumps(keras.saving.serialize_keras_object(model.loss)))
"""


@pytest.mark.thorough
@pytest.mark.slow
@pytest.mark.parametrize("name", ["TripletSemiHardLoss", "triplet_hard_loss"])
def test_a_saved_model_with_a_loss_of_addons_loads_after_the_package_is_imported(name, tmp_path):
    from keras_dml import addons

    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])
    loss = getattr(addons, name)
    loss = loss(margin=0.25) if isinstance(loss, type) else loss
    model.compile("sgd", loss)
    model.save(tmp_path / "model.keras")
    said = run_python("-c", textwrap.dedent(ADDONS), tmp_path / "model.keras")
    assert name in said
    expected = json.dumps(keras.saving.serialize_keras_object(loss))
    assert json.loads(said) == json.loads(expected)
