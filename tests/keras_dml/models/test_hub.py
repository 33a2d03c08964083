"""KerasHub backbones from tiny random presets: scaling, sizes, tokens, and errors."""

import functools
import importlib.util
import json

import hub_presets
import keras
import numpy as np
import pytest
import tiers
from batches import images
from hub_presets import OFFSET, SCALE, SIZE, preset

from keras_dml import layers, models
from keras_dml._backend.cloning import all_layers
from keras_dml.export.float32 import float32_copy

# Not `importorskip`, which takes seconds in each process that collects this file.
pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("keras_hub") is None, reason="KerasHub is in the extra hub"
)
TOKENS = {"dinov2": (True, 2), "dinov3": (True, 4), "vit": (True, 0)}


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Function: kind -> the folder and the image encoder of a preset."""
    root = tmp_path_factory.mktemp("presets")

    @functools.cache
    def make(kind):
        backbone = preset(kind, root / kind, kind != "bert")
        return root / kind, hub_presets.image_encoder(backbone)

    return make


def build(made, kind, size=SIZE, **arguments):
    return models.build_backbone(f"hub:{made(kind)[0]}", size, **arguments)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["vit", "dinov2", "dinov3", "siglip", "resnet"])
def test_images_in_0_to_255_are_scaled_for_the_backbone(kind, made):
    expected = hub_presets.called(made(kind)[1], images(SIZE) * SCALE + OFFSET)
    ours = build(made, kind)
    found = ours(images(SIZE), training=False).numpy()
    assert ours.input_shape == (None, SIZE, SIZE, 3) and expected.std() > 0.01
    np.testing.assert_allclose(found, expected, atol=1e-4)
    norms = {type(x) for x in all_layers(ours) if isinstance(x, keras.layers.BatchNormalization)}
    assert norms == ({layers.FrozenStatisticsBatchNormalization} if kind == "resnet" else set())


@pytest.mark.slow
@pytest.mark.parametrize("kind", TOKENS)
def test_token_layouts(kind, made):
    layout = build(made, kind).layers[-1]
    assert (layout.class_token, layout.registers) == TOKENS[kind]
    tokens = build(made, kind)(images(SIZE), training=False).numpy()
    first = sum(TOKENS[kind])
    for pooling, expected in (
        ("cls", tokens[:, 0]), ("average", tokens[:, first:].mean(axis=1))
    ):  # fmt: skip
        model = models.embedding_model(build(made, kind), pooling=pooling)
        np.testing.assert_allclose(model(images(SIZE), training=False), expected, atol=1e-5)
    assert tokens.shape[1] == first + (SIZE // 4) ** 2


@pytest.mark.slow
@pytest.mark.parametrize("size", [16, 32])
@tiers.parametrize(
    "kind", ["siglip", "dinov2", "dinov3", "vit"], ["siglip", "dinov3"], tiers.THOROUGH
)
def test_another_image_size_uses_the_same_weights(kind, size, made):
    ours, own = build(made, kind, size), build(made, kind)
    assert ours(images(size), training=False).shape[0] == 2
    differing = []
    for a, b in zip(ours.weights, own.weights, strict=True):
        if a.shape != b.shape or not np.array_equal(a, b):
            differing.append(a.path)
    assert all("position" in path or "embeddings" in path for path in differing)
    assert bool(differing) is (kind != "dinov3")  # uses rotary positions


@pytest.mark.slow
def test_position_embeddings_are_resampled(tmp_path):
    """A linear function of the patch position stays the same function after resampling."""
    backbone = preset("vit", tmp_path)
    table = next(v for v in backbone.weights if "position_embedding" in v.path)
    values = table.numpy()
    y, x = np.mgrid[:6, :6]
    values[1:] = ((y + 0.5) / 6 + 2 * (x + 0.5) / 6).reshape(36, 1)
    values[0] = 7.0
    table.assign(values)
    backbone.save_to_preset(str(tmp_path))
    resized = models.build_backbone(f"hub:{tmp_path}", 48)
    found = next(v for v in resized.weights if "position_embedding" in v.path).numpy()
    np.testing.assert_array_equal(found[0], 7.0)
    y, x = np.mgrid[:12, :12]
    plane = ((y + 0.5) / 12 + 2 * (x + 0.5) / 12)[4:-4, 4:-4]
    grid = found[1:].reshape(12, 12, 8)[4:-4, 4:-4]
    np.testing.assert_allclose(grid, np.repeat(plane[..., None], 8, axis=2), atol=0.01)


@pytest.mark.slow
@tiers.parametrize("kind", hub_presets.IMAGE_KINDS, ["dinov2"], tiers.THOROUGH)
def test_files_and_copies_give_the_same_embeddings_at_another_size(kind, made, tmp_path):
    model = models.embedding_model(build(made, kind, 16), 3)
    rng = np.random.default_rng(1)
    for variable in model.trainable_variables:
        variable.assign(variable + rng.normal(0, 0.01, variable.shape))
    expected = model(images(16), training=False).numpy()
    assert np.abs(expected).max() > 1e-3
    model.save(tmp_path / "model.keras")
    again = models.load_keras_file(tmp_path / "model.keras")
    for copy in (again, float32_copy(model), models.with_frozen_statistics(model)):
        np.testing.assert_allclose(copy(images(16), training=False), expected, atol=1e-5)
    # The layers of some backbones have incomplete configurations. The backbone's is complete.
    theirs = made(kind)[1]
    found = hub_presets.called(float32_copy(theirs), images(SIZE))
    np.testing.assert_allclose(found, hub_presets.called(theirs, images(SIZE)), atol=1e-5)


@pytest.mark.slow
def test_random_weights_of_a_preset(made):
    kernels = [
        build(made, "vit", weights=w)(images(SIZE)).numpy() for w in (None, "imagenet", "none")
    ]
    np.testing.assert_array_equal(kernels[0], kernels[1])
    assert np.abs(kernels[2] - kernels[0]).max() > 0.01


# Errors


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "size", "arguments", "message"),
    [
        ("vit", 22, {}, "image_size must be a multiple of 4, .* 20 or 24, but got 22"),
        ("bert", SIZE, {}, "only images, but got .* a BertBackbone"),
        ("vit", SIZE, {"weights": "w.h5"}, "weights must be left out or 'none' for .*'w.h5'"),
        ("vit", SIZE, {"filters": (8,)}, "filters must be None except for small_convnet"),
    ],
)
def test_arguments_that_do_not_fit_a_preset(kind, size, arguments, message, made):
    with pytest.raises(ValueError, match=message):
        build(made, kind, size, **arguments)


def test_invalid_folders_and_names(made, tmp_path):
    near = "KerasHub preset, such as .*dinov2_base.* but got .*bas'.* does not exist"
    with pytest.raises(ValueError, match=near):
        models.build_backbone("hub:dinov2_bas", 28)
    with pytest.raises(ValueError, match="preset with a config.json, but got "):
        models.build_backbone(f"hub:{tmp_path}", 28)
    (tmp_path / "file").write_text("{")
    with pytest.raises(ValueError, match="preset's folder, but got .* is a file"):
        models.build_backbone(f"hub:{tmp_path / 'file'}", 28)
    for config, reason in (("{", "JSON"), (json.dumps({"model_type": "nothing"}), "nothing")):
        (tmp_path / "config.json").write_text(config)
        with pytest.raises(ValueError, match=f"could not be read from its folder .*{reason}"):
            models.build_backbone(f"hub:{tmp_path}", 28)


@pytest.mark.slow
def test_a_preset_without_its_scaling(tmp_path):
    preset("vit", tmp_path / "bare", converter=False)
    with pytest.raises(ValueError, match="are scaled, but got .* without image_converter.json"):
        models.build_backbone(f"hub:{tmp_path / 'bare'}", SIZE)


def test_without_a_network_the_message_names_the_download(monkeypatch):
    import keras_hub

    def offline(*_, **__):
        raise ConnectionError("Failed to resolve\nthe host")

    monkeypatch.setattr(keras_hub.models.Backbone, "from_preset", offline)
    message = (
        r"hub:dinov2_base could not be fetched \(ConnectionError: Failed to resolve the host\). "
        r"Without a network, .* fetch kaggle://keras/dinov2/.* and give backbone=hub:FOLDER"
    )
    with pytest.raises(ValueError, match=message):
        models.build_backbone("hub:dinov2_base", 224)


CRAFTED_SCALINGS = [
    {"image_mean": [0.5]}, {"image_mean": None}, {"image_mean": [0.5, 0.5, float("nan")]},
    {"image_std": [0.5, 0, 0.5]}, {"image_std": "x"}, {"rescale_factor": 10**400},
    {"rescale_factor": float("inf")}, {"rescale_factor": "x"}, {"do_rescale": 5},
]  # fmt: skip


@pytest.mark.slow
def test_a_hugging_face_folder(tmp_path):
    """A tiny ViT in the layout of Hugging Face. KerasHub reads the weights, and we the scaling."""
    config = {
        "model_type": "vit", "architectures": ["ViTModel"], "image_size": 24, "patch_size": 4,
        "num_hidden_layers": 1, "num_attention_heads": 2, "hidden_size": 8,
        "intermediate_size": 16, "hidden_dropout_prob": 0.0, "qkv_bias": True,
        "attention_probs_dropout_prob": 0.0, "layer_norm_eps": 1e-6,
    }  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "preprocessor_config.json").write_text(json.dumps({
        "image_mean": [0.5, 0.5, 0.5], "image_std": [0.5, 0.5, 0.5], "rescale_factor": 1 / 255,
        "do_resize": True, "do_rescale": True, "do_normalize": True, "resample": 2,
        "size": {"height": 24, "width": 24},
    }))  # fmt: skip
    path = tmp_path / "preprocessor_config.json"
    text = path.read_text()
    for crafted in CRAFTED_SCALINGS:
        path.write_text(json.dumps({**json.loads(text), **crafted}))
        with pytest.raises(ValueError, match=f"{path} (is damaged|must have)"):
            models.build_backbone(f"hub:{tmp_path}", 32, weights="none")
    path.write_text(text)
    backbone = models.build_backbone(f"hub:{tmp_path}", 32, weights="none")
    scaling = backbone.get_layer("input_scaling")
    np.testing.assert_allclose(scaling(np.full((1, 2, 2, 3), 255.0)), 1.0, atol=1e-5)
    np.testing.assert_allclose(scaling(np.zeros((1, 2, 2, 3))), -1.0, atol=1e-5)
    assert backbone(images(32)).shape == (2, 65, 8)
