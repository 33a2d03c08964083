"""`experiments.export`: its files, output, and invalid input."""

import shutil

import pytest
from tiny_run import command_of

command = command_of("export")


@pytest.fixture(scope="module")
def run(finished, tmp_path_factory):
    """A copy of a finished run."""
    return shutil.copytree(finished, tmp_path_factory.mktemp("exported") / "run")


@pytest.mark.slow
def test_a_run_is_exported_with_its_card(run, capsys):
    assert command(f"--run={run}", "--format=saved_model") == 0
    printed = capsys.readouterr().out
    for words in ("| lost           |  0.00", "size: ", "similarity of two: 1.0", "ms an"):
        assert words in printed
    folder = run / "exports" / "saved_model"
    assert {path.name for path in folder.iterdir()} == {
        "export.json",
        "model_card.md",
        "saved_model",
    }
    card = (folder / "model_card.md").read_text()
    for words in ("20 images of 5 classes", "--epochs=2", "None yet", "random weights"):
        assert words in card
    assert str(run) not in card and "--data_dir" not in card
    # Again, with leftovers of a killed export.
    (folder.parent / ".saved_model.partial").mkdir()
    (folder.parent / ".saved_model.lock").touch()
    assert command(f"--run={run}", "--format=saved_model", f"--output_dir={folder}") == 0
    assert "| lost           |  0.00" in capsys.readouterr().out
    assert [path.name for path in folder.parent.iterdir()] == ["saved_model"]


@pytest.mark.slow
def test_a_missing_dataset_and_a_folder_without_an_export(run, capsys):
    for words, message in (
        (["--data_dir=/nowhere"], "/nowhere"),
        ([f"--output_dir={run}"], "path must be a new folder, or an export"),
    ):
        assert command(f"--run={run}", "--format=saved_model", *words) == 2
        assert message in capsys.readouterr().err
        assert (run / "best.keras").is_file()
