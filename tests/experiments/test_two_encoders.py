"""Commands with one model for the queries and another model for the candidates."""

import numpy as np
import pytest
import tensorflow as tf
from official_layouts import write_groceries
from photo_search import make_index, picture, png
from tiny_run import small_encoder

from experiments import evaluate, search
from experiments.options.command_line import run_command


def evaluate_command(*arguments):
    return run_command(evaluate.main, ["evaluate", *map(str, arguments)])


def search_command(*arguments):
    return run_command(search.main, ["search", *map(str, arguments)])


@pytest.fixture(scope="module")
def groceries(tmp_path_factory):
    """Two photographs and a catalog picture for each of three test classes."""
    ids = [41, 42, 43]
    return write_groceries(tmp_path_factory.mktemp("data"), [0, 0, 1, 1], ids, ids, png(5))


def test_invalid_candidate_models_are_refused(groceries, tmp_path, capsys):
    small_encoder().save(tmp_path / "queries.keras")
    small_encoder(8).save(tmp_path / "longer.keras")
    given = [f"--model={tmp_path / 'queries.keras'}", f"--output_dir={tmp_path / 'out'}"]
    given += ["--dataset=groceries", f"--data_dir={groceries}", "--resize=20"]
    longer = f"--candidate_model={tmp_path / 'longer.keras'}"
    for arguments, message in (
        ([*given, longer], "candidate_model must give embeddings of length 6"),
        ([*given, longer, "--split=train"], "candidate_model must come with split=test"),
        ([longer, f"--saved_model={tmp_path}"], "candidate_model must be unset without --model"),
    ):
        assert evaluate_command(*arguments) == 2
        error = capsys.readouterr().err.splitlines()[-1]
        assert message in error


class Words(tf.Module):
    """An embedding of words: of the picture whose seed the words name."""

    def __init__(self, pictures, length):
        super().__init__()
        self.table = tf.constant(pictures)
        self.length = length

    @tf.function(input_signature=[tf.TensorSpec([None], tf.string, name="words")])
    def serve(self, words):
        rows = tf.gather(self.table, tf.strings.to_number(words, tf.int32))
        return {"embeddings": tf.ensure_shape(rows[:, : self.length], [None, self.length])}


def save_words(path, length=48):
    pixels = [np.asarray(picture(seed).resize((4, 4)), "float32") for seed in range(5)]
    words = Words(np.reshape(pixels, (5, -1)) - 127.5, length)
    tf.saved_model.save(words, str(path), {"serving_default": words.serve})
    return path


@pytest.fixture(scope="module")
def models(index):
    """SavedModels of words, of words with short embeddings, and of images."""
    folder = index.parent
    short = save_words(folder / "short", 3)
    return {"words": save_words(folder / "words"), "short": short, "images": folder / "model"}


@pytest.fixture(scope="module")
def index(tmp_path_factory):
    return make_index(tmp_path_factory.mktemp("index"))


def test_words_find_images_with_the_model_of_the_queries(index, models, capsys):
    given = [f"--index={index}", f"--query_model={models['words']}", "--k=1"]
    assert search_command(*given, "--query_text=3", "--query_text=0") == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[1] == "3" and lines[2].endswith("  b/3.gif")
    found = [line for line in lines if line.endswith("  a/0.png")]
    assert len(found) == 1


def test_an_image_is_embedded_by_the_model_of_the_queries(index, models, tmp_path, capsys):
    query = tmp_path / "query.png"
    picture(1).save(query)
    same = [f"--index={index}", f"--query={query}", "--k=1"]
    assert search_command(*same, f"--query_model={models['images']}") == 0
    assert "  a/1.png" in capsys.readouterr().out
    assert search_command(*same, f"--query_model={models['words']}") == 2
    assert "cannot be searched" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--query_text=red"], "query_text must be unset without --query_model"),
        (["--query_text=", "--query_model={short}"], "query_text must not be empty"),
        (
            ["--query_text=1", "--query_model={short}"],
            "query_model must give embeddings of length 48, as the index",
        ),
        (["--query_text=red", "--query_model={images}"], "query_model must take text"),
        (
            ["--query_text=1", "--query_model={short}", "--saved_model={images}"],
            "query_model must be unset with --saved_model",
        ),
        (["--serve", "--query_model={images}"], "query_model must be unset with --serve"),
    ],
)
def test_invalid_models_of_queries_are_refused(index, models, flags, message, capsys):
    flags = [flag.format(**models) for flag in flags]
    assert search_command(f"--index={index}", *flags) == 2
    error = capsys.readouterr().err.splitlines()
    assert len(error) == 1 and message in error[0]
