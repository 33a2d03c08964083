"""Backbones, input scaling, weights, embedding and classifier models."""

import functools
import sys

import keras
import numpy as np
import pytest
from batches import functional, images

from keras_dml import layers, models
from keras_dml._common.errors import ArgumentError

SIZE = 64  # image size for keras.applications models


def tiny_backbone():
    return models.small_convnet(16, filters=(8, 12))


def shake(model):
    """Set weights and statistics that differ from the initial ones."""
    rng = np.random.default_rng(0)
    model.set_weights([w + rng.uniform(0.1, 0.5, size=w.shape) for w in model.get_weights()])
    return model


def batch_norms(model):
    return [x for x in model.layers if isinstance(x, keras.layers.BatchNormalization)]


def same(arrays, others):
    return all(np.array_equal(a, b) for a, b in zip(arrays, others, strict=True))


# Input scaling


@pytest.mark.parametrize(
    ("application", "expected"),
    [
        ("ResNet50", [51 - 103.939, 51 - 116.779, 51 - 123.68]),  # BGR minus means
        ("DenseNet121", [(0.2 - 0.485) / 0.229, (0.2 - 0.456) / 0.224, (0.2 - 0.406) / 0.225]),
        ("MobileNetV2", [-0.6, -0.6, -0.6]),
    ],
)
def test_input_scaling_matches_the_application(application, expected):
    scaled = models.InputScaling(application)(np.full((1, 1, 1, 3), 51.0))
    np.testing.assert_allclose(scaled[0, 0, 0], expected, rtol=1e-5)


def test_native_sizes_are_the_default_sizes_of_keras(monkeypatch):
    """The functions of `keras.applications` get the default size as an argument of a helper."""
    found = {}

    def stop(name, shape, default_size, **others):
        found[name] = default_size
        raise InterruptedError

    for name in ("EfficientNetB1", "EfficientNetV2S", "NASNetLarge", "ResNet50", "Xception"):
        build = getattr(keras.applications, name)
        helpers = sys.modules[build.__module__].imagenet_utils
        monkeypatch.setattr(helpers, "obtain_input_shape", functools.partial(stop, name))
        with pytest.raises(InterruptedError):
            build(weights=None)
    assert found == {name: models.backbones.native_image_size(name) for name in found}
    names = ("efficientnet_lite0", "small_convnet", "hub:dinov2_base", "mine.keras")
    assert [models.backbones.native_image_size(name) for name in names] == [224, None, None, None]


def test_small_convnet_scales_to_minus_1_to_1_and_halves_in_each_stage():
    backbone = models.build_backbone("small_convnet", 16, filters=(8, 12))
    scaling = backbone.layers[1]
    np.testing.assert_allclose(scaling(np.array([0.0, 127.5, 255.0])), [-1, 0, 1])
    convolutions = [layer for layer in backbone.layers if isinstance(layer, keras.layers.Conv2D)]
    assert [layer.filters for layer in convolutions] == [8, 8, 12, 12]
    assert backbone(images()).shape == (2, 4, 4, 12)


# Weights


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "ending"), [("mobilenetv2", ".weights.h5"), ("MOBILENET_V2", ".h5")]
)
def test_a_weights_file_gives_the_features_of_the_application(name, ending, tmp_path):
    plain = keras.applications.MobileNetV2(
        include_top=False, weights=None, input_shape=(SIZE, SIZE, 3)
    )
    preprocess = keras.applications.mobilenet_v2.preprocess_input
    scaled = preprocess(images(SIZE))
    for layer in batch_norms(plain):  # of these images, for a usual feature scale
        layer.momentum = 0.0
    plain(scaled, training=True)
    path = tmp_path / f"mobilenet{ending}"
    # `.h5` is the older format, which Keras uses for its published files.
    plain.save_weights(path) if ending == ".weights.h5" else plain.save(path)
    expected = plain(scaled, training=False).numpy()
    assert expected.std() > 0.1
    backbone = models.build_backbone(name, SIZE, weights=str(path))
    assert backbone.name == "mobilenetv2"
    assert backbone.input_shape == (None, SIZE, SIZE, 3)
    found = backbone(images(SIZE), training=False).numpy()
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("kind", "frozen", "frozen_in_file"),
    [
        ("backbone.weights.h5", None, None),
        ("backbone.weights.h5", False, True),
        ("embedding.keras", True, False),
        pytest.param("backbone.keras", True, True, marks=pytest.mark.slow),
    ],
)
def test_weights_of_a_backbone_are_restored_with_any_batch_norm(
    kind, frozen, frozen_in_file, tmp_path, recwarn
):
    """By default, statistics are frozen only with weights."""
    saved = shake(models.build_backbone("small_convnet", 16, frozen_batch_norm=frozen_in_file))
    whole = models.embedding_model(saved, 4) if kind == "embedding.keras" else saved
    path = tmp_path / kind
    whole.save_weights(path) if kind.endswith(".h5") else whole.save(path)
    loaded = models.build_backbone("small_convnet", 16, str(path), frozen_batch_norm=frozen)
    assert same(loaded.get_weights(), saved.get_weights())
    assert not [w for w in recwarn if "Skipping" in str(w.message)]
    for backbone, expected in ((saved, frozen_in_file is True), (loaded, frozen is not False)):
        are_frozen = {
            isinstance(layer, layers.FrozenStatisticsBatchNormalization)
            for layer in batch_norms(backbone)
        }
        assert are_frozen == {expected}


