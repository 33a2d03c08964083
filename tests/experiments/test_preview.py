"""`experiments.preview`: the contact sheet."""

import shutil

import numpy as np
import pytest
from PIL import Image

import pipelines
from experiments import preview
from experiments.options.command_line import run_command

FLAGS = ["--dataset=folder", "--image_size=32", "--resize=40", "--crop=fixed", "--images=3"]


def command(*arguments):
    return run_command(preview.main, ["preview", *map(str, arguments)])


def tiles(path, rows, columns):
    """Return the pictures of a sheet at their original size, uint8 [rows, columns, 32, 32, 3]."""
    sheet = np.asarray(Image.open(path))
    found = []
    for row in range(rows):
        for column in range(columns):
            top, left = 18 + row * 186, 8 + column * 168 + 8 * (column > 0)
            tile = sheet[top : top + 160, left : left + 160]
            assert (tile == tile[::5, ::5].repeat(5, 0).repeat(5, 1)).all()
            found.append(tile[::5, ::5])
    return np.array(found).reshape(rows, columns, 32, 32, 3)


@pytest.mark.thorough
@pytest.mark.slow
def test_a_row_has_the_evaluation_image_and_training_crops(photos, tmp_path, capsys):
    path = tmp_path / "sheet.png"
    assert command(*FLAGS, "--crops=4", f"--data_dir={photos}", f"--output={path}") == 0
    assert "3 images, once as evaluated and 4 times as trained on" in capsys.readouterr().out
    shown = tiles(path, 3, 5)
    table = pipelines.load_dataset("folder", photos).train
    evaluation = pipelines.EvaluationTransform(32, 40)
    evaluated = np.concatenate(list(pipelines.evaluation_batches(table, evaluation)))
    for row in range(3):
        # Each row has one of the training images, then different crops, some of them mirrored.
        difference = np.abs(evaluated - shown[row, 0]).max(axis=(1, 2, 3))
        assert (difference <= 0.5).sum() == 1
        assert len({tile.tobytes() for tile in shown[row]}) == 5
    first = path.read_bytes()
    assert command(*FLAGS, "--crops=4", f"--data_dir={photos}", f"--output={path}") == 0
    assert path.read_bytes() == first


@pytest.mark.slow
def test_the_file_is_named_after_the_recipe(photos, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.flags").write_text("\n".join([*FLAGS[:-1], f"--data_dir={photos}"]))
    assert command("--flagfile=mine.flags", "--images=1", "--crops=1") == 0
    assert Image.open("mine-preview.png").size == (8 + 2 * 168 + 8, 18 + 186 + 8)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--crops=0"], "crops must be a whole number of at least 1"),
        (["--resize=20"], "resize must be at least image_size"),
    ],
)
def test_bad_input(photos, arguments, message, capsys):
    assert command(*FLAGS, f"--data_dir={photos}", *arguments) == 2
    err = capsys.readouterr().err
    assert message in err and "Traceback" not in err


def test_an_unreadable_image(photos, tmp_path, capsys):
    bad = shutil.copytree(photos, tmp_path / "photos")
    for path in bad.rglob("*.*"):
        path.write_bytes(b"no image")
    assert command(*FLAGS, f"--data_dir={bad}", f"--output={tmp_path / 'sheet.png'}") == 2
    assert "not an image that can be read" in capsys.readouterr().err
    assert not (tmp_path / "sheet.png").exists()
