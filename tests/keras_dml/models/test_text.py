"""Text encoders of KerasHub: tokens, vectors, files, SavedModels, and errors."""

import importlib.util
import warnings

import numpy as np
import pytest
import tensorflow as tf
from hub_presets import preset, text_preset

import pipelines
from keras_dml import models
from keras_dml.export import export_saved_model

pytestmark = [
    pytest.mark.skipif(
        importlib.util.find_spec("keras_hub") is None, reason="KerasHub is in the extra hub"
    ),
    pytest.mark.slow,
]
TEXTS = ["a green apple", "red apples", "Milk", "a a a a a a a a a a a a", ""]


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """The folder of a preset, and its embedder."""
    folder = tmp_path_factory.mktemp("presets") / "bert"
    return folder, text_preset(folder)


@pytest.fixture(scope="module")
def name(made):
    return f"hub:{made[0]}"


def tokens_of(transform, texts=TEXTS):
    table = pipelines.ImageTable.from_encoded([text.encode() for text in texts], [0] * len(texts))
    return np.concatenate(list(pipelines.evaluation_batches(table, transform, 2)))


@pytest.mark.parametrize("length", [8, 12])
def test_vectors_are_those_of_keras_hub_for_any_length(length, made, name):
    tokens = tokens_of(models.TextTransform(name, length))
    assert tokens.shape == (5, 2, length) and tokens.dtype == "int32"
    assert tokens[:, 1].sum(axis=1).tolist() == [5, 5, 3, length, 2]
    whole = [0, 1, 2, 4] if length > 8 else range(5)  # KerasHub cuts the other text at 8
    found = models.text_backbone(name, length)(tokens, training=False)
    expected = made[1].encode_text(TEXTS, verbose=0)
    np.testing.assert_allclose(np.array(found)[whole], expected[whole], atol=1e-5)
    assert np.std(expected, axis=0).min() > 0.01


def test_training_batches_files_and_saved_models_take_texts(name, tmp_path):
    transform = models.TextTransform(name, 8)
    model = models.embedding_model(models.text_backbone(name, 8), 3)
    table = pipelines.ImageTable.from_encoded([text.encode() for text in TEXTS], [0, 0, 1, 1, 1])
    sampler = pipelines.RandomSampler(5, 4)
    model.compile("adam", "mse")
    batches = pipelines.training_batches(table, sampler, transform, num_steps=2)
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message="Gradients do not exist")
        model.fit(batches.map(lambda tokens, labels: (tokens, tf.zeros([4, 3]))), verbose=0)
    expected = model.predict(tokens_of(transform), verbose=0)
    model.save(tmp_path / "text.keras")
    loaded = models.load_keras_file(tmp_path / "text.keras")
    np.testing.assert_array_equal(loaded.predict(tokens_of(transform), verbose=0), expected)
    export_saved_model(model, tmp_path / "served", transform)
    served = tf.saved_model.load(str(tmp_path / "served")).signatures["serving_default"]
    np.testing.assert_allclose(served(tf.constant(TEXTS))["embeddings"], expected, atol=1e-5)


def test_random_weights_and_layers(name):
    first, second = (models.text_backbone(name, random=value, length=8) for value in (False, True))
    arrays = zip(first.get_weights(), second.get_weights(), strict=True)
    assert not all(np.array_equal(*pair) for pair in arrays)
    assert len(models.transformer_blocks(first)) == 2
    assert models.enable_lora(first, 2)


@pytest.mark.parametrize(
    ("given", "length", "words"),
    [
        ("hub:nothing", 8, "backbone must be hub: and a KerasHub preset"),
        ("{vit}", 8, "backbone hub:.*vit could not be read"),
        ("{text}", 17, "length must be at most 16, the longest text of .*, but got 17"),
        ("{text}", 0, "length must be .*at least 1"),
    ],
)
def test_errors_name_the_argument(given, length, words, name, tmp_path):
    if "vit" in given:
        preset("vit", tmp_path / "vit")
    given = given.format(vit=f"hub:{tmp_path / 'vit'}", text=name)
    with pytest.raises(ValueError, match=words):
        models.text_backbone(given, length)
    if length != 17:  # the tokenizer does not know the longest text
        with pytest.raises(ValueError, match=words):
            models.TextTransform(given, length)
