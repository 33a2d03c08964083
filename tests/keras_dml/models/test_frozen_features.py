"""An embedding model split at its features."""

import keras
import numpy as np
import pytest

from keras_dml import models


def backbone():
    net = models.small_convnet(16, filters=(4, 6))
    net.trainable = False
    return net


@pytest.mark.parametrize("pooling", ["average", "max"])
def test_trunk_and_head_equal_the_model(pooling):
    embedding = models.embedding_model(backbone(), 5, feature_batch_norm=True, pooling=pooling)
    trunk, head = models.split_at_features(embedding)
    images = np.random.default_rng(0).uniform(0, 255, (3, 16, 16, 3)).astype("float32")
    whole = embedding(images, training=False)
    np.testing.assert_allclose(head(trunk(images), training=False), whole, rtol=1e-5, atol=1e-5)
    assert trunk.output_shape == (None, 6)
    assert {v.path for v in head.trainable_variables} == {"projection/kernel", "projection/bias"}
    head.get_layer("projection").kernel.assign_add(np.ones((6, 5), "float32"))
    assert np.abs(embedding(images, training=False) - whole).max() > 0.1


def test_a_pooling_that_learns_belongs_to_the_head():
    class Power(keras.layers.Layer):
        def build(self, shape):
            self.power = self.add_weight(name="power", initializer="ones")

        def call(self, maps):
            return keras.ops.mean(maps**self.power, axis=(1, 2))

    net = backbone()
    maps = keras.layers.ReLU()(net.output)
    embedding = keras.Model(net.input, Power(name="features")(maps))
    trunk, head = models.split_at_features(embedding)
    assert trunk.output_shape == (None, 4, 4, 6)
    assert len(head.trainable_variables) == 1


def test_models_that_cannot_be_split():
    with pytest.raises(ValueError, match="frozen backbone.*stage1_conv1/kernel trains"):
        models.split_at_features(models.embedding_model(models.small_convnet(16), 4))
    levels = models.embedding_model(backbone(), levels=["stage1_conv2_relu"])
    with pytest.raises(ValueError, match="must have a layer `features`"):
        models.split_at_features(levels)
