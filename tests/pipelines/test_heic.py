"""HEIC photographs, with and without the package pillow-heif."""

import importlib
import importlib.util
import io
import sys
import types

import numpy as np
import pytest
from image_files import encode
from PIL import Image

from experiments.pages.pictures import checked_picture, thumbnail
from keras_dml._common.errors import ArgumentError
from pipelines import ImageTable, evaluation_batches, find_bad_images, heic
from pipelines.datasets import folder
from pipelines.images.transforms import EvaluationTransform

PIXELS = np.random.default_rng(0).integers(0, 256, (12, 16, 3), dtype=np.uint8)
HEAD = b"\0\0\0\x18ftypheic"
PNG = encode(Image.fromarray(PIXELS), "PNG")
HEIC = HEAD + PNG


def open_heic(file, name):
    """Open a file of `HEAD` and a PNG, in place of the decoder of pillow-heif."""
    file.seek(len(HEAD))
    image = Image.open(io.BytesIO(file.read()))
    image.format = "HEIF"
    return image


def register():
    Image.register_open("HEIF", open_heic, lambda head: head[4:12] == b"ftypheic")


@pytest.fixture
def with_package(monkeypatch):
    module = types.ModuleType("pillow_heif")
    module.__spec__ = importlib.util.spec_from_loader("pillow_heif", None)
    module.register_heif_opener = register
    monkeypatch.setitem(sys.modules, "pillow_heif", module)
    importlib.reload(folder)
    yield
    monkeypatch.undo()
    Image.OPEN.pop("HEIF", None)
    Image.ID.remove("HEIF")
    importlib.reload(folder)


@pytest.mark.slow
@pytest.mark.usefixtures("with_package")
def test_photographs_are_listed_checked_decoded_and_shown(tmp_path):
    for name in ("a/1.heic", "a/2.HEIF", "b/3.heic", "b/4.png"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(PNG if name.endswith("png") else HEIC)
    table = folder.folder(tmp_path)
    assert len(table) == 4 and find_bad_images(table) == find_bad_images(table, decode=False) == []
    transform = EvaluationTransform(8, resize=(12, 16))
    (images,) = evaluation_batches(table, transform)
    np.testing.assert_array_equal(images, np.repeat(images[3:], 4, axis=0))
    (same,) = evaluation_batches(ImageTable.from_encoded([HEIC], [0]), transform)
    np.testing.assert_array_equal(same[0], images[3])
    assert heic.as_png(PNG) == PNG
    assert np.array_equal(Image.open(io.BytesIO(checked_picture(HEIC))), PIXELS)
    assert thumbnail(io.BytesIO(HEIC))[1] == "png"


@pytest.mark.usefixtures("with_package")
def test_damaged_and_large_photographs_are_refused_in_one_line():
    table = ImageTable.from_encoded([HEIC[:40], HEIC], [0, 0])
    found = find_bad_images(table, max_pixels=100)
    assert [row for row, _, _ in found] == [0, 1]
    assert "a damaged HEIC image" in found[0][2] and "\n" not in found[0][2]
    assert found[1][2] == "an image of more than 100 pixels"


def test_without_the_package_one_message_names_it(tmp_path, monkeypatch):
    """See also `test_unsupported_images_are_counted_in_one_line`."""
    monkeypatch.setattr(heic, "can_be_read", lambda: False)
    said = "pip install pillow-heif"
    with pytest.raises(ArgumentError, match=said):
        heic.as_png(HEIC)
    with pytest.raises(ArgumentError, match=said):
        checked_picture(HEIC)
    (tmp_path / "x.jpg").write_bytes(HEIC)
    for decode in (True, False):
        table = ImageTable.from_paths([str(tmp_path / "x.jpg")], [0])
        ((_, _, reason),) = find_bad_images(table, decode=decode)
        assert said in reason


@pytest.mark.skipif(not heic.can_be_read(), reason="needs pillow-heif")
def test_a_photograph_by_pillow_heif():
    import pillow_heif

    file = io.BytesIO()
    pillow_heif.from_pillow(Image.fromarray(PIXELS)).save(file, quality=-1)
    assert heic.is_heic(file.getvalue())
    found = np.asarray(Image.open(io.BytesIO(heic.as_png(file.getvalue()))), np.int16)
    assert np.abs(found - PIXELS).mean() < 20
