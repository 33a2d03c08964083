"""Dataset changes after a run: training images are never used as test images unnoticed."""

import contextlib
import os
import shutil

import numpy as np
import pytest
from photo_search import write_photos
from tiny_run import TINY

from experiments.evaluation.result import RAW_PIXELS_FILE as RAW_PIXELS
from experiments.options import RunOptions, UsageError, parse, resolved
from experiments.options import data as described
from experiments.pages.retrieval import same_queries
from experiments.training.run_files import (
    CHECKPOINT,
    FLAGS_FILE,
    IMAGES,
    note_other_images,
)
from experiments.training.run_folder import RunFolder
from experiments.training.run_images import images_of_run, record_of, settle_images
from keras_dml._files.manifest import DamagedError
from pipelines import ImageTable, Split

NAMES = [f"{kind}/{number}.png" for kind in "abcdef" for number in range(2)]


def options_of(photos):
    return parse(RunOptions, ["run", *TINY, f"--data_dir={photos}"])


@pytest.fixture
def photos(tmp_path):
    return write_photos(tmp_path / "photos", NAMES)


@pytest.fixture
def begun(photos, tmp_path):
    """The folder of a run with a checkpoint."""
    return begin(tmp_path / "run", photos)


@contextlib.contextmanager
def opened(path, photos):
    """Open the folder of a run and compare its images, as the run does."""
    options = options_of(photos)
    folder = RunFolder(path, resolved(options)).open()
    with contextlib.closing(folder):
        settle_images(folder, record_of(described.data(options)[0]))
        yield folder


def begin(path, photos):
    with opened(path, photos) as folder:
        folder.write_text(CHECKPOINT, "a checkpoint")
    return path


def images_now(run, *words, data_dir_moves=False):
    """Return a run's images like `evaluate`, or like `export` if the folder may have moved."""
    options = parse(RunOptions, ["run", f"--flagfile={run / FLAGS_FILE}", *words])
    return images_of_run(run, options, data_dir_moves, refuses=True)


def test_training_images_are_refused_as_test_images(photos, begun, caplog):
    assert len(images_now(begun).test) == 6 and not caplog.text
    write_photos(photos, ["aa/0.png", "ab/0.png"])  # b and c no longer train
    shutil.rmtree(photos / "f")
    shutil.rmtree(photos / "e")
    with pytest.raises(UsageError) as refused:
        images_now(begun)
    for words in (
        "training: 2 new (aa/0.png, ab/0.png), 4 missing (b/0.png, b/1.png, c/0.png, …); ",
        "; test: 4 new (b/0.png, b/1.png, c/0.png, …), 4 of them training images of the run, ",
        "or name the right folder, --data_dir=FOLDER",
    ):
        assert words in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_renamed_class_may_be_a_training_class(photos, begun):
    (photos / "a").rename(photos / "z")
    write_photos(photos, ["f1/0.png", "A/0.png"])
    with pytest.raises(UsageError, match="Training images would be measured"):
        images_now(begun)


def test_new_images_of_known_classes_are_only_reported(photos, begun, caplog):
    write_photos(photos, ["a/9.png", "f/9.png"])
    (photos / "e" / "0.png").unlink()
    assert len(images_now(begun).test) == 6
    assert "training: 1 new (a/9.png); test: 1 new (f/9.png), 1 missing (e/0.png)" in caplog.text


def test_a_run_does_not_resume_with_other_images(photos, begun):
    write_photos(photos, ["a/9.png"])
    refused = pytest.raises(UsageError, match=r"training: 1 new \(a/9.png\)\. Put them")
    with refused, opened(begun, photos):
        pass
    (photos / "a" / "9.png").unlink()
    with opened(begun, photos):
        pass
    (begun / IMAGES).write_text("damaged")
    with (
        pytest.raises(DamagedError, match="images.json is damaged.*Put it back, or delete"),
        opened(begun, photos),
    ):
        pass


def test_a_run_without_a_checkpoint_accepts_other_images(photos, begun):
    (begun / CHECKPOINT).unlink()
    (begun / RAW_PIXELS).write_text("{}")
    with opened(begun, photos):
        assert (begun / RAW_PIXELS).exists()
    write_photos(photos, ["a/9.png"])
    with opened(begun, photos):  # the scores belong to the previous images
        assert not (begun / RAW_PIXELS).exists() and '"9.png"' in (begun / IMAGES).read_text()


