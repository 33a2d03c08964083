"""Low-rank additions: the trainable weights, and the model after merging."""

import hub_presets
import keras
import numpy as np
import pytest
from tiny_transformer import WIDTH, tiny_transformer

from keras_dml import models
from keras_dml.export.float32 import float32_copy

RANK = 3


def images(number=5):
    rng = np.random.default_rng(0)
    return rng.uniform(0, 255, (number, 16, 16, 3)).astype("float32")


def adapted(layers=None):
    backbone = tiny_transformer()
    models.enable_lora(backbone, RANK, layers)
    return models.embedding_model(backbone, 4)


def trained(model):
    """Return the model after some steps that change the trainable weights."""
    model.compile(keras.optimizers.Adam(0.05), "mse")
    model.fit(images(), np.ones((5, 4)), epochs=3, verbose=0)
    return model


@pytest.mark.slow
def test_only_additions_to_queries_and_values_train_and_start_at_zero():
    plain = models.embedding_model(tiny_transformer(), 4)
    model = adapted()
    model.get_layer("projection").set_weights(plain.get_layer("projection").get_weights())
    np.testing.assert_allclose(model(images()), plain(images()), rtol=1e-5, atol=1e-5)
    names = sorted(variable.name for variable in model.trainable_variables)
    assert names == ["bias", "kernel"] + 4 * ["lora_kernel_a"] + 4 * ["lora_kernel_b"]
    before = {id(variable): variable.numpy() for variable in model.variables}
    trained(model)
    moved = [v for v in model.variables if not np.array_equal(before[id(v)], v.numpy())]
    assert {id(v) for v in moved} == {id(v) for v in model.trainable_variables}


@pytest.mark.slow
def test_merged_equals_unmerged_and_is_an_ordinary_model(tmp_path):
    model = trained(adapted())
    expected = model(images(), training=False)
    plain = models.embedding_model(tiny_transformer(), 4)
    assert np.abs(plain(images()) - expected).max() > 0.01
    merged = models.with_merged_lora(model)
    assert not models.has_lora(merged)
    assert models.has_lora(model)
    assert len(merged.weights) == len(plain.weights)
    np.testing.assert_allclose(merged(images()), expected, rtol=1e-4, atol=1e-5)
    merged.save(tmp_path / "merged.keras")
    loaded = keras.saving.load_model(tmp_path / "merged.keras")
    assert not models.has_lora(loaded)
    np.testing.assert_allclose(loaded(images()), expected, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(float32_copy(model)(images()), expected, rtol=1e-4, atol=1e-5)


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


def test_bad_arguments():
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
        output = net({taken: images()} if taken else images(), training=False)
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
