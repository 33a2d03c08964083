"""The plan of a run: batch, weights, and the description of its classes."""

import dataclasses
import socket
import types
import urllib.request

import numpy as np
import pytest

from experiments.options import RunOptions, UsageError, parse
from experiments.training import encoders
from experiments.training.plan import check_can_be_measured, describe, with_fitting_batch
from keras_dml import models
from keras_dml._common.errors import DownloadError
from pipelines import ImageTable, split_by_class


def data(classes):
    names = [f"kind {number}" for number in np.repeat(np.arange(2 * classes), 3)]
    return split_by_class(ImageTable.from_paths([str(n) for n in range(6 * classes)], names))


def workers(devices=1):
    return types.SimpleNamespace(strategy=types.SimpleNamespace(num_replicas_in_sync=devices))


def options(*words):
    return parse(RunOptions, ["run", "--flagfile=folder_small.flags", *words])


@pytest.mark.parametrize(
    ("classes", "devices", "size"),
    [(5, 1, 20), (5, 8, 16), (29, 1, 116), (30, 1, 120), (1, 1, 120)],
)
def test_the_batch_of_a_recipe_fits_the_number_of_training_classes(classes, devices, size, capsys):
    fitting = with_fitting_batch(options(), data(classes), workers(devices))
    assert fitting.batch_size == size
    said = capsys.readouterr().out
    if size == 120:
        assert said == ""
    else:
        assert said.startswith(f"a batch is {size} images, {size // 4} classes of 4: {classes} ")


@pytest.mark.parametrize("words", ["--batch_size=120", "--images_per_class=4", "--sampler=random"])
def test_a_batch_from_the_command_line_does_not_change(words, capsys):
    assert with_fitting_batch(options(words), data(5), workers()).batch_size == 120
    assert capsys.readouterr().out == ""


def test_the_description_lists_training_and_test_classes():
    given = types.SimpleNamespace(data=data(9), options=options(), steps_per_epoch=2, gallery=None)
    model = types.SimpleNamespace(count_params=lambda: 7)
    first, train, test = describe(given, model, types.SimpleNamespace(epoch=0)).splitlines()
    assert first.startswith("27 images of 9 classes to train, 27 of 9 others to test; 7 parameters")
    assert train == "to train: kind 0, kind 1, kind 10, …, kind 16"
    assert test.startswith("to test: kind 17, kind 2, kind 3, …")


def test_a_failed_download_of_weights_suggests_alternatives(monkeypatch):
    url = "https://example.com/weights.pth"

    def refuse(*arguments):
        raise DownloadError("no network") from Exception(f"URL fetch failure on {url}")

    monkeypatch.setattr(models, "build_backbone", refuse)
    with pytest.raises(UsageError) as refused:
        encoders.embedding_model(parse(RunOptions, ["run", "--flagfile=folder.flags"]))
    message = str(refused.value)
    words = ("--weights=packaged", "--weights=FILE", "--weights=none", *encoders.WITHOUT_DOWNLOAD)
    places = [message.index(word) for word in (url, *words)]
    assert places == sorted(places)
    for recipe in encoders.WITHOUT_DOWNLOAD:
        assert parse(RunOptions, ["run", f"--flagfile={recipe}"]).weights == "none"


def test_a_server_that_does_not_answer_ends_the_download_soon(monkeypatch):
    monkeypatch.setattr(encoders, "_SECONDS_TO_ANSWER", 0.1)
    options = parse(RunOptions, ["run", "--flagfile=folder.flags"])
    with socket.create_server(("127.0.0.1", 0)) as server:
        url = f"http://127.0.0.1:{server.getsockname()[1]}"
        with pytest.raises(OSError, match="timed out"), encoders.downloading_weights(options):
            urllib.request.urlopen(url)
    assert socket.getdefaulttimeout() is None


def test_one_photograph_per_test_class_cannot_be_measured():
    names = [f"kind {number}" for number in range(6)]
    single = split_by_class(ImageTable.from_paths(names, names))
    with pytest.raises(UsageError, match="two images or more, but got 3 images of 3 classes"):
        check_can_be_measured(single)
    check_can_be_measured(dataclasses.replace(single, gallery=single.test))
    check_can_be_measured(data(2))
