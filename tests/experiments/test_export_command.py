"""`experiments.export`: what it writes and says, bad input."""

import shutil

import numpy as np
import pytest
from tiny_run import TINY

from experiments import export
from experiments.options.command_line import run_command


def command(*arguments):
    return run_command(export.main, ["export", *map(str, arguments)])


@pytest.fixture
def begun(tmp_path):
    """The folder of a run that has not been evaluated yet."""
    (tmp_path / "flags.txt").write_text("\n".join(TINY) + "\n")
    return tmp_path


@pytest.fixture(scope="module")
def run(finished, tmp_path_factory):
    """A copy of a finished run."""
    return shutil.copytree(finished, tmp_path_factory.mktemp("exported") / "run")


@pytest.mark.slow
def test_a_run_is_exported_with_its_card(run, capsys):
    assert command(f"--run={run}", "--format=saved_model") == 0
    printed = capsys.readouterr().out
    for words in (
        "| lost           |  0.00",
        "size: ",
        "similarity of two: 1.0",
        "ms an",
    ):
        assert words in printed
    folder = run / "exports" / "saved_model"
    assert sorted(path.name for path in folder.iterdir()) == [
        "export.json",
        "model_card.md",
        "saved_model",
    ]
    card = (folder / "model_card.md").read_text()
    for words in (
        "20 images of 5 classes",
        "--epochs=2",
        "None yet",
        "random weights",
    ):
        assert words in card
    assert str(run) not in card and "--data_dir" not in card
    # Again, with what a killed one has left, and of a model that the run has not embedded by.
    (folder.parent / ".saved_model.partial").mkdir()
    with np.load(run / "test_embeddings.npz") as saved:
        arrays = dict(saved)
    arrays["labels"] = arrays["labels"][::-1]
    np.savez(run / "test_embeddings.npz", **arrays)
    assert command(f"--run={run}", "--format=saved_model", f"--output_dir={folder}") == 0
    assert "| lost           |  0.00" in capsys.readouterr().out
    assert [path.name for path in folder.parent.iterdir()] == ["saved_model"]


@pytest.mark.slow
def test_the_card_beside_the_saved_model_of_a_run(finished):
    card = (finished / "model_card.md").read_text()
    for words in ("# folder", "`saved_model`", "embedding, cosine", "16 × 16 pixels", "None yet"):
        assert words in card


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "give --run and --format"),
        (["--format=onnx"], "give --run"),
        (["--run={run}"], "give --format"),
        (["--run=/nowhere", "--format=onnx"], "with flags.txt in it. Received: run=/nowhere"),
        (["--run={run}", "--format=tensorrt"], "<saved_model|onnx|openvino|litert>"),
        (["--run={run}", "--format=saved_model", "--int8"], "int8 is for litert, onnx, openvino"),
        (["--run={run}", "--format=onnx", "--examples=9"], "examples is for --int8"),
        (["--run={run}", "--format=litert", "--int8", "--examples=0"], "examples"),
        (["--run={run}", "--format=saved_model"], "run must have a model"),
    ],
)
def test_bad_input(words, message, begun, capsys):
    assert command(*(word.format(run=begun) for word in words)) == 2
    assert [path.name for path in begun.iterdir()] == ["flags.txt"]
    printed = capsys.readouterr().err
    assert message in printed and printed.startswith("error: ") and printed.count("\n") == 1


@pytest.mark.slow
def test_what_is_not_there_and_what_is_something_else(run, capsys):
    for words, message in (
        (["--data_dir=/nowhere"], "/nowhere"),
        ([f"--output_dir={run}"], "path must be new or hold an export"),
    ):
        assert command(f"--run={run}", "--format=saved_model", *words) == 2
        assert message in capsys.readouterr().err
        assert (run / "best.keras").is_file()
