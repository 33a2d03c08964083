"""A model with another image size."""

import keras
import numpy as np
import pytest
from tiny_transformer import tiny_transformer

from keras_dml import models


def embedding(image_size):
    backbone = models.small_convnet(image_size, filters=(4, 6))
    return models.embedding_model(backbone, 5, feature_batch_norm=True, pooling="gem")


def images(size):
    return np.random.default_rng(0).uniform(0, 255, (2, size, size, 3)).astype("float32")


def test_the_resized_model_equals_one_built_at_that_size():
    model, expected = embedding(16), embedding(24)
    expected.set_weights(model.get_weights())
    found = models.with_image_size(model, 24)
    np.testing.assert_allclose(found(images(24)), expected(images(24)), rtol=1e-5, atol=1e-5)


def test_both_models_have_the_same_variables():
    model = embedding(16)
    before = keras.ops.convert_to_numpy(model(images(16)))
    found = models.with_image_size(model, 24)
    for old, new in zip(model.variables, found.variables, strict=True):
        assert old is new
    found.get_layer("projection").bias.assign_add(np.ones(5, "float32"))
    np.testing.assert_allclose(model(images(16)), before + 1, rtol=1e-5, atol=1e-5)


def test_a_backbone_that_is_a_layer_of_the_model():
    backbone, inputs = models.small_convnet(16, filters=(4,)), keras.Input((16, 16, 3))
    model = keras.Model(inputs, keras.layers.GlobalAveragePooling2D()(backbone(inputs)))
    found = models.with_image_size(model, 24)
    assert found(images(24)).shape == (2, 4)
    assert found.variables[0] is model.variables[0]


def test_a_layer_that_accepts_one_size_only():
    model = models.embedding_model(tiny_transformer(1), 5)
    with pytest.raises(ValueError, match="image_size must be 16 for model 'embedding'"):
        models.with_image_size(model, 32)


@pytest.mark.parametrize("model", [keras.Sequential([keras.Input((8, 8, 3))]), None])
def test_a_model_that_is_not_functional(model):
    with pytest.raises(ValueError, match="model must be a functional keras.Model, but got"):
        models.with_image_size(model, 32)


def test_a_model_of_vectors():
    inputs = keras.Input((4,))
    model = keras.Model(inputs, keras.layers.Dense(2)(inputs))
    with pytest.raises(ValueError, match=r"model must take images \[n, h, w, c\], but got"):
        models.with_image_size(model, 32)
