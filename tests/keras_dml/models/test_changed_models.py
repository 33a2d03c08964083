"""Rates by depth, rematerialized blocks, LoRA, another image size, and a model split in two."""

import hub_presets
import keras
import numpy as np
import pytest
import tensorflow as tf
from batches import functional
from tiny_transformer import WIDTH, tiny_transformer

from keras_dml import models
from keras_dml.export.float32 import float32_copy


def images(number=4, size=16):
    return np.random.default_rng(0).uniform(0, 255, (number, size, size, 3)).astype("float32")


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
    outer = functional((16, 16, 3), inner)
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
    inner = functional(backbone.output.shape[1:], keras.layers.LayerNormalization(name="norm"))
    outer = keras.Model(backbone.input, inner(backbone.output))
    with pytest.raises(ValueError, match="different paths, but got norm/gamma twice"):
        models.layer_multipliers(outer, 0.5)


RANK = 3


def adapted(layers=None):
    backbone = tiny_transformer()
    models.enable_lora(backbone, RANK, layers)
    return models.embedding_model(backbone, 4)


def trained(model):
    """Return the model after some steps that change the trainable weights."""
    model.compile(keras.optimizers.Adam(0.05), "mse")
    model.fit(images(5), np.ones((5, 4)), epochs=3, verbose=0)
    return model


@pytest.mark.slow
def test_only_additions_to_queries_and_values_train_and_start_at_zero():
    plain = models.embedding_model(tiny_transformer(), 4)
    model = adapted()
    model.get_layer("projection").set_weights(plain.get_layer("projection").get_weights())
    np.testing.assert_allclose(model(images(5)), plain(images(5)), rtol=1e-5, atol=1e-5)
    names = sorted(variable.name for variable in model.trainable_variables)
    assert names == ["bias", "kernel"] + 4 * ["lora_kernel_a"] + 4 * ["lora_kernel_b"]
    before = {id(variable): variable.numpy() for variable in model.variables}
    trained(model)
    moved = [v for v in model.variables if not np.array_equal(before[id(v)], v.numpy())]
    assert {id(v) for v in moved} == {id(v) for v in model.trainable_variables}


