"""Datasets from flags, with a gallery or a fold."""

import re

import pytest
from official_layouts import write_groceries, write_inshop
from photo_search import png, write_photos
from tiny_run import run_options

from experiments.options import UsageError
from experiments.options import data as described


def data(dataset, folder, *more, known_bad=None):
    """Return the dataset of a command line, and the lines of its bad images."""
    options = run_options(f"--dataset={dataset}", f"--data_dir={folder}", *more)
    return described.data(options, known_bad)


def names(lines):
    return [line.partition("\t")[0] for line in lines]


def test_bad_images_leave_query_and_gallery_with_the_same_classes(tmp_path):
    inshop = write_inshop(tmp_path, (1, 1, 2), (3, 4, 5), (6, 4, 3, 5), content=png(5))
    tees = inshop / "img" / "WOMEN" / "Tees"
    alone, other = (sorted((tees / f"id_{item:08}").iterdir())[0] for item in (6, 4))
    alone.write_bytes(b"no image")  # the only gallery image of class 6
    with pytest.raises(ValueError, match=r"not an image that can be read: .*id_00000006"):
        data("inshop", inshop)
    other.write_bytes(b"no image")  # a query of class 4
    split, lines = data("inshop", inshop, "--skip_bad_images")
    assert names(lines) == [str(other), str(alone)]
    kept = ("id_00000003", "id_00000004", "id_00000005")
    assert split.test.class_names == split.gallery.class_names == kept
    assert split.test.labels.tolist() == [0, 2]
    assert split.gallery.labels.tolist() == [1, 0, 2]


BREAKING = ["a\nb.png", "a\r\tb.png", "a\u2028b.png", "a\x85 b.png", '"a".png']


def test_bad_images_with_line_breaks_in_their_names_are_left_out(tmp_path, monkeypatch):
    for side in ("train", "unseen"):
        write_photos(tmp_path / side, ["good.png", "also good.png", f"not {side}.png", *BREAKING])
    for name in ("not train.png", *BREAKING):
        (tmp_path / "train" / name).write_bytes(b"no image")
    split, lines = data("folder", tmp_path, "--skip_bad_images")
    left = [path.rpartition("/")[2] for path in split.train.paths]
    assert left == ["also good.png", "good.png"] and len(split.test) == 3 + len(BREAKING)
    assert len(lines) == 1 + len(BREAKING)
    assert all(line.isprintable() for line in "".join(lines).split("\t"))
    # A resumed run does not decode the images again.
    monkeypatch.setattr(described.pipelines, "find_bad_images", pytest.fail)
    again, same = data("folder", tmp_path, "--skip_bad_images", known_bad=lines)
    assert same == lines and again.train.paths.tolist() == split.train.paths.tolist()


def test_a_fold_never_reads_a_test_image(tmp_path):
    photos = write_photos(tmp_path, [f"{kind}/{n}.png" for kind in "abcdefgh" for n in range(2)])
    for kind in "efgh":  # the test classes
        for file in (photos / kind).iterdir():
            file.write_text("no image")
    with pytest.raises(UsageError, match="not an image"):
        data("folder", photos)
    for fold, kinds in (("1/2", "ab"), ("2/2", "cd")):
        for more in ([], ["--skip_bad_images"]):
            split, lines = data("folder", photos, f"--fold={fold}", *more)
            assert split.test.class_names == tuple(kinds)
            assert sorted(split.train.class_names + split.test.class_names) == list("abcd")
            assert not lines


def test_bad_pictures_of_the_training_catalog_are_found_before_training(tmp_path):
    folder = write_groceries(tmp_path, content=png(5))
    (bad,) = folder.rglob("Kind_1_Iconic.jpg")
    bad.write_bytes(b"no image")
    given = ("groceries", folder, "--candidates=catalog")
    with pytest.raises(UsageError, match="not an image.*Kind_1_Iconic"):
        data(*given)
    split, lines = data(*given, "--skip_bad_images")
    assert names(lines) == [str(bad)]
    assert split.train.class_names == split.training_catalog.class_names
    assert split.train.num_classes == 2 and split.training_catalog.labels.tolist() == [0]


def test_a_few_files_that_are_not_images_are_left_out_of_a_folder(tmp_path, capsys):
    photos = write_photos(tmp_path, [f"{kind}/{n}.png" for kind in "abcd" for n in range(10)])
    (photos / "a" / "3.png").write_text("no image")
    (photos / "d" / "7.png").write_text("no image")
    split, lines = data("folder", photos)
    assert (len(split.train), len(split.test), len(lines)) == (19, 19, 2)
    said = capsys.readouterr().out
    assert said.count("left out: ") == 2 and f"{photos}/a/3.png (not a JPEG" in said
    (photos / "b" / "0.png").write_text("no image")
    with pytest.raises(UsageError, match=r"a/3.png .*--skip_bad_images"):
        data("folder", photos)


@pytest.mark.parametrize("fold", ["1", "0/2", "3/2", "1/1", "1/0", "a/b", "-1/2", "1/2/3", "²/3"])
def test_invalid_folds(fold):
    with pytest.raises(UsageError, match=f"fold must be K/N.* got {fold}"):
        run_options(f"--fold={fold}")


@pytest.mark.parametrize(
    ("words", "resize"),
    [
        ([], "128"),
        (["--image_size=160"], "183"),
        (["--image_size=160", "--resize=256"], "256"),
        (["--image_size=160", "--resize=none"], None),
    ],
)
def test_the_resize_of_a_recipe_follows_the_image_size_of_the_command_line(words, resize):
    assert run_options("--flagfile=folder_scratch.flags", *words).resize == resize


def test_another_image_size_than_that_of_the_weights_is_announced():
    line = described.native_size_line("InceptionV3", "imagenet", 224)
    assert line.startswith("image_size=224, but the public weights of InceptionV3 were trained wit")
    assert "--image_size=299 is usually better" in line
    for backbone, weights, size in (
        ("InceptionV3", "imagenet", 299),
        ("InceptionV3", "none", 224),
        ("hub:dinov2_base", "imagenet", 224),
    ):
        assert not described.native_size_line(backbone, weights, size)


def test_options_at_another_image_size_keep_the_resize_in_proportion():
    options = run_options("--image_size=160", "--resize=200x183").at_size(224)
    assert (options.image_size, options.resize) == (224, "280x256")
    assert run_options("--image_size=160").at_size(224).resize is None


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("--image_size=160 --resize=256", "39% of a square photograph.*resize=256"),
        ("--image_size=160 --resize=200x256", "50% of a photograph"),
        ("--image_size=224 --resize=256", "^$"),
        ("", "^$"),
    ],
)
def test_a_crop_that_removes_much_is_announced(words, expected):
    assert re.search(expected, described.crop_line(run_options(*words.split())))
