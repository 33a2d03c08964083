"""Copies of models (frozen statistics, float32, SavedModel) compute the same as the original."""

from functools import partial

import keras
import numpy as np
import pytest
import tensorflow as tf
from backend import compiled
from batches import functional, images

from keras_dml import models
from keras_dml._backend.cloning import all_layers
from keras_dml.export import export_saved_model
from keras_dml.export.float32 import float32_copy, is_float32

# The smallest model of each family in keras.applications, and its smallest image size.
FAMILIES = {
    "ConvNeXtTiny": 32,
    "DenseNet121": 32,
    "EfficientNetB0": 32,
    "EfficientNetV2B0": 32,
    "InceptionResNetV2": 75,
    "InceptionV3": 75,
    "MobileNet": 32,
    "MobileNetV2": 32,
    "MobileNetV3Small": 32,
    "NASNetMobile": 32,
    "ResNet50": 32,
    "ResNet50V2": 32,
    "VGG16": 32,
    "Xception": 71,
}


def set_statistics(model, x=None):
    """Set asymmetric statistics: the statistics of `x` in the net, if set, with random errors."""
    rng = np.random.default_rng(0)
    layers = all_layers(model)
    norms = [each for each in layers if isinstance(each, keras.layers.BatchNormalization)]
    if x is not None:
        for layer in norms:
            layer.momentum = 0.0
        model(x, training=True)
    for layer in norms:
        mean, variance = layer.moving_mean.numpy(), layer.moving_variance.numpy() + 1e-2
        layer.moving_mean.assign(mean + rng.normal(0, 0.2, mean.shape) * np.sqrt(variance))
        layer.moving_variance.assign(variance * rng.uniform(0.5, 1.5, mean.shape))
    for layer in layers:
        if isinstance(layer, keras.layers.Normalization) and layer.input_mean is None:
            layer.adapt_mean.assign(rng.uniform(0.2, 0.7, layer.adapt_mean.shape))
            layer.adapt_variance.assign(rng.uniform(0.02, 0.4, layer.adapt_variance.shape))
            layer.finalize_state()
    return model


def embed(model, x, training=False):
    return np.asarray(keras.ops.cast(model(x, training=training), "float32"))


def check(found, expected):
    scale = np.abs(expected).max()
    assert scale > 0
    np.testing.assert_allclose(found / scale, expected / scale, atol=2e-5)


def served(model, folder, x):
    def preprocessing(data):
        image = tf.io.decode_png(data, channels=3)
        return tf.ensure_shape(tf.cast(image, tf.float32), model.input_shape[1:])

    export_saved_model(model, folder, preprocessing)
    loaded = tf.saved_model.load(str(folder))
    return loaded.signatures["embed_images"](tf.constant(x))["embeddings"].numpy()


def application(name):
    return models.embedding_model(models.build_backbone(name, FAMILIES[name]))


@pytest.mark.thorough
@pytest.mark.slow
@pytest.mark.parametrize("name", FAMILIES)
def test_copies_of_an_application_compute_the_same(name, tmp_path):
    model, x = application(name), images(FAMILIES[name])
    set_statistics(model, images(FAMILIES[name], 8))
    expected = embed(model, x)
    # Nonzero differences show that the images and the statistics affect the embeddings.
    assert np.abs(expected[0] - expected[1]).max() > 1e-3 * np.abs(expected).max()
    frozen = models.with_frozen_statistics(model)
    check(embed(frozen, x), expected)
    # A graph fuses convolutions and the next layers, as the served models do.
    in_graph = compiled(lambda x: model(x, training=False))(x).numpy()
    check(served(frozen, tmp_path / "frozen", x), in_graph)
    check(embed(float32_copy(model), x), expected)
    keras.config.set_dtype_policy("mixed_bfloat16")
    mixed = application(name)
    keras.config.set_dtype_policy("float32")
    mixed.set_weights(model.get_weights())
    for layer in all_layers(mixed):
        if isinstance(layer, keras.layers.Normalization):
            layer.finalize_state()
    assert not is_float32(mixed)
    check(embed(float32_copy(mixed), x), expected)
    check(served(mixed, tmp_path / "mixed", x), in_graph)


# Adapted layers


def adapted(mean=None):
    """Put a `Normalization` into three nested models, functional and sequential in turn."""
    given = {} if mean is None else {"mean": mean, "variance": [4.0, 9.0, 16.0]}
    model = keras.Sequential([keras.layers.Normalization(**given), keras.layers.Flatten()])
    model = keras.Sequential([functional((4, 4, 3), model), keras.layers.Dense(4)])
    return set_statistics(functional((4, 4, 3), functional((4, 4, 3), model)))


