"""Copies of models (frozen statistics, float32, SavedModel) compute the same as the original."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from batches import functional

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


def images(size, n=2):
    return np.random.default_rng(1).uniform(0, 255, (n, size, size, 3)).astype("float32")


def set_statistics(model, x=None):
    """Set asymmetric statistics: the statistics of `x` in the net, if set, with random errors."""
    rng = np.random.default_rng(0)
    layers = all_layers(model)
    norms = [each for each in layers if isinstance(each, keras.layers.BatchNormalization)]
    if x is not None:
        momenta = [layer.momentum for layer in norms]
        for layer in norms:
            layer.momentum = 0.0
        model(x, training=True)
        for layer, momentum in zip(norms, momenta):
            layer.momentum = momentum
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


def compiled(model, x):
    """Compute in a graph, which fuses convolutions and the next layers as the copies do."""
    spec = tf.TensorSpec([None, *x.shape[1:]])
    return tf.function(lambda x: model(x, training=False), [spec], autograph=False)(x).numpy()


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
    model = models.embedding_model(models.build_backbone(name, FAMILIES[name]))
    return set_statistics(model, images(FAMILIES[name], 8))


@pytest.mark.thorough
@pytest.mark.slow
@pytest.mark.parametrize("name", FAMILIES)
def test_copies_of_an_application_compute_the_same(name, tmp_path):
    model, x = application(name), images(FAMILIES[name])
    expected = embed(model, x)
    # Nonzero differences show that the images and the statistics affect the embeddings.
    assert np.abs(expected[0] - expected[1]).max() > 1e-3 * np.abs(expected).max()
    frozen = models.with_frozen_statistics(model)
    check(embed(frozen, x), expected)
    in_graph = compiled(model, x)
    check(served(frozen, tmp_path / "frozen", x), in_graph)
    check(embed(float32_copy(model), x), expected)
    keras.config.set_dtype_policy("mixed_bfloat16")
    mixed = models.embedding_model(models.build_backbone(name, FAMILIES[name]))
    keras.config.set_dtype_policy("float32")
    mixed.set_weights(model.get_weights())
    for layer in all_layers(mixed):
        if isinstance(layer, keras.layers.Normalization):
            layer.finalize_state()
    assert not is_float32(mixed)
    check(embed(float32_copy(mixed), x), expected)
    check(served(mixed, tmp_path / "mixed", x), in_graph)


# Adapted layers


def adapted(nested=3, mean=None):
    """Put a `Normalization` into `depth` nested models, sequential and functional in turn."""
    given = {} if mean is None else {"mean": mean, "variance": [4.0, 9.0, 16.0]}
    model = keras.Sequential([keras.layers.Normalization(**given), keras.layers.Flatten()])
    for level in range(nested):
        if level % 2:
            model = keras.Sequential([model, keras.layers.Dense(4)])
        else:
            inputs = keras.Input((4, 4, 3))
            model = keras.Model(inputs, model(inputs))
    return set_statistics(functional((4, 4, 3), model))


@pytest.mark.parametrize(
    ("copy", "mean"), [(models.with_frozen_statistics, None), (float32_copy, [100.0, 50.0, 10.0])]
)
def test_an_adapted_normalization_is_copied_three_models_deep(copy, mean, tmp_path):
    model = adapted(mean=mean)
    expected = embed(model, images(4))
    check(embed(copy(model), images(4)), expected)
    check(embed(copy(copy(model)), images(4)), expected)
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    check(embed(copy(loaded), images(4)), expected)
    copy(model).save(tmp_path / "copy.keras")
    check(embed(keras.saving.load_model(tmp_path / "copy.keras"), images(4)), expected)


def test_adapted_discretization_and_lookup_layers_keep_their_state():
    bins = keras.layers.Discretization(num_bins=3)
    bins.adapt(np.arange(12.0))
    model = functional((1,), bins)
    x = np.array([[0.0], [5.0], [11.0]])
    np.testing.assert_array_equal(float32_copy(model)(x), model(x))
    assert len(np.unique(model(x))) == 3
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
    model = models.small_convnet(16, filters=(4,))
    model.trainable = False
    model.layers[-1].trainable = True
    model.get_layer("stage1_conv1").trainable = True
    copy = models.with_frozen_statistics(model)
    assert [x.trainable for x in copy.layers] == [x.trainable for x in model.layers]
    assert copy.trainable is False
    model.trainable = False
    outer = functional((16, 16, 3), model, keras.layers.Conv2D(2, 1))
    paths = [v.path for v in outer.trainable_variables]
    for copy in (models.with_frozen_statistics(outer), float32_copy(outer)):
        assert [v.path for v in copy.trainable_variables] == paths


# Float32 copies


def three_deep():
    model = keras.Sequential([keras.layers.Flatten(), keras.layers.Dense(8)])
    for _ in range(3):
        model = keras.Sequential([model, keras.layers.Dense(8)])
    return functional((4, 4, 3), model)


class Constructed(keras.Model):
    """A subclass with a functional constructor, whose config does not include its layers."""

    def __init__(self, **kwargs):
        inputs = keras.Input((4, 4, 3))
        features = keras.layers.Flatten()(inputs)
        super().__init__(inputs, keras.layers.Dense(8)(features), **kwargs)

    def get_config(self):
        return {}


def compiled_within():
    inputs = keras.Input((4, 4, 3))
    inner = keras.Sequential([keras.Input((4, 4, 3)), keras.layers.Flatten()])
    inner.compile("sgd", loss=lambda y, x: keras.ops.mean(x))
    return keras.Model(inputs, keras.layers.Dense(8)(inner(inputs)))


def of_intermediate_tensors():
    inputs = keras.Input((4, 4, 3))
    features = keras.layers.Flatten()(keras.layers.Conv2D(4, 1)(inputs))
    head = keras.Model(features, keras.layers.Dense(8)(features))
    return keras.Model(inputs, head(features))


@pytest.mark.slow
@pytest.mark.parametrize(
    "make", [three_deep, Constructed, of_intermediate_tensors, compiled_within]
)
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


def wrapping(base, make):
    """Return a class of layers or models that create another layer."""

    class Wrapping(base):
        def __init__(self, **kwargs):
            super().__init__(**kwargs)
            self.inner = make()

        def build(self, shape):
            self.inner.build(shape)

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


def test_a_layer_that_cannot_compute_in_float32_is_named():
    model = keras.Sequential([keras.Input((3,)), Stubborn(name="stubborn")])
    assert not is_float32(model)
    with pytest.raises(ValueError, match=r"stubborn/dense.*\(Dense\), which is bfloat16"):
        float32_copy(model)


# Copies with frozen statistics


def synchronized():
    return functional((4, 4, 3), keras.layers.BatchNormalization(synchronized=True))


def unbuilt():
    return keras.Sequential([keras.layers.BatchNormalization()])


@pytest.mark.parametrize("make", [synchronized, unbuilt])
def test_a_frozen_batch_norm_keeps_its_statistics(make, tmp_path):
    model = make()
    frozen = models.with_frozen_statistics(model)
    x = images(4)
    if make is unbuilt:
        frozen.build(x.shape)
        model = frozen
    set_statistics(model)
    if make is not unbuilt:
        frozen = models.with_frozen_statistics(model)
    expected = embed(model, x)
    before = frozen.get_weights()
    check(embed(frozen, x, training=True), expected)
    for kept, was in zip(frozen.get_weights(), before):
        np.testing.assert_array_equal(kept, was)
    frozen.save(tmp_path / "frozen.keras")
    loaded = keras.saving.load_model(tmp_path / "frozen.keras")
    check(embed(loaded, x, training=True), expected)


class OwnNorm(keras.layers.BatchNormalization):
    pass


class Foreign(keras.layers.Layer):
    def build(self, shape):
        self.moving_mean = self.add_weight(shape=shape[-1:], trainable=False, name="mean")

    def call(self, x):
        return x - self.moving_mean


def in_a_wrapper(name):
    return keras.layers.TimeDistributed(inner_norm(), name=name)


@pytest.mark.parametrize(
    ("layer", "named"),
    [
        (OwnNorm, r"mine \(OwnNorm\)"),
        (Block, r"inner_norm \(BatchNormalization\)"),
        (Subclassed, r"inner_norm \(BatchNormalization\)"),
        (Foreign, r"mine \(Foreign\)"),
        (in_a_wrapper, r"inner_norm \(BatchNormalization\)"),
    ],
)
def test_a_batch_norm_that_would_stay_live_is_named(layer, named):
    model = functional((4, 4, 3), layer(name="mine"))
    model = keras.Sequential([keras.Input((4, 4, 3)), model])
    with pytest.raises(ValueError, match=rf"can be frozen, but got .*{named}"):
        models.with_frozen_statistics(model)


def test_a_model_of_unknown_layers_has_no_frozen_copy():
    with pytest.raises(ValueError, match="model must be a functional or sequential"):
        models.with_frozen_statistics(Subclassed())


# Layers that cannot be copied


def lambda_model(function, policy=None):
    return functional((3,), keras.layers.Lambda(function, name="code", dtype=policy))


def unit(x):
    return keras.ops.normalize(x, axis=-1)


@pytest.mark.parametrize("function", [unit, lambda x: keras.ops.normalize(x, axis=-1)])
def test_a_lambda_of_python_code_is_copied_with_its_function(function):
    x = np.random.default_rng(0).normal(size=(4, 3)).astype("float32")
    expected = x / np.linalg.norm(x, axis=1, keepdims=True)
    model = lambda_model(function, "mixed_bfloat16")
    np.testing.assert_allclose(float32_copy(model)(x), expected, rtol=1e-6)
    frozen = models.with_frozen_statistics(lambda_model(function))
    np.testing.assert_allclose(frozen(x), expected, rtol=1e-6)


def test_a_lambda_with_captured_variables_is_refused_by_name():
    kernel = keras.Variable(np.eye(3))
    model = lambda_model(lambda x: keras.ops.matmul(x, kernel))
    message = r"'code' \(Lambda\) cannot be copied: its Python code.*Layer with get_config"
    for copy in (models.with_frozen_statistics, float32_copy):
        with pytest.raises(ValueError, match=message):
            copy(model)


class NoConfig(keras.layers.Layer):
    def __init__(self, table, **kwargs):
        super().__init__(**kwargs)
        self.table = table

    def call(self, x):
        return x * self.table[0]


def test_a_layer_without_its_configuration_is_named():
    model = functional((3,), NoConfig(np.ones(2), name="mine"))
    with pytest.raises(ValueError, match=r"'mine' \(NoConfig\) cannot be copied: .*get_config"):
        float32_copy(model)