def test_imagenet_weights_without_a_network(monkeypatch):
    def get_file(*args, origin=None, **kwargs):
        url = origin or args[1]
        raise Exception(f"URL fetch failure on {url}: None -- [Errno -2] Name not known")

    module = keras.applications.MobileNetV2.__module__
    monkeypatch.setattr(f"{module}.file_utils.get_file", get_file)
    message = (
        "weights='imagenet' of MobileNetV2 could not be downloaded.* give its path.*packaged.*none"
    )
    with pytest.raises(ValueError, match=message):
        models.build_backbone("mobilenetv2", 96, weights="imagenet")


# Embedding models


def test_the_projection_is_linear_with_bias():
    backbone = shake(tiny_backbone())
    model = models.embedding_model(backbone, 5)
    kernel, bias = np.random.default_rng(0).normal(size=(12, 5)), np.arange(5.0) - 2
    model.get_layer("projection").set_weights([kernel, bias])
    features = models.embedding_model(backbone)(images(), training=False).numpy()
    found = model(images(), training=False).numpy()
    np.testing.assert_allclose(found, features @ kernel + bias, rtol=1e-4, atol=1e-4)
    assert found.min() < 0


def test_feature_batch_norm_has_no_scale_and_no_offset():
    model = models.embedding_model(shake(tiny_backbone()), feature_batch_norm=True)
    norm = model.get_layer("feature_norm")
    assert norm.trainable_variables == [] and len(norm.weights) == 2
    embeddings = model(images(n=32), training=True).numpy()
    np.testing.assert_allclose(embeddings.mean(axis=0), 0, atol=1e-4)
    assert (embeddings.std(axis=0) < 1.001).all() and embeddings.std(axis=0).max() > 0.9


def test_outputs_are_float32_under_mixed_precision():
    keras.config.set_dtype_policy("mixed_bfloat16")
    embedding = models.embedding_model(tiny_backbone(), 4)
    assert embedding.get_layer("projection").compute_dtype == "bfloat16"
    assert embedding(images()).dtype == "float32"
    assert models.classifier_model(embedding, 3)(images()).dtype == "float32"


LEVELS = ["stage1_conv2_relu", "stage2_conv2_relu"]


def test_levels_are_concatenated_and_normalized_separately(tmp_path):
    keras.config.set_dtype_policy("mixed_bfloat16")
    backbone = shake(tiny_backbone())
    model = models.embedding_model(backbone, None, pooling="max", levels=LEVELS)
    found = model(images(), training=False).numpy()
    assert found.shape == (2, 8 + 12) and found.dtype == "float32"
    expected = []
    for level in LEVELS:
        maps = keras.Model(backbone.input, backbone.get_layer(level).output)(images())
        vectors = maps.numpy().astype("float32").max(axis=(1, 2))
        expected.append(vectors / np.linalg.norm(vectors, axis=1, keepdims=True))
    np.testing.assert_allclose(found, np.concatenate(expected, axis=1), rtol=1e-5)
    model.save(tmp_path / "levels.keras")
    again = keras.models.load_model(tmp_path / "levels.keras")(images(), training=False)
    np.testing.assert_array_equal(again.numpy(), found)


# Classifiers


