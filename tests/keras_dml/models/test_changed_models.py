"""Rates by depth, rematerialized blocks, LoRA, another image size, and a model split in two."""

import hub_presets
import keras
import numpy as np
import pytest
import tensorflow as tf
from batches import functional, images
from tiny_transformer import WIDTH, tiny_transformer

from keras_dml import models
from keras_dml.export.float32 import float32_copy


def test_the_multipliers_fall_from_the_last_block_to_the_patches():
    backbone = tiny_transformer()
    assert [b.name for b in models.transformer_blocks(backbone)] == ["block_0", "block_1"]
    factors = models.layer_multipliers(backbone, 0.5)
    by_layer = {}
    for path, factor in factors.items():
        by_layer.setdefault(path.split("/")[0], set()).add(factor)
    assert by_layer == {"patches": {0.125}, "block_0": {0.25}, "block_1": {0.5}, "norm": {1.0}}
    assert len(factors) == len(backbone.trainable_variables)


@pytest.mark.slow
def test_nested_blocks_and_more_than_nine_blocks():
    names = [b.name for b in models.transformer_blocks(tiny_transformer(blocks=11))]
    assert names == [f"block_{number}" for number in range(11)]
    inner = tiny_transformer()
    outer = functional((16, 16, 3), inner)
    assert len(models.transformer_blocks(outer)) == 2
    assert len(models.layer_multipliers(outer, 0.5)) == len(inner.trainable_variables)


