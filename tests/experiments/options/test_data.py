"""Data as the flags describe it, where there is a gallery."""

import io

import pytest
from official_layouts import write_inshop
from PIL import Image

from experiments.options import RunOptions, parse
from experiments.options import data as described


@pytest.fixture
def inshop(tmp_path):
    file = io.BytesIO()
    Image.new("RGB", (9, 8), "teal").save(file, "JPEG")
    return write_inshop(
        tmp_path / "data", (1, 1, 2), (3, 4, 5), (6, 4, 3, 5), content=file.getvalue()
    )


def data(folder, *more):
    words = ["run", "--dataset=inshop", f"--data_dir={folder}", *more]
    options = parse(RunOptions, words)
    return options, described.data(options)


def images(folder, item):
    return sorted((folder / "img" / "WOMEN" / "Tees" / f"id_{item:08}").iterdir())


def test_bad_images_leave_query_and_gallery_with_the_same_classes(inshop):
    for item in (4, 6):
        images(inshop, item)[0].write_bytes(b"no image")  # query 4, and all of 6 in the gallery
    _, (split, lines) = data(inshop, "--skip_bad_images")
    assert [line.partition("\t")[0] for line in lines] == [
        str(images(inshop, 4)[0]),
        str(images(inshop, 6)[0]),
    ]
    names = ("id_00000003", "id_00000004", "id_00000005")
    assert split.test.class_names == split.gallery.class_names == names
    assert split.test.labels.tolist() == [0, 2]
    assert split.gallery.labels.tolist() == [1, 0, 2]


def test_a_bad_image_in_the_gallery_is_found_before_the_training(inshop):
    images(inshop, 6)[0].write_bytes(b"no image")
    with pytest.raises(ValueError, match=r"not an image that can be read: .*id_00000006"):
        data(inshop)


def test_recall_goes_as_far_as_the_gallery(inshop):
    options, (split, _) = data(inshop, "--recall_at=1,4")
    assert described.recall_at(options, len(split.test), len(split.gallery)) == [1, 4]
    options, _ = data(inshop, "--recall_at=5")
    with pytest.raises(ValueError, match="between 1 and 4, the images of the gallery. .*_at=5"):
        described.recall_at(options, len(split.test), len(split.gallery))