@pytest.mark.parametrize(
    ("copy", "mean"), [(models.with_frozen_statistics, None), (float32_copy, [100.0, 50.0, 10.0])]
)
def test_an_adapted_normalization_is_copied_three_models_deep(copy, mean, tmp_path):
    model = adapted(mean)
    expected = embed(model, images(4))
    model.save(tmp_path / "model.keras")
    copy(model).save(tmp_path / "copy.keras")
    loaded, loaded_copy = (
        keras.saving.load_model(tmp_path / name) for name in ("model.keras", "copy.keras")
    )
    for other in (copy(model), copy(copy(model)), copy(loaded), loaded_copy):
        check(embed(other, images(4)), expected)


def test_an_adapted_lookup_layer_keeps_its_vocabulary():
    words = keras.layers.StringLookup()
    words.adapt(["dog", "cat", "dog"])
    inputs = keras.Input((1,), dtype="string")
    model = keras.Model(inputs, words(inputs))
    x = tf.constant([["cat"], ["dog"], ["bird"]])
    np.testing.assert_array_equal(models.with_frozen_statistics(model)(x), [[2], [1], [0]])


def test_a_shared_layer_and_several_outputs_are_copied_once():
    shared = keras.layers.Dense(3, name="shared")
    norm = keras.layers.BatchNormalization(name="norm")
    nested = functional((3,), shared, norm, name="nested")
    inputs = {"a": keras.Input((3,), name="a"), "b": keras.Input((3,), name="b")}
    outputs = {"x": nested(shared(inputs["a"])), "y": nested(inputs["b"]) + 1}
    model = set_statistics(keras.Model(inputs, outputs))
    x = {name: np.random.default_rng(0).normal(size=(4, 3)) for name in "ab"}
    expected = model(x, training=False)
    for copy in (models.with_frozen_statistics(model), float32_copy(model)):
        assert len(copy.weights) == len(model.weights) == 6
        for name, values in copy(x, training=False).items():
            np.testing.assert_allclose(values, expected[name], rtol=1e-6)


def test_frozen_layers_stay_frozen_in_the_copy():
    inner = models.small_convnet(16, filters=(4,))
    inner.trainable = False
    inner.get_layer("stage1_conv1").trainable = True
    model = functional((16, 16, 3), inner, keras.layers.Conv2D(2, 1))
    for copy in (models.with_frozen_statistics(model), float32_copy(model)):
        trainable = [layer.trainable for layer in all_layers(copy)]
        assert trainable == [layer.trainable for layer in all_layers(model)]


# Float32 copies


def three_deep():
    model = keras.Sequential([keras.layers.Flatten(), keras.layers.Dense(8)])
    for _ in range(3):
        model = keras.Sequential([model, keras.layers.Dense(8)])
        model.compile("sgd", loss=lambda y, x: keras.ops.mean(x))  # cannot be serialized
    return functional((4, 4, 3), model)


class Constructed(keras.Model):
    """A subclass with a functional constructor, whose config does not include its layers."""

    def __init__(self, **kwargs):
        inputs = keras.Input((4, 4, 3))
        features = keras.layers.Flatten()(inputs)
        super().__init__(inputs, keras.layers.Dense(8)(features), **kwargs)

    def get_config(self):
        return {}


def of_intermediate_tensors():
    inputs = keras.Input((4, 4, 3))
    features = keras.layers.Flatten()(keras.layers.Conv2D(4, 1)(inputs))
    head = keras.Model(features, keras.layers.Dense(8)(features))
    return keras.Model(inputs, head(features))


@pytest.mark.slow
@pytest.mark.parametrize("make", [three_deep, Constructed, of_intermediate_tensors])
def test_a_mixed_model_is_copied_and_served_in_float32(make, tmp_path):
    reference = make()
    keras.config.set_dtype_policy("mixed_bfloat16")
    model = make()
    keras.config.set_dtype_policy("float32")
    rng = np.random.default_rng(0)
    model.set_weights([rng.uniform(0.1, 1, w.shape) for w in model.get_weights()])
    reference.set_weights(model.get_weights())
    x = images(4)
    expected = embed(reference, x)
    assert not is_float32(model) and is_float32(reference)
    copy = float32_copy(model)
    assert is_float32(copy)
    np.testing.assert_allclose(embed(copy, x), expected, rtol=1e-6)
    np.testing.assert_allclose(served(model, tmp_path / "served", x), expected, rtol=1e-6)
    assert np.abs(embed(model, x) - expected).max() > 1e-4 * expected.max()


