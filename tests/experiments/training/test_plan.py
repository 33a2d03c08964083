"""The plan of a run, and messages of failures during a run."""

import dataclasses
import errno
import pathlib
import shutil
import socket
import urllib.request
from types import SimpleNamespace

import numpy as np
import pytest
import tensorflow as tf

from experiments.options import RunError, RunOptions, UsageError, parse
from experiments.options.data import check_still_there
from experiments.training import encoders, fit
from experiments.training.failures import explained
from experiments.training.plan import check_can_be_measured, describe, with_fitting_batch
from experiments.training.run_files import CHECKPOINT
from experiments.training.run_folder import RunFolder
from keras_dml import models
from keras_dml._common.errors import DownloadError
from pipelines import ImageTable, Split, split_by_class


def data(classes):
    names = [f"kind {number}" for number in np.repeat(np.arange(2 * classes), 3)]
    return split_by_class(ImageTable.from_paths([str(n) for n in range(6 * classes)], names))


def options(*words):
    return parse(RunOptions, ["run", "--flagfile=folder_small.flags", *words])


def fitting_batch(classes, devices, *words):
    """Return the batch size of a recipe for a number of training classes and devices."""
    workers = SimpleNamespace(strategy=SimpleNamespace(num_replicas_in_sync=devices))
    return with_fitting_batch(options(*words), data(classes), workers).batch_size


@pytest.mark.parametrize(("classes", "devices", "size"), [(5, 1, 20), (5, 8, 16), (29, 1, 116)])
def test_the_batch_of_a_recipe_fits_the_number_of_training_classes(classes, devices, size, capsys):
    assert fitting_batch(classes, devices) == size
    said = f"a batch is {size} images, {size // 4} classes of 4: {classes} "
    assert capsys.readouterr().out.startswith(said)


def test_a_batch_that_fits_or_is_from_the_command_line_does_not_change(capsys):
    assert fitting_batch(30, 1) == fitting_batch(1, 1) == 120
    for word in ("--batch_size=120", "--images_per_class=4", "--sampler=random"):
        assert fitting_batch(5, 1, word) == 120
    assert capsys.readouterr().out == ""


def test_the_description_of_a_run():
    given = options("--fold=1/4", "--patience=2", "--epochs=9")
    run = SimpleNamespace(data=data(9), options=given, steps_per_epoch=2, gallery=None)
    model = SimpleNamespace(count_params=lambda: 7)
    first, fold, train, test = describe(run, model, SimpleNamespace(epoch=0)).splitlines()
    assert first.startswith("27 images of 9 classes to train, 27 of 9 others to test; 7 parameters")
    assert first.endswith("9 epochs of 2 steps, or until MAP@R has not risen in 2 evaluations")
    assert fold.startswith("fold 1/4 of the training classes")
    assert train == "to train: kind 0, kind 1, kind 10, …, kind 16"
    assert test.startswith("to test: kind 17, kind 2, kind 3, …")


def test_a_failed_download_of_weights_suggests_alternatives(monkeypatch):
    url = "https://example.com/weights.pth"

    def refuse(*arguments):
        raise DownloadError("no network") from Exception(f"URL fetch failure on {url}")

    monkeypatch.setattr(models, "build_backbone", refuse)
    words = ("packaged", "FILE", "none", *encoders.WITHOUT_DOWNLOAD)
    with pytest.raises(UsageError, match=".*".join([url, *words])):
        encoders.embedding_model(options("--flagfile=folder.flags"))
    for recipe in encoders.WITHOUT_DOWNLOAD:
        assert parse(RunOptions, ["run", f"--flagfile={recipe}"]).weights == "none"


def test_a_server_that_does_not_answer_ends_the_download_soon(monkeypatch):
    monkeypatch.setattr(encoders, "_SECONDS_TO_ANSWER", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as server:
        url = f"http://127.0.0.1:{server.getsockname()[1]}"
        with pytest.raises(OSError, match="timed out"), encoders.downloading_weights(options()):
            urllib.request.urlopen(url)
    assert socket.getdefaulttimeout() is None


def test_one_photograph_per_test_class_cannot_be_measured():
    names = [f"kind {number}" for number in range(6)]
    single = split_by_class(ImageTable.from_paths(names, names))
    with pytest.raises(UsageError, match="two images or more, but got 3 images of 3 classes"):
        check_can_be_measured(single)
    check_can_be_measured(dataclasses.replace(single, gallery=single.test))
    check_can_be_measured(data(2))
    within = split_by_class(ImageTable.from_paths(2 * names, 2 * names), split="within_classes")
    with pytest.raises(UsageError, match="two images or more"):
        check_can_be_measured(within)


BEGINS, GOES_ON = (
    "begins again, because the run has no checkpoint",
    "resumes from the last checkpoint",
)


def split(folder):
    """Return a split whose catalog has two pictures that cannot be read."""
    paths = [str(folder / name) for name in ("a.png", "b.png")]
    folder.mkdir()
    for path in paths:
        pathlib.Path(path).write_bytes(b"\x89PNG broken")
    bad = ImageTable(np.array([0, 1]), ("a", "b"), paths=np.array(paths))
    table = ImageTable.from_arrays(np.zeros((2, 8, 8, 3), "uint8"), bad.labels, bad.class_names)
    return Split(table, table, training_catalog=bad)


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
    data = split(tmp_path / "data")
    for said in (BEGINS, GOES_ON):
        with pytest.raises(kind, match=said) as caught, explained(folder, data):
            raise error
        assert kind is KeyboardInterrupt or "/a/b" in str(caught.value)
        folder.file(CHECKPOINT).touch()


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


@pytest.mark.parametrize(
    ("deterministic", "before", "noted"),
    [(True, 2, True), (True, 8, False), (True, None, False), (False, 2, False)],
)
def test_a_deterministic_run_reports_a_changed_number_of_threads(
    deterministic, before, noted, monkeypatch, caplog
):
    monkeypatch.setattr(fit, "threads", lambda: 8)
    fit.note_other_threads(SimpleNamespace(deterministic=deterministic), before)
    assert ("began with 2 and resumes with 8" in caplog.text) == noted
