"""`experiments.preview`: the contact sheet."""

import shutil

import numpy as np
import pytest
from PIL import Image
from tiny_run import command_of

import pipelines
from experiments import preview

FLAGS = ["--dataset=folder", "--image_size=32", "--resize=40", "--crop=fixed", "--rows=3"]


command = command_of("preview")


@pytest.mark.slow
def test_a_row_has_the_evaluation_image_and_training_crops(photos):
    table = pipelines.load_dataset("folder", photos).train.select(np.arange(4))
    evaluation = pipelines.EvaluationTransform(32, 40)
    augmentation = pipelines.TrainTransform(24, 30, crop="fixed")
    shown, again = (preview.tiles(table, augmentation, evaluation, 2, seed=1) for _ in range(2))
    (first, *crops), count = shown, len(table)
    assert first.shape == (count, 32, 32, 3) and {x.shape for x in crops} == {(count, 24, 24, 3)}
    np.testing.assert_array_equal(crops, again[1:])
    evaluated = np.concatenate(list(pipelines.evaluation_batches(table, evaluation)))
    np.testing.assert_allclose(first, evaluated, atol=0.5)
    for row in zip(*crops, strict=True):  # different crops, some of them mirrored
        assert len({tile.tobytes() for tile in row}) == 2


@pytest.mark.slow
def test_the_file_is_named_after_the_recipe(photos, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.flags").write_text("\n".join([*FLAGS[:-1], f"--data_dir={photos}"]))
    assert command("--flagfile=mine.flags", "--rows=1", "--crops=1") == 0
    width, height = Image.open("mine-preview.png").size
    assert width > 300 and height > 150


def test_an_unreadable_image(photos, tmp_path, capsys):
    bad = shutil.copytree(photos, tmp_path / "photos")
    for path in bad.rglob("*.*"):
        path.write_bytes(b"no image")
    assert command(*FLAGS, f"--data_dir={bad}", f"--output={tmp_path / 'sheet.png'}") == 2
    assert "not an image that can be read" in capsys.readouterr().err
    assert not (tmp_path / "sheet.png").exists()
