"""Tables of images, their labels and boxes, and their splits and folds."""

import dataclasses
import warnings
from pathlib import Path

import numpy as np
import pytest

from pipelines import (
    BalancedSampler,
    EvaluationTransform,
    ImageTable,
    Split,
    TrainTransform,
    split_by_class,
    training_fold,
)


def small_table():
    """Return seven images of four classes, not grouped by class."""
    return ImageTable.from_paths(
        [f"{number}.png" for number in range(7)], ["d", "a", "b", "a", "c", "d", "b"]
    )


IDS = np.array([1, 0, 1])


@pytest.mark.parametrize(
    ("labels", "names"),
    [
        (["b", "a", "b"], ("a", "b")),
        (np.array(["é", "x", "é"]), ("x", "é")),
        (np.array([b"b", b"a", b"b"]), ("a", "b")),
        ([70, -3, 70], ("-3", "70")),
        ([10, 9, 10], ("9", "10")),
        (IDS.astype(np.uint8), ("0", "1")),
        (IDS + 2**40, (f"{2**40}", f"{2**40 + 1}")),
        (IDS + 2.0**40, (f"{2**40}", f"{2**40 + 1}")),
        (np.ma.array(IDS, mask=False), ("0", "1")),
    ],
)
def test_labels_of_all_types_are_numbered_in_sorted_order(labels, names):
    table = ImageTable.from_paths(["1.png", Path("2.png"), "3.png"], labels)
    assert table.labels.dtype == np.int64
    assert table.labels.tolist() == IDS.tolist()
    assert table.class_names == names
    assert all(type(name) is str for name in table.class_names)
    assert table.paths.tolist() == ["1.png", "2.png", "3.png"]
    assert table.arrays is None
    assert (len(table), table.num_classes) == (3, 2)
    sampled = BalancedSampler(labels, 2, 2)(1)
    np.testing.assert_array_equal(sampled, BalancedSampler(IDS, 2, 2)(1))


def test_a_table_cannot_be_changed_and_shares_its_arrays():
    labels, pixels = np.array([0, 1]), np.zeros((2, 1, 1, 1), np.uint8)
    table = ImageTable(labels, ("a", "b"), arrays=pixels)
    labels[0] = 1
    assert table.labels.tolist() == [0, 1]
    for array in (table.labels, table.arrays, small_table().paths):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = array[1]
    with pytest.raises(dataclasses.FrozenInstanceError):
        table.labels = labels
    assert table.paths is None
    assert np.shares_memory(table.arrays, pixels) and pixels.flags.writeable


def test_selected_rows_keep_the_classes_and_selected_classes_are_renumbered():
    selected = small_table().select([6, 0])
    assert selected.paths.tolist() == ["6.png", "0.png"]
    assert selected.labels.tolist() == [1, 3]
    assert selected.class_names == ("a", "b", "c", "d")
    assert len(small_table().select(np.arange(7) < 3)) == 3
    selected = small_table().select_classes([3, 0])
    assert selected.paths.tolist() == ["0.png", "1.png", "3.png", "5.png"]
    assert selected.labels.tolist() == [0, 1, 1, 0]
    assert selected.class_names == ("d", "a")


def test_encoded_images_are_kept_byte_by_byte():
    files = [b"a\0\0", b"", b"\xff\0b", b"c"]
    table = ImageTable.from_encoded(files, ["y", "x", "y", "z"])
    assert table.encoded.tolist() == files
    assert table.paths is None and table.arrays is None
    assert table.select([2, 0]).encoded.tolist() == [files[2], files[0]]
    assert table.select_classes([1]).encoded.tolist() == [files[0], files[2]]
    assert repr(table) == "ImageTable(4 images as encoded, 3 classes)"
    with pytest.raises(ValueError, match="read-only"):
        table.encoded[0] = b""


def test_boxes_stay_with_their_rows():
    boxes = np.array([[row, 2 * row, 5, 6] for row in range(7)], np.uint8)
    table = dataclasses.replace(small_table(), boxes=boxes)
    assert table.boxes.dtype == np.int64
    assert table.select([6, 0]).boxes.tolist() == [[6, 12, 5, 6], [0, 0, 5, 6]]
    assert table.select_classes([0]).boxes[:, 0].tolist() == [1, 3]
    assert split_by_class(table).test.boxes[:, 0].tolist() == [0, 4, 5]
    assert small_table().select([6, 0]).boxes is None
    with pytest.raises(ValueError, match="read-only"):
        table.boxes[0] = 0
    for build, images in (("from_arrays", PIXELS), ("from_encoded", [b"1", b"2"])):
        built = getattr(ImageTable, build)(images, [0, 1], boxes=[[0, 0, 1, 2], [1, 0, 3, 4]])
        assert built.select([1]).boxes.tolist() == [[1, 0, 3, 4]]


