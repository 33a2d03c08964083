"""Messages of failures during a run are correct."""

import errno
import shutil
import types

import numpy as np
import pytest
import tensorflow as tf

from experiments.options import RunError, UsageError
from experiments.options.data import check_still_there
from experiments.training import fit
from experiments.training.failures import explained
from experiments.training.run_files import CHECKPOINT
from experiments.training.run_folder import RunFolder
from pipelines import ImageTable, Split

BEGINS, GOES_ON = (
    "begins again, because the run has no checkpoint",
    "resumes from the last checkpoint",
)


def split(folder):
    """Return a split of two classes whose pictures cannot be read."""
    paths = [folder / name for name in ("a.png", "b.png")]
    for path in paths:
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(b"\x89PNG broken")
    table = ImageTable(np.array([0, 1]), ("a", "b"), paths=np.array(list(map(str, paths))))
    return Split(table, table)


@pytest.mark.parametrize(
    "error",
    [
        OSError(errno.ENOSPC, "No space left on device", "/a/b"),
        tf.errors.ResourceExhaustedError(None, None, "/a/b; No space left on device"),
        KeyboardInterrupt(),
    ],
    ids=lambda error: type(error).__name__,
)
def test_the_message_depends_on_the_checkpoint(error, tmp_path):
    folder = RunFolder(tmp_path / "run", "--seed=0\n").open()
    kind = KeyboardInterrupt if isinstance(error, KeyboardInterrupt) else RunError
    for said in (BEGINS, GOES_ON):
        with pytest.raises(kind, match=said) as caught, explained(folder, split(tmp_path / "data")):
            raise error
        assert kind is KeyboardInterrupt or "/a/b" in str(caught.value)
        folder.file(CHECKPOINT).touch()


def test_a_bad_picture_of_the_training_catalog_is_named(tmp_path):
    bad = split(tmp_path / "data").train
    table = ImageTable.from_arrays(np.zeros((2, 8, 8, 3), "uint8"), bad.labels, bad.class_names)
    data = Split(table, table, training_catalog=bad)
    folder = RunFolder(tmp_path / "run", "--seed=0\n").open()
    with pytest.raises(UsageError, match="a.png"), explained(folder, data):
        raise tf.errors.InvalidArgumentError(None, None, "broken")


def test_a_lost_mount_is_not_an_image_to_skip(tmp_path):
    folder = RunFolder(tmp_path / "run", "--seed=0\n").open()
    data = split(tmp_path / "data")
    skip = "a.png .*--skip_bad_images leaves such files out"
    with pytest.raises(UsageError, match=skip), explained(folder, data):
        raise tf.errors.InvalidArgumentError(None, None, "broken")
    shutil.rmtree(tmp_path / "data")
    lost = f"a.png can no longer be read.*mount.*{BEGINS}"
    with pytest.raises(RunError, match=lost) as caught, explained(folder, data):
        raise tf.errors.NotFoundError(None, None, "a.png")
    assert "skip_bad_images" not in str(caught.value)


@pytest.mark.parametrize("reason", ["Input/output error", "Stale file handle"])
def test_a_failing_disk_is_named_while_images_are_checked(reason, tmp_path):
    with pytest.raises(RunError, match=f"a.png can no longer be read .{reason}.*disk"):
        check_still_there([(0, str(tmp_path / "a.png"), reason)])
    check_still_there([(0, str(tmp_path / "a.png"), "no such file"), (1, "b", "the file is empty")])
    with pytest.raises(RunError, match="no longer"):
        check_still_there([(0, str(tmp_path / "gone" / "a.png"), "no such file")])


def test_a_deterministic_run_reports_a_changed_number_of_threads(tmp_path, monkeypatch, caplog):
    def restore(deterministic, before, now):
        monkeypatch.setattr(fit, "threads", lambda: now)
        caplog.clear()
        fit.note_other_threads(types.SimpleNamespace(deterministic=deterministic), before)
        return caplog.text

    assert "began with 2 and resumes with 8" in restore(True, 2, 8)
    assert not restore(True, 2, 2) and not restore(True, None, 8) and not restore(False, 2, 8)
    assert fit.threads() == 8
    monkeypatch.undo()
    assert fit.threads() >= 1
