"""The blocks of a transformer: learning rates by depth, and rematerialized gradients."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from tiny_transformer import tiny_transformer

from keras_dml import models


def images():
    return np.random.default_rng(0).uniform(0, 255, (4, 16, 16, 3)).astype("float32")


def test_the_multipliers_fall_from_the_last_block_to_the_patches():
    backbone = tiny_transformer()
    assert [b.name for b in models.transformer_blocks(backbone)] == ["block_0", "block_1"]
    factors = models.layer_multipliers(backbone, 0.5)
    by_layer = {}
    for path, factor in factors.items():
        by_layer.setdefault(path.split("/")[0], set()).add(factor)
    assert by_layer == {"patches": {0.125}, "block_0": {0.25}, "block_1": {0.5}, "norm": {1.0}}
    assert len(factors) == len(backbone.trainable_variables)


def test_nested_blocks_and_more_than_nine_blocks():
    names = [b.name for b in models.transformer_blocks(tiny_transformer(blocks=11))]
    assert names == [f"block_{number}" for number in range(11)]
    inner = tiny_transformer()
    inputs = keras.Input((16, 16, 3))
    outer = keras.Model(inputs, inner(inputs))
    assert len(models.transformer_blocks(outer)) == 2
    assert len(models.layer_multipliers(outer, 0.5)) == len(inner.trainable_variables)


@pytest.mark.parametrize("function", [models.transformer_blocks, models.rematerialize_blocks])
def test_a_convolutional_net_has_no_blocks(function):
    with pytest.raises(ValueError, match="must be a transformer.*small_convnet"):
        function(models.small_convnet(16))


def gradients(rematerialize):
    backbone = tiny_transformer()
    if rematerialize:
        models.rematerialize_blocks(backbone)

    @tf.function
    def step(x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(backbone(x, training=True) ** 3)
        return loss, tape.gradient(loss, backbone.trainable_variables)

    loss, found = step(tf.constant(images()))
    operations = step.get_concrete_function(tf.constant(images())).graph.get_operations()
    count = sum(op.type == "Softmax" for op in operations)
    return float(loss), [g.numpy() for g in found], count


@pytest.mark.slow
def test_rematerialized_gradients_are_equal():
    loss, expected, once = gradients(False)
    again, found, twice = gradients(True)
    assert again == pytest.approx(loss, rel=1e-6)
    for a, b in zip(expected, found):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6)
    assert (once, twice) == (2, 4)


def test_random_layers_cannot_be_rematerialized():
    with pytest.raises(ValueError, match="without dropout and batch norm.*seed_generator"):
        models.rematerialize_blocks(tiny_transformer(dropout=0.1))


def test_variables_of_one_path_have_no_separate_multipliers():
    backbone = tiny_transformer()
    inputs = keras.Input(backbone.output.shape[1:])
    inner = keras.Model(inputs, keras.layers.LayerNormalization(name="norm")(inputs))
    outer = keras.Model(backbone.input, inner(backbone.output))
    with pytest.raises(ValueError, match="different paths, but got norm/gamma twice"):
        models.layer_multipliers(outer, 0.5)
