"""Fixtures for the tests of several commands."""

import numpy as np
import pytest
from photo_search import make_index
from PIL import Image
from small_commands import small_commands
from tiny_run import finished_run

from experiments.pages import report
from experiments.pages.retrieval import Shown


@pytest.fixture(scope="session")
def photos(tmp_path_factory):
    """10 classes of 4 small pictures with one color per class, noise, and random sizes."""
    root = tmp_path_factory.mktemp("photos")
    rng = np.random.default_rng(0)
    for name in range(10):
        (root / f"class{name}").mkdir()
        color = rng.uniform(40, 215, size=3)
        for image in range(4):
            size = rng.integers(18, 30, size=2)
            pixels = np.clip(color + rng.normal(0, 25, size=(*size, 3)), 0, 255)
            picture = Image.fromarray(pixels.astype("uint8"))
            suffix = ("png", "jpg", "bmp", "webp")[image]
            picture.save(root / f"class{name}" / f"{image}.{suffix}")
    return root


@pytest.fixture
def without_pictures(monkeypatch):
    """Leave the pictures out of pages: they take a fifth of the time of a small run."""
    monkeypatch.setattr(report, "shown_of_readable", lambda images: Shown())


@pytest.fixture(scope="module")
def small(photos, finished, tmp_path_factory):
    """Short commands that write files, by name."""
    return small_commands(photos, finished, tmp_path_factory.mktemp("read"))


@pytest.fixture(scope="session")
def index(tmp_path_factory):
    """The folder of an index of five photos, next to the folders "photos" and "model"."""
    return make_index(tmp_path_factory.mktemp("indexed"))


@pytest.fixture(scope="session")
def finished(photos, tmp_path_factory):
    return finished_run(tmp_path_factory.mktemp("runs") / "tiny", photos, "--raw_pixels")