def gradients(rematerialize):
    backbone = tiny_transformer()
    if rematerialize:
        models.rematerialize_blocks(backbone)

    @tf.function
    def step(x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(backbone(x, training=True) ** 3)
        return loss, tape.gradient(loss, backbone.trainable_variables)

    loss, found = step(tf.constant(images(n=4)))
    operations = step.get_concrete_function(tf.constant(images(n=4))).graph.get_operations()
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


@pytest.mark.slow
def test_only_additions_to_queries_and_values_train_and_can_be_merged(tmp_path):
    backbone = tiny_transformer()
    models.enable_lora(backbone, 3)
    model = models.embedding_model(backbone, 4)
    plain = models.embedding_model(tiny_transformer(), 4)
    x = images(n=5)
    model.get_layer("projection").set_weights(plain.get_layer("projection").get_weights())
    np.testing.assert_allclose(model(x), plain(x), rtol=1e-5, atol=1e-5)  # B starts at zero
    names = sorted(variable.name for variable in model.trainable_variables)
    assert names == ["bias", "kernel"] + 4 * ["lora_kernel_a"] + 4 * ["lora_kernel_b"]
    before = {id(variable): variable.numpy() for variable in model.variables}
    model.compile(keras.optimizers.Adam(0.05), "mse")
    model.fit(x, np.ones((5, 4)), epochs=3, verbose=0)
    moved = [v for v in model.variables if not np.array_equal(before[id(v)], v.numpy())]
    assert {id(v) for v in moved} == {id(v) for v in model.trainable_variables}

    expected = model(x, training=False)
    assert np.abs(plain(x) - expected).max() > 0.01
    merged = models.with_merged_lora(model)
    merged.save(tmp_path / "merged.keras")
    loaded = keras.saving.load_model(tmp_path / "merged.keras")
    assert models.has_lora(model)
    assert not models.has_lora(merged) and not models.has_lora(loaded)
    assert len(merged.weights) == len(plain.weights)
    for copy in (merged, loaded, float32_copy(model)):
        np.testing.assert_allclose(copy(x), expected, rtol=1e-4, atol=1e-5)


def test_layers_by_name_include_the_first_level():
    inputs = keras.Input((6,))
    x = keras.layers.Dense(WIDTH, name="first")(inputs)
    model = keras.Model(inputs, keras.layers.EinsumDense("bi,io->bo", 5, name="second")(x))
    with pytest.raises(ValueError, match="layers must be layers of "):
        models.enable_lora(model, 2)
    assert len(model.trainable_variables) == 3, "a refusal leaves the model unchanged"
    assert len(models.enable_lora(model, 2, ["first", "second"])) == 2
    assert len(model.trainable_variables) == 4
    for variable in model.trainable_variables:
        variable.assign(keras.random.normal(variable.shape, seed=1))
    x = np.ones((3, 6), "float32")
    merged = models.with_merged_lora(model)
    assert merged.count_params() == 6 * WIDTH + WIDTH + 5 * WIDTH
    np.testing.assert_allclose(merged(x), model(x), rtol=1e-4)


@pytest.mark.thorough
@pytest.mark.slow
@pytest.mark.parametrize("kind", ["dinov2", "dinov3", "vit", "siglip"])
def test_a_random_preset_of_each_family(kind):
    pytest.importorskip("keras_hub")
    preset = hub_presets.image_encoder(hub_presets.kinds(16)[kind]())
    x = images(n=5)
    blocks = models.transformer_blocks(preset)
    assert len(blocks) == 2
    factors = models.layer_multipliers(preset, 0.5)
    assert len(factors) == len(preset.trainable_variables)
    assert set(factors.values()) == {1.0, 0.5, 0.25, 0.125}
    for block, factor in zip(blocks, (0.25, 0.5)):
        assert {factors[v.path] for v in block.trainable_variables} == {factor}
    before = hub_presets.called(preset, x)
    found = models.enable_lora(preset, 2)
    # Query and value of each block; the final pooling in SigLIP has attention, too.
    assert len(found) == (6 if kind == "siglip" else 4)
    assert len(preset.trainable_variables) == 2 * len(found)
    np.testing.assert_allclose(hub_presets.called(preset, x), before, atol=1e-5)
    for variable in preset.trainable_variables:
        variable.assign(keras.random.normal(variable.shape, seed=1))
    unmerged = hub_presets.called(preset, x)
    assert np.abs(unmerged - before).max() > 1e-3
    merged = models.with_merged_lora(preset)
    np.testing.assert_allclose(hub_presets.called(merged, x), unmerged, atol=1e-4)


def embedding(image_size):
    backbone = models.small_convnet(image_size, filters=(4, 6))
    return models.embedding_model(backbone, 5, feature_batch_norm=True, pooling="gem")


def test_the_resized_model_has_the_same_variables_and_equals_one_built_at_that_size():
    model, expected = embedding(16), embedding(24)
    expected.set_weights(model.get_weights())
    found = models.with_image_size(model, 24)
    for old, new in zip(model.variables, found.variables, strict=True):
        assert old is new
    np.testing.assert_allclose(found(images(24)), expected(images(24)), rtol=1e-5, atol=1e-5)


def test_a_backbone_that_is_a_layer_of_the_model():
    backbone, inputs = models.small_convnet(16, filters=(4,)), keras.Input((16, 16, 3))
    model = keras.Model(inputs, keras.layers.GlobalAveragePooling2D()(backbone(inputs)))
    found = models.with_image_size(model, 24)
    assert found(images(24)).shape == (2, 4)
    assert found.variables[0] is model.variables[0]


def backbone():
    net = models.small_convnet(16, filters=(4, 6))
    net.trainable = False
    return net


@pytest.mark.parametrize(
    ("pooling", "shape", "learned"),
    [("average", (None, 6), set()), ("gem", (None, 4, 4, 6), {"features/p"})],
)
def test_trunk_and_head_equal_the_model(pooling, shape, learned):
    """A pooling that learns belongs to the head."""
    embedding = models.embedding_model(backbone(), 5, feature_batch_norm=True, pooling=pooling)
    trunk, head = models.split_at_features(embedding)
    x = images()
    whole = embedding(x, training=False)
    np.testing.assert_allclose(head(trunk(x), training=False), whole, rtol=1e-5, atol=1e-5)
    assert trunk.output_shape == shape
    in_head = {v.path for v in head.trainable_variables}
    assert in_head == {"projection/kernel", "projection/bias"} | learned
    head.get_layer("projection").kernel.assign_add(np.ones((6, 5), "float32"))
    assert np.abs(embedding(x, training=False) - whole).max() > 0.1


def two_norms():
    norm = keras.layers.LayerNormalization(name="norm")
    return functional((16, 16, 3), tiny_transformer(), functional((16, WIDTH), norm))


def resized(model):
    return models.with_image_size(model, 32)


ABLE = r"\(attention_output, down, key, patches, query, up, value\), but got \['q'\]"
MISTAKES = [
    (
        lambda: models.transformer_blocks(models.small_convnet(16)),
        "must be a transformer.*small_convnet",
    ),
    (
        lambda: models.rematerialize_blocks(tiny_transformer(dropout=0.1)),
        "without dropout and batch norm.*seed_generator",
    ),
    (lambda: models.layer_multipliers(two_norms(), 0.5), "paths, but got norm/gamma twice"),
    (lambda: models.enable_lora(models.small_convnet(16), 4), "layers must .* of small_convnet"),
    (lambda: models.enable_lora(tiny_transformer(), 4, ["q"]), ABLE),
    (lambda: models.enable_lora(tiny_transformer(), 0), "rank must be"),
    (
        lambda: resized(models.embedding_model(tiny_transformer(1), 5)),
        "image_size must be 16 for model 'embedding'",
    ),
    (lambda: resized(None), "model must be a functional keras.Model, but got"),
    (lambda: resized(functional((4,), keras.layers.Dense(2))), r"model must take images \[n, h"),
    (
        lambda: models.split_at_features(embedding(16)),
        "frozen backbone.*stage1_conv1/kernel trains",
    ),
    (
        lambda: models.split_at_features(
            models.embedding_model(backbone(), levels=["stage1_conv2_relu"])
        ),
        "must have a layer `features`",
    ),
]


@pytest.mark.parametrize(("call", "message"), MISTAKES)
def test_mistakes_raise_an_error(call, message):
    with pytest.raises(ValueError, match=message):
        call()