@pytest.mark.slow
def test_merged_equals_unmerged_and_is_an_ordinary_model(tmp_path):
    model = trained(adapted())
    expected = model(images(5), training=False)
    plain = models.embedding_model(tiny_transformer(), 4)
    assert np.abs(plain(images(5)) - expected).max() > 0.01
    merged = models.with_merged_lora(model)
    assert not models.has_lora(merged)
    assert models.has_lora(model)
    assert len(merged.weights) == len(plain.weights)
    np.testing.assert_allclose(merged(images(5)), expected, rtol=1e-4, atol=1e-5)
    merged.save(tmp_path / "merged.keras")
    loaded = keras.saving.load_model(tmp_path / "merged.keras")
    assert not models.has_lora(loaded)
    np.testing.assert_allclose(loaded(images(5)), expected, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(float32_copy(model)(images(5)), expected, rtol=1e-4, atol=1e-5)


def test_layers_by_name_include_the_first_level():
    inputs = keras.Input((6,))
    x = keras.layers.Dense(WIDTH, name="first")(inputs)
    model = keras.Model(inputs, keras.layers.EinsumDense("bi,io->bo", 5, name="second")(x))
    with pytest.raises(ValueError, match="layers must be layers of "):
        models.enable_lora(model, 2)
    assert len(models.enable_lora(model, 2, ["first", "second"])) == 2
    assert len(model.trainable_variables) == 4
    for variable in model.trainable_variables:
        variable.assign(keras.random.normal(variable.shape, seed=1))
    x = np.ones((3, 6), "float32")
    merged = models.with_merged_lora(model)
    assert merged.count_params() == 6 * WIDTH + WIDTH + 5 * WIDTH
    np.testing.assert_allclose(merged(x), model(x), rtol=1e-4)


def test_bad_arguments_of_lora():
    with pytest.raises(ValueError, match="layers must be layers of small_convnet"):
        models.enable_lora(models.small_convnet(16), 4)
    backbone = tiny_transformer()
    message = r"\(attention_output, down, key, patches, query, up, value\), but got \['q'\]"
    with pytest.raises(ValueError, match=message):
        models.enable_lora(backbone, 4, ["q"])
    assert backbone.trainable_variables, "a refusal leaves the backbone unchanged"
    with pytest.raises(ValueError, match="rank must be"):
        models.enable_lora(backbone, 0)


@pytest.fixture(params=["dinov2", "dinov3", "vit", "siglip"])
def preset(request):
    pytest.importorskip("keras_hub")
    net = hub_presets.kinds(16)[request.param]()
    return getattr(net, "vision_encoder", net)


@pytest.mark.thorough
@pytest.mark.slow
def test_a_random_preset_of_each_family(preset):
    def run(net):
        taken = net.inputs[0].name if isinstance(net.input, dict) else None
        output = net({taken: images(5)} if taken else images(5), training=False)
        return keras.ops.convert_to_numpy(keras.tree.flatten(output)[0])

    blocks = models.transformer_blocks(preset)
    assert len(blocks) == 2
    factors = models.layer_multipliers(preset, 0.5)
    assert len(factors) == len(preset.trainable_variables)
    assert set(factors.values()) == {1.0, 0.5, 0.25, 0.125}
    for block, factor in zip(blocks, (0.25, 0.5)):
        assert {factors[v.path] for v in block.trainable_variables} == {factor}
    before = run(preset)
    found = models.enable_lora(preset, 2)
    # Query and value of each block; the final pooling in SigLIP has attention, too.
    assert len(found) == (6 if "sig_lip" in preset.name else 4)
    assert len(preset.trainable_variables) == 2 * len(found)
    np.testing.assert_allclose(run(preset), before, atol=1e-5)
    for variable in preset.trainable_variables:
        variable.assign(keras.random.normal(variable.shape, seed=1))
    unmerged = run(preset)
    assert np.abs(unmerged - before).max() > 1e-3
    np.testing.assert_allclose(run(models.with_merged_lora(preset)), unmerged, atol=1e-4)


def embedding(image_size):
    backbone = models.small_convnet(image_size, filters=(4, 6))
    return models.embedding_model(backbone, 5, feature_batch_norm=True, pooling="gem")


def test_the_resized_model_equals_one_built_at_that_size():
    model, expected = embedding(16), embedding(24)
    expected.set_weights(model.get_weights())
    found = models.with_image_size(model, 24)
    np.testing.assert_allclose(found(images(2, 24)), expected(images(2, 24)), rtol=1e-5, atol=1e-5)


def test_both_models_have_the_same_variables():
    model = embedding(16)
    before = keras.ops.convert_to_numpy(model(images(2)))
    found = models.with_image_size(model, 24)
    for old, new in zip(model.variables, found.variables, strict=True):
        assert old is new
    found.get_layer("projection").bias.assign_add(np.ones(5, "float32"))
    np.testing.assert_allclose(model(images(2)), before + 1, rtol=1e-5, atol=1e-5)


def test_a_backbone_that_is_a_layer_of_the_model():
    backbone, inputs = models.small_convnet(16, filters=(4,)), keras.Input((16, 16, 3))
    model = keras.Model(inputs, keras.layers.GlobalAveragePooling2D()(backbone(inputs)))
    found = models.with_image_size(model, 24)
    assert found(images(2, 24)).shape == (2, 4)
    assert found.variables[0] is model.variables[0]


def test_a_layer_that_accepts_one_size_only():
    model = models.embedding_model(tiny_transformer(1), 5)
    with pytest.raises(ValueError, match="image_size must be 16 for model 'embedding'"):
        models.with_image_size(model, 32)


@pytest.mark.parametrize("model", [keras.Sequential([keras.Input((8, 8, 3))]), None])
def test_a_model_that_is_not_functional(model):
    with pytest.raises(ValueError, match="model must be a functional keras.Model, but got"):
        models.with_image_size(model, 32)


def test_a_model_of_vectors_has_no_image_size():
    model = functional((4,), keras.layers.Dense(2))
    with pytest.raises(ValueError, match=r"model must take images \[n, h, w, c\], but got"):
        models.with_image_size(model, 32)


def backbone():
    net = models.small_convnet(16, filters=(4, 6))
    net.trainable = False
    return net


@pytest.mark.parametrize("pooling", ["average", "max"])
def test_trunk_and_head_equal_the_model(pooling):
    embedding = models.embedding_model(backbone(), 5, feature_batch_norm=True, pooling=pooling)
    trunk, head = models.split_at_features(embedding)
    x = images(3)
    whole = embedding(x, training=False)
    np.testing.assert_allclose(head(trunk(x), training=False), whole, rtol=1e-5, atol=1e-5)
    assert trunk.output_shape == (None, 6)
    assert {v.path for v in head.trainable_variables} == {"projection/kernel", "projection/bias"}
    head.get_layer("projection").kernel.assign_add(np.ones((6, 5), "float32"))
    assert np.abs(embedding(x, training=False) - whole).max() > 0.1


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