def test_each_table_of_a_split_has_the_class_names_of_its_side():
    table = small_table()
    split = Split(table, table.select([0]), gallery=table.select([1, 2]))
    sizes = {name: len(part) for name, part in split.tables.items()}
    assert sizes == {"training": 7, "test": 1, "gallery": 2}
    split = Split(table.select([0, 1]), table.select([2]), same_classes=True)
    assert split.train.class_names == split.test.class_names
    split = split_by_class(table, train_classes=1, catalog=table)
    assert not split.same_classes
    assert split.training_catalog.class_names == split.train.class_names
    assert split.catalog.class_names == split.test.class_names
    assert list(split.tables) == ["training", "test", "catalog"]


@pytest.mark.parametrize(
    ("train_classes", "test_classes", "train", "test"),
    [
        (None, None, "ab", "cd"),
        (3, None, "abc", "d"),
        (1, 2, "a", "bc"),
        (None, 1, "ab", "c"),
    ],
)
def test_split_by_class(train_classes, test_classes, train, test):
    split = split_by_class(small_table(), train_classes, test_classes)
    for side, names in ((split.train, train), (split.test, test)):
        assert side.class_names == tuple(names)
        expected = [(f"{row}.png", name) for row, name in enumerate("dabacdb") if name in names]
        found = [side.class_names[number] for number in side.labels]
        assert list(zip(side.paths, found)) == expected


def test_random_classes_are_a_function_of_the_seed():
    table = ImageTable.from_paths([str(n) for n in range(60)], [f"{n // 3:02}" for n in range(60)])
    splits = [split_by_class(table, 12, 5, split="random_classes", seed=n) for n in (3, 3, 4)]
    trained, again, other = (split.train.class_names for split in splits)
    assert trained == again != other
    assert len(trained) == 12 and splits[0].test.num_classes == 5
    assert not set(trained) & set(splits[0].test.class_names)
    assert sorted(trained) == list(trained) != [f"{n:02}" for n in range(12)]


def test_within_classes_halves_each_class():
    table = ImageTable.from_paths([str(n) for n in range(9)], list("aaaaabbbc"))
    split = split_by_class(table, split="within_classes", seed=1)
    assert split.same_classes
    assert np.bincount(split.train.labels).tolist() == [3, 2, 1]
    assert np.bincount(split.test.labels).tolist() == [2, 1]
    assert sorted([*split.train.paths, *split.test.paths]) == [str(n) for n in range(9)]
    again = split_by_class(table, split="within_classes", seed=1)
    assert list(again.test.paths) == list(split.test.paths)


PIXELS = np.zeros((2, 4, 4, 1), np.uint8)


def boxed(boxes):
    return ImageTable.from_arrays(PIXELS, [0, 1], boxes=boxes)


def halves(*arguments, **named):
    return lambda: split_by_class(small_table(), *arguments, **named)


def with_one_class(side, **named):
    table = small_table()
    sides = {"train": table, "test": table, side: table.select_classes([0]).select([1])}
    return lambda: Split(**sides, **named)


def within_classes():
    return split_by_class(ImageTable.from_paths(["1", "2"], ["a", "b"]), split="within_classes")


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: ImageTable([0], ("a",)), "Exactly one of paths, arrays, and encoded"),
        (lambda: ImageTable(["a"], ("a",), paths=["1"]), "labels must be integers"),
        (lambda: ImageTable([1], ("a",), paths=["1"]), "labels must be integers from 0 to 0"),
        (lambda: ImageTable([-1], ("a",), paths=["1"]), "-1 in row 0"),
        (lambda: ImageTable.from_paths([], []), "must be .*(not empty|at least one label)"),
        (lambda: ImageTable.from_paths(["1"], [[0]]), "labels must be a vector"),
        (lambda: ImageTable.from_paths(["1", "2"], ["a", 1]), "labels must be "),
        (lambda: ImageTable.from_paths(["1"], [0, 1]), "1 images and 2 labels"),
        (lambda: ImageTable.from_paths(["1"], [0], ["a", "b"]), "2 names"),
        (lambda: ImageTable.from_paths([b"1"], [0]), "strings or path objects"),
        (lambda: ImageTable.from_paths(["\udcff.png"], [0]), "paths must be valid UTF-8"),
        (lambda: ImageTable.from_encoded(["1"], [0]), "bytes objects, but got '1'"),
        (lambda: ImageTable.from_arrays(PIXELS.astype(int), [0, 1]), "dtype int64"),
        (lambda: ImageTable.from_arrays(PIXELS[..., 0], [0, 1]), r"\(2, 4, 4\)"),
        (lambda: ImageTable.from_arrays(np.zeros((3, 0)), [0, 0, 1]), r"shape \(3, 0\)"),
        (lambda: ImageTable.from_arrays(np.zeros((1, 4, 4, 4), np.uint8), [0]), "1 or 3"),
        (lambda: boxed([[0, 0, 1]]), r"shape \[2, 4\].*shape \(1, 3\)"),
        (lambda: boxed(np.ones([2, 4])), "boxes must be integers.*float64"),
        (lambda: boxed([[0, 0, 1, 1], [9, 8, 7, 0]]), r"\[9, 8, 7, 0\] in row 1"),
        (lambda: boxed([[0, 0, 1, 1], [0, 0, 2**31, 1]]), "boxes must be integers .* in row 1"),
        (lambda: small_table().select([]), "rows must be .*not empty"),
        (lambda: small_table().select_classes([]), "class_numbers must be .*not empty"),
        (lambda: small_table().select_classes([4]), "from 0 to 3"),
        (lambda: small_table().select_classes([1, 1]), "class_numbers must be without repeats"),
        (halves(split="random"), "split must be one of .*first_classes.* but got '?random"),
        (halves(split="every_class", train_classes=1), "must not be set with split=every_class"),
        (halves(split="random_classes", seed=-1), "seed must be .* but got -1"),
        (within_classes, "at least 2 images of a class"),
        (halves(0), "has 4 classes, and a boundary after the first 0 leaves no class to train"),
        (halves(4), "has 4 classes, and a boundary after the first 4 leaves no class to test"),
        (halves(2, 0), "test_classes must be at least 1, but got 0"),
        (halves(3, 2), "train_classes and test_classes must be at most 4.* but got 3 and 2"),
        (with_one_class("gallery"), "gallery must have the class_names of test.*1 images"),
        (with_one_class("training_catalog"), "training_catalog must have the class_names of train"),
        (with_one_class("test", same_classes=True), "same_classes must be False.*1 images"),
        (lambda: training_fold(halves()(), 1, 3), "folds must be at most 2, .* but got 3"),
        (lambda: training_fold(halves()(), 3, 2), "fold must be at most folds=2, but got 3"),
    ],
)
def test_bad_input(build, message):
    with pytest.raises((ValueError, TypeError), match=message):
        build()