def test_flags_can_select_other_images(photos, begun, tmp_path, caplog):
    others = write_photos(tmp_path / "others", ["x/0.png", "x/1.png", "c/0.png", "c/1.png"])
    mine = tmp_path / "mine.flags"
    mine.write_text(f"--data_dir={others}\n")
    for words in ([f"--data_dir={others}"], [f"--flagfile={mine}"], ["--train_classes=2"]):
        images_now(begun, *words)
        assert not caplog.text
    # Another spelling of the same folder, or a moved folder, does not count as other images.
    write_photos(photos, ["0/0.png", "1/0.png"])
    spelled = os.path.relpath(photos)
    for words, moves in (([f"--data_dir={spelled}"], False), ([f"--data_dir={others}"], True)):
        with pytest.raises(UsageError, match="Training images would be measured"):
            images_now(begun, *words, data_dir_moves=moves)


def test_moved_images_are_found_with_data_dir(photos, begun, tmp_path, monkeypatch):
    moved = photos.rename(tmp_path / "moved")
    with pytest.raises(UsageError, match=f"data_dir must be .*{photos}.*--data_dir=FOLDER"):
        images_now(begun)
    for moves in (True, False):
        split = images_now(begun, f"--data_dir={moved}", data_dir_moves=moves)
        assert split.test.paths[0] == str(moved / "d" / "0.png")
    monkeypatch.chdir(tmp_path)
    relative = begin(tmp_path / "relative", "moved")
    assert len(images_now(relative).test) == 6
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    with pytest.raises(UsageError, match="data_dir must be .*moved, which is not in .*elsewhere"):
        images_now(relative)
    assert len(images_now(relative, "--data_dir=../moved", data_dir_moves=True).test) == 6


def test_images_in_memory_are_identified_by_their_classes(tmp_path):
    def split(classes):
        table = ImageTable.from_arrays(np.zeros((8, 4), "float32"), np.arange(8) // (8 // classes))
        return Split(table, table, same_classes=True)

    assert record_of(split(4)) == record_of(split(4)) != record_of(split(2))


@pytest.mark.parametrize(("removed", "done"), [("f", "measured"), ("a", "trained")])
def test_runs_with_different_images_are_reported(photos, tmp_path, caplog, removed, done):
    runs = {"old": tmp_path / "old"}  # a run without a record
    runs |= {name: begin(tmp_path / name, photos) for name in ("one", "two")}
    note_other_images(runs)
    assert not caplog.text
    (photos / removed / "0.png").unlink()
    runs |= {name: begin(tmp_path / name, photos) for name in ("three", "four")}
    note_other_images(runs)
    (record,) = caplog.records
    assert record.message.startswith(f"not {done} on the same images as one: three; four. ")
    assert "delete the folders of these runs and repeat the command" in record.message


@pytest.mark.parametrize("damage", ["lost", "changed"])
def test_runs_without_their_list_of_images_are_compared_with_a_warning(
    damage, photos, tmp_path, caplog
):
    runs = {name: begin(tmp_path / name, photos) for name in ("one", "two", "three")}
    lost = runs["two"] / "images.json"
    lost.unlink() if damage == "lost" else lost.write_text("{}")
    note_other_images(runs)
    (record,) = caplog.records
    assert f"{lost} is " in record.message and f"or delete {lost.parent}" in record.message


@pytest.mark.slow
def test_runs_are_shown_with_the_same_queries(photos, tmp_path):
    split, _ = described.data(options_of(photos))
    embeddings, paths = np.eye(6, dtype="float32"), split.test.paths
    kept = {"embeddings": embeddings, "labels": split.test.labels}
    np.savez(tmp_path / "test_embeddings.npz", **kept, paths=paths)
    transform = described.evaluation_transform(options_of(photos))
    assert same_queries({"one": tmp_path}, split, transform) is not None
    np.savez(tmp_path / "test_embeddings.npz", **kept, paths=[f"{path}.png" for path in paths])
    assert same_queries({"one": tmp_path}, split, transform) is None


@pytest.mark.parametrize("content", [None, b"", b"PK\3\4", "no array of embeddings"])
def test_damaged_embeddings_of_a_run_leave_out_the_pictures(content, photos, tmp_path, caplog):
    split, _ = described.data(options_of(photos))
    transform = described.evaluation_transform(options_of(photos))
    if isinstance(content, bytes):
        (tmp_path / "test_embeddings.npz").write_bytes(content)
    elif content:
        np.savez(tmp_path / "test_embeddings.npz", labels=split.test.labels)
    assert same_queries({"one": tmp_path}, split, transform) is None
    assert f"no pictures of {tmp_path}: its test_embeddings.npz: " in caplog.text