def test_the_classifier_starts_at_zero():
    embedding = models.embedding_model(shake(tiny_backbone()))
    model = models.classifier_model(embedding, 7, dropout=0.5)
    assert [w.any() for w in model.get_layer("logits").get_weights()] == [False, False]
    logits = model(images(), training=True).numpy()
    np.testing.assert_array_equal(logits, np.zeros((2, 7)))


@pytest.mark.parametrize(
    "behind", [models.proxy_model, models.classifier_model, models.embedding_model]
)
def test_sequential_model_followed_by_a_head(behind):
    embedding = keras.Sequential([keras.layers.Dense(5), keras.layers.Dense(4)])
    x = np.random.default_rng(0).normal(size=(5, 6)).astype("float32")
    z = embedding(x)
    model = behind(embedding, 7)
    for layer in model.layers[len(embedding.layers) + 1 :]:
        z = layer(z)
    assert model.predict(x, verbose=0).shape == (5, 7)
    np.testing.assert_allclose(model(x), z, rtol=1e-6)
    assert model.layers[1] is embedding.layers[0]


def vectors():
    return models.embedding_model(tiny_backbone())


def several_outputs():
    inputs = keras.Input((6,))
    return keras.Model(inputs, {"a": keras.layers.Dense(4)(inputs), "b": inputs})


def volumes():
    return functional((4, 5, 4, 3), keras.layers.ReLU())


def backbone(name, size=32, **arguments):
    return lambda: models.build_backbone(name, size, **arguments)


LAYERS = r"levels must be different layers of the backbone.*stage[12]_conv2_relu.* but got \["
MISTAKES = [
    (lambda: models.InputScaling("ResNet49"), "application must be the name of .*ResNet49"),
    (
        backbone("resnet49"),
        "backbone must be one of small_convnet, .*got 'resnet49'",
    ),
    (backbone("mobilenetv2", weights="no.weights.h5"), "weights .*'no.weights.h5' .*No such"),
    (backbone("EfficientNetB7", weights="weights.h5"), "weights must be 'imagenet' or .*.keras"),
    (backbone("small_convnet", weights="noise.weights.h5"), "weights .* fits small_convnet"),
    (backbone("small_convnet", weights="imagenet"), "^weights must "),
    (backbone("BNInception", weights="imagenet"), "weights must .* file for bn_inception.*public"),
    (backbone("efficientnet_lite0", weights="imagenet"), "weights .*'packaged', .*_lite0"),
    (backbone("resnet50_v1_5", weights="packaged"), "backbone .*_lite0 for .*packaged', but got"),
    (backbone("small_convnet", weights="some.npz"), "checkpoints fit only bn_inception, .*_lite0"),
    pytest.param(
        backbone("bn_inception", weights="some.npz"),
        "weights must .*bn_inception, .*some.npz.*missing: conv1_7x7_s2_weight",
        marks=pytest.mark.slow,
    ),
    (backbone("bn_inception", 30), r"between 32 k - 1 and 32 k \+ 6.* but got 30"),
    (backbone("bn_inception", 39), r"between 32 k - 1 and 32 k \+ 6.* but got 39"),
    (lambda: models.embedding_model(tiny_backbone(), 0), "^embedding_size must "),
    (lambda: models.classifier_model(tiny_backbone(), 3), "^embedding must "),
    *(
        (lambda levels=levels: models.embedding_model(tiny_backbone(), levels=levels), LAYERS)
        for levels in (["stage3_conv2_relu"], ["stage1_conv2_relu"] * 2, [])
    ),
    (lambda: models.embedding_model(vectors(), pooling="max"), "pooling .* gives vectors.*'max'"),
    (lambda: models.embedding_model(volumes()), r"backbone .* output shape \(None, 4, 5"),
    (lambda: models.embedding_model(several_outputs()), "backbone .* several outputs"),
    (lambda: models.proxy_model(several_outputs(), 3), "embedding must give .* several outputs"),
    (
        lambda: models.classifier_model(keras.Sequential(), 3),
        "embedding must be a built functional",
    ),
]


@pytest.mark.parametrize(("call", "message"), MISTAKES)
def test_mistakes_raise_an_error(call, message, tmp_path, monkeypatch):
    (tmp_path / "noise.weights.h5").write_bytes(b"noise")
    np.savez(tmp_path / "some.npz", some=np.ones(1))
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ArgumentError, match=message):
        call()