def whole(classes=10, **arguments):
    """Return images whose pixels are their row number, two of each class."""
    images = np.arange(2 * classes, dtype="float32")[:, None]
    names = tuple(f"class {number}" for number in range(classes))
    table = ImageTable(np.repeat(np.arange(classes), 2), names, arrays=images)
    return split_by_class(table, **arguments)


def rows(table):
    return set(np.asarray(table.arrays).ravel().astype(int))


@pytest.mark.parametrize("folds", [2, 3, 5])
def test_folds_partition_the_training_classes(folds):
    split = whole()
    found = [training_fold(split, fold, folds) for fold in range(1, folds + 1)]
    measured = [set(each.test.class_names) for each in found]
    assert sum(map(len, measured)) == len(set.union(*measured)) == split.train.num_classes
    assert max(map(len, measured)) - min(map(len, measured)) <= 1
    for each in found:
        assert not set(each.train.class_names) & set(each.test.class_names)
        assert rows(each.train) | rows(each.test) == rows(split.train)
        assert not each.same_classes


def test_fold_has_no_gallery_catalog_or_known_classes():
    split = whole(split="within_classes")
    catalog = split.test
    split = Split(split.train, split.test, same_classes=True, gallery=split.test, catalog=catalog)
    fold = training_fold(dataclasses.replace(split, training_catalog=catalog), 1, 2)
    assert set(fold.tables) == {"training", "test"}
    assert fold.training_catalog.class_names == fold.train.class_names


def test_transforms_of_numpy_and_python_numbers_are_equal():
    ours = TrainTransform(32, (48, 40), area=(0.25, 1.0), jitter=(0.5, 0.0, 0.0, 0.25))
    given = TrainTransform(
        np.int64(32),
        (np.int32(48), np.int64(40)),
        area=(np.float32(0.25), np.float64(1.0)),
        jitter=np.array([0.5, 0, 0, 0.25], np.float32),
    )
    # Embedding files are named by this text.
    assert repr(given) == repr(ours)
    evaluation = EvaluationTransform(np.int64(32), np.int16(40))
    assert repr(evaluation) == repr(EvaluationTransform(32, 40))


def test_an_image_under_two_classes_is_a_warning():
    with pytest.warns(UserWarning, match=r"1 images have two classes or more.*first: a\.jpg"):
        ImageTable.from_paths(["a.jpg", "b.jpg", "a.jpg"], ["cat", "cat", "dog"])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ImageTable.from_paths(["a.jpg", "a.jpg"], ["cat", "cat"])
        # Two objects in one picture.
        ImageTable.from_paths(["a.jpg"] * 2, ["cat", "dog"], boxes=[[0, 0, 9, 9], [0, 9, 9, 9]])


def test_labels_that_differ_only_in_form_give_one_warning(caplog):
    labels = ["Cat", "cat", "dog", "1", "1.0", "hot dog", "hot  dog", "owl", "nan", "NAN", "1_0"]
    ImageTable.from_paths([f"{number}.jpg" for number in range(11)], labels)
    (line,) = caplog.messages
    assert "'1' and '1.0'" in line and "'Cat' and 'cat'" in line and "'NAN' and 'nan'" in line
    assert "'hot  dog' and 'hot dog'" in line and "owl" not in line and "1_0" not in line
    caplog.clear()
    ImageTable.from_arrays(np.zeros((3, 2), "float32"), [1, 10, 100])
    ImageTable.from_arrays(np.zeros((2, 2), "float32"), [0, 1], ["Cat", "cat"])  # on purpose
    assert not caplog.messages