# Copies with frozen statistics


def test_a_frozen_batch_norm_of_an_unbuilt_model_keeps_its_statistics(tmp_path):
    frozen = models.with_frozen_statistics(keras.Sequential([keras.layers.BatchNormalization()]))
    frozen.build((None, 4, 4, 3))
    set_statistics(frozen)
    assert frozen.trainable_variables == frozen.weights[:2]  # scale and offset
    expected, before = embed(frozen, images(4)), frozen.get_weights()
    check(embed(frozen, images(4), training=True), expected)
    for kept, was in zip(frozen.get_weights(), before, strict=True):
        np.testing.assert_array_equal(kept, was)
    frozen.save(tmp_path / "frozen.keras")
    loaded = keras.saving.load_model(tmp_path / "frozen.keras")
    check(embed(loaded, images(4), training=True), expected)


# Lambdas


def test_a_lambda_of_python_code_is_copied_with_its_function():
    def unit(x):
        return keras.ops.normalize(x, axis=-1)

    x = np.random.default_rng(0).normal(size=(4, 3)).astype("float32")
    expected = x / np.linalg.norm(x, axis=1, keepdims=True)
    copy = float32_copy(functional((3,), keras.layers.Lambda(unit, dtype="mixed_bfloat16")))
    np.testing.assert_allclose(copy(x), expected, rtol=1e-6)


# Layers that cannot be copied


def wrapping(base, make):
    """Return a class of layers or models that create another layer."""

    class Wrapping(base):
        def __init__(self, **kwargs):
            super().__init__(**kwargs)
            self.inner = make()

        def call(self, x):
            return self.inner(x)

    return Wrapping


def half_dense():
    return keras.layers.Dense(2, dtype="mixed_bfloat16", name="dense")


def inner_norm():
    return keras.layers.BatchNormalization(name="inner_norm")


Stubborn = wrapping(keras.layers.Layer, half_dense)
Block = wrapping(keras.layers.Layer, inner_norm)
Subclassed = wrapping(keras.Model, inner_norm)


class OwnNorm(keras.layers.BatchNormalization):
    pass


class Foreign(keras.layers.Layer):
    def build(self, shape):
        self.moving_mean = self.add_weight(shape=shape[-1:], trainable=False, name="mean")

    def call(self, x):
        return x - self.moving_mean


class NoConfig(keras.layers.Layer):
    def __init__(self, table, **kwargs):
        super().__init__(**kwargs)
        self.table = table

    def call(self, x):
        return x * self.table[0]


def in_a_wrapper(name):
    return keras.layers.TimeDistributed(inner_norm(), name=name)


def capturing(name):
    kernel = keras.Variable(np.eye(3))
    return keras.layers.Lambda(lambda x: keras.ops.matmul(x, kernel), name=name)


FROZEN = models.with_frozen_statistics


@pytest.mark.parametrize(
    ("copy", "layer", "message"),
    [
        (FROZEN, OwnNorm, r"can be frozen, but got .*mine \(OwnNorm\)"),
        (FROZEN, Block, r"can be frozen, but got .*inner_norm \(BatchNormalization\)"),
        (FROZEN, Subclassed, r"can be frozen, but got .*inner_norm \(BatchNormalization\)"),
        (FROZEN, Foreign, r"can be frozen, but got .*mine \(Foreign\)"),
        (FROZEN, in_a_wrapper, r"can be frozen, but got .*inner_norm \(BatchNormalization\)"),
        (float32_copy, capturing, r"'mine' \(Lambda\) cannot .*: its Python code.*get_config"),
        (float32_copy, partial(NoConfig, np.ones(2)), r"'mine' \(NoConfig\) cannot .*get_config"),
        (float32_copy, Stubborn, r"mine/dense.*\(Dense\), which is bfloat16"),
    ],
)
def test_a_layer_that_cannot_be_copied_is_named(copy, layer, message):
    inner = functional((4, 4, 3), layer(name="mine"))
    model = keras.Sequential([keras.Input((4, 4, 3)), inner])
    assert is_float32(model) == (layer is not Stubborn)
    with pytest.raises(ValueError, match=message):
        copy(model)


def test_a_model_of_unknown_layers_has_no_frozen_copy():
    with pytest.raises(ValueError, match="model must be a functional or sequential"):
        models.with_frozen_statistics(Subclassed())
