"""`experiments.export`: its files, output, and invalid input."""

import shutil

import pytest
from tiny_run import command_of

command = command_of("export")


@pytest.mark.slow
def test_a_run_is_exported_with_its_card(finished, tmp_path, capsys):
    run = shutil.copytree(finished, tmp_path / "run")
    given = [f"--run={run}", "--format=saved_model"]
    for words, message in (
        (["--data_dir=/nowhere"], "/nowhere"),
        ([f"--output_dir={run}"], "path must be a new folder, or an export"),
    ):
        assert command(*given, *words) == 2
        assert message in capsys.readouterr().err
        assert (run / "best.keras").is_file()

    assert command(*given) == 0
    printed = capsys.readouterr().out
    for words in ("| lost           |  0.00", "size: ", "similarity of two: 1.0", "ms an"):
        assert words in printed
    folder = run / "exports" / "saved_model"
    written = ["export.json", "model_card.md", "saved_model"]
    assert sorted(path.name for path in folder.iterdir()) == written
    card = (folder / "model_card.md").read_text()
    for words in (
        "20 images of 5 classes",
        "--epochs=2",
        "None yet",
        "random weights",
        "resized to",
    ):
        assert words in card
    assert str(run) not in card and "--data_dir" not in card
    # Again, with leftovers of a killed export.
    (folder.parent / ".saved_model.partial").mkdir()
    (folder.parent / ".saved_model.lock").touch()
    assert command(*given, f"--output_dir={folder}") == 0
    assert "| lost           |  0.00" in capsys.readouterr().out
    assert [path.name for path in folder.parent.iterdir()] == ["saved_model"]
