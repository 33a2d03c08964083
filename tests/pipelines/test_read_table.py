"""Tables from files, Hugging Face datasets, data frames, columns, and tf.data datasets."""

import os
import tracemalloc
import types

import keras
import numpy as np
import pytest
import tensorflow as tf
from image_files import encode
from PIL import Image

import pipelines
from keras_dml._common.errors import ArgumentError, ArgumentTypeError
from pipelines import (
    BalancedSampler,
    ImageTable,
    RandomSampler,
    balanced,
    evaluation_batches,
    table_from_dataset,
    training_batches,
)

LABELS = ["cat", "dog", "cat", "eel"]


def jpeg(level):
    return encode(Image.new("RGB", (9, 7), (level, 10, 20)), "JPEG")


FILES = [jpeg(30 * number) for number in range(4)]


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "images").mkdir()
    for number, content in enumerate(FILES):
        (tmp_path / "images" / f"{number}.jpg").write_bytes(content)
    return tmp_path


@pytest.mark.parametrize("ending,cell", [("csv", ","), ("csv", ";"), ("tsv", "\t")])
def test_paths_of_a_text_file_are_relative_to_its_folder(folder, ending, cell):
    rows = [("note", "file_name", "class")]
    rows += [("a, b", f"images/{number}.jpg", name) for number, name in enumerate(LABELS)]
    quoted = [cell.join(f'"{value}"' for value in row) for row in rows]
    path = folder / f"photos.{ending}"
    path.write_text("\ufeff" + "\n".join(quoted) + "\n", encoding="utf-8")
    table = pipelines.read_table(path)
    assert table.paths.tolist() == [str(folder / "images" / f"{n}.jpg") for n in range(4)]
    assert table.class_names == ("cat", "dog", "eel") and table.labels.tolist() == [0, 1, 0, 2]
    elsewhere = pipelines.read_table(path, "file_name", "class", folder="/photos")
    assert elsewhere.paths[1] == "/photos/images/1.jpg"


@pytest.mark.parametrize("first,second", [("9", "10"), ("010", "10")])
def test_numbers_in_text_are_sorted_as_numbers(tmp_path, first, second):
    (tmp_path / "a.csv").write_text(f"path,label\na,{second}\nb,{first}\nc,{first}\n")
    assert pipelines.read_table(tmp_path / "a.csv").class_names == (first, second)


@pytest.mark.parametrize("form", ["bytes", "records", "paths", "arrays"])
def test_parquet(folder, form):
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    vectors = np.arange(8, dtype="float32").reshape(4, 2)
    images = {
        "bytes": FILES,
        "records": [{"bytes": content, "path": "x.jpg"} for content in FILES],
        "paths": [f"images/{number}.jpg" for number in range(4)],
        "arrays": vectors.tolist(),
    }[form]
    parquet.write_table(pyarrow.table({"image": images, "label": LABELS}), folder / "t.parquet")
    table = pipelines.read_table(folder / "t.parquet")
    assert table.labels.tolist() == [0, 1, 0, 2]
    if form == "paths":
        assert table.paths[2] == str(folder / "images" / "2.jpg")
    elif form == "arrays":
        np.testing.assert_array_equal(table.arrays, vectors)
    else:
        assert list(table.encoded) == FILES


def test_hugging_face_dataset(folder):
    datasets = pytest.importorskip("datasets")
    features = datasets.Features(
        {"image": datasets.Image(), "label": datasets.ClassLabel(names=["eel", "cat", "dog"])}
    )
    data = {"image": [{"bytes": content, "path": None} for content in FILES], "label": LABELS}
    dataset = datasets.Dataset.from_dict(data, features)
    table = pipelines.read_table(dataset)
    assert list(table.encoded) == FILES
    # The order of the dataset.
    assert table.class_names == ("eel", "cat", "dog") and table.labels.tolist() == [1, 2, 1, 0]
    with pytest.raises(ArgumentError, match="columns train"):
        pipelines.read_table(datasets.DatasetDict(train=dataset))


class Dataset(dict):
    """Stands for `datasets.Dataset`, in tests without the package."""

    def __init__(self, columns, **features):
        super().__init__(columns)
        self.column_names, self.features = list(columns), features


def test_class_names_of_features():
    kinds = types.SimpleNamespace(names=("eel", "cat", "dog"))
    dataset = Dataset({"image": np.zeros([3, 2]), "label": [2, 0, 2]}, label=kinds)
    assert pipelines.read_table(dataset).class_names == ("eel", "dog")
    dataset["label"] = [2, -1, 2]
    with pytest.raises(ArgumentError, match="label must be a class"):
        pipelines.read_table(dataset)


def test_columns_and_data_frames():
    pixels = np.zeros([4, 5, 6, 3], np.uint8)
    table = pipelines.read_table({"image": pixels, "label": np.array(LABELS)})
    assert table.arrays.shape == pixels.shape and table.class_names == ("cat", "dog", "eel")
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"path": ["a", "b", "c", "d"], "kind": [3, 1, 1, 2]})
    table = pipelines.read_table(frame, label="kind")
    assert table.paths.tolist() == list("abcd") and table.labels.tolist() == [2, 0, 0, 1]


@pytest.mark.parametrize(
    "text,message",
    [
        ("path,kind\na,b\n", "label must be one of the columns path, kind"),
        ("path,label\na,b\nc\n", "2 cells .* but got 1 in line 3"),
        ("path,label\na,b\nc,\n", "label must have a value.* row 1"),
        ("path,label\n,b\n", "path must have a value.* row 0"),
        ("", "source must be a CSV file in UTF-8"),
        ('path,label\na,"b\n', "source must be a CSV file in UTF-8.*unexpected end"),
        ("path,label\n\xe5,b\n", "source must be a CSV file in UTF-8.*codec"),
        ("path,label,label\na,b,c\n", "source must be a CSV file with different names"),
    ],
)
def test_a_wrong_text_file_is_a_one_line_error(tmp_path, text, message):
    (tmp_path / "a.csv").write_text(text, encoding="latin-1")
    with pytest.raises(ArgumentError, match=message):
        pipelines.read_table(tmp_path / "a.csv")


def test_other_sources_are_refused(tmp_path):
    (tmp_path / "a.txt").write_text("")
    for source in (3, "nowhere.csv", tmp_path / "a.txt"):
        with pytest.raises(ArgumentError, match="source must be"):
            pipelines.read_table(source)
    (tmp_path / "a.csv").write_text("path,label\na,b\n")
    with pytest.raises(ArgumentError, match="image must be .* but got 'photo'"):
        pipelines.read_table(tmp_path / "a.csv", image="photo")


def test_dataset_of_a_file(folder):
    lines = ["path,label", *(f"images/{n}.jpg,{min(n, 2)}" for n in range(4))]
    (folder / "photos.csv").write_text("\n".join(lines))
    split = pipelines.load_dataset("table", folder / "photos.csv")
    assert (split.train.class_names, split.test.class_names) == (("0",), ("1", "2"))
    assert (len(split.train), len(split.test)) == (1, 3)
    with pytest.raises(ArgumentError, match="data_dir must be a .csv"):
        pipelines.load_dataset("table")


ROWS = np.random.default_rng(0).normal(size=(30, 4, 3)).astype("float32")
CLASSES = np.random.default_rng(1).permutation(np.repeat(np.arange(6), 5))


def given(labels=CLASSES, rows=ROWS):
    return tf.data.Dataset.from_tensor_slices((rows, labels))


@pytest.mark.parametrize(
    ("labels", "batch_size"),
    [
        (CLASSES, None),
        (CLASSES + 2**40, 1),
        (CLASSES.astype("float32"), 7),
        ([f"Klasse {n} ä" for n in CLASSES], 7),
        (CLASSES[:, None], 4),
        (CLASSES.astype("uint8"), None),
    ],
    ids=["ids", "large ids", "floats", "strings", "a column", "uint8"],
)
def test_each_element_once_with_its_class(labels, batch_size):
    dataset = given(labels)
    table = table_from_dataset(dataset if batch_size is None else dataset.batch(batch_size))
    np.testing.assert_array_equal(table.arrays, ROWS)
    np.testing.assert_array_equal(table.labels, CLASSES)
    assert table.num_classes == 6


def test_batches_equal_those_from_the_sampler():
    batches = balanced(given().batch(8), 3, 2, seed=5, num_steps=9)
    sampler = BalancedSampler(CLASSES, 3, 2, seed=5)
    found = list(batches.as_numpy_iterator())
    assert len(found) == len(batches) == 9
    assert batches.steps_per_epoch == sampler.steps_per_epoch == 5
    assert batches.class_names == tuple("012345")
    for step, (x, ids) in enumerate(found):
        np.testing.assert_array_equal(x, ROWS[sampler(step)])
        np.testing.assert_array_equal(ids, CLASSES[sampler(step)])


@pytest.mark.slow
def test_memory_does_not_grow_with_the_dataset():
    """The rows are in a temporary file: 256 rows of 1 MB, of which a batch has 4."""
    rows = np.ones((2**18,), "float32")
    large = tf.data.Dataset.range(256).map(lambda row: (rows * tf.cast(row, "float32"), row % 4))
    tracemalloc.start()
    try:
        batches = balanced(large, 2, 2, num_steps=2)
        labels_of = [(ids, x[:, -1].numpy() % 4) for x, ids in batches]
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 40 * 2**20
    for ids, expected in labels_of:
        np.testing.assert_array_equal(ids, expected)


def test_image_dataset_from_directory(tmp_path):
    for number, name in enumerate(4 * ("ape", "bear", "cow")):
        (tmp_path / name).mkdir(exist_ok=True)
        (tmp_path / name / f"{number}.jpg").write_bytes(jpeg(20 * number))
    dataset = keras.utils.image_dataset_from_directory(
        tmp_path, image_size=(6, 6), batch_size=5, shuffle=False, verbose=False
    )
    batches = balanced(dataset, 2, 3)
    assert batches.class_names == ("ape", "bear", "cow") and batches.steps_per_epoch == 2
    x, ids = next(batches.as_numpy_iterator())
    assert x.shape == (6, 6, 6, 3) and sorted(np.bincount(ids, minlength=3)) == [0, 3, 3]
    # The name of an image is its number, by which its red grows. Its class is this number modulo 3.
    assert (np.round(x[:, 0, 0, 0] / 20).astype(int) % 3 == ids).all()


def test_float_rows_need_no_transform():
    table = ImageTable.from_arrays(ROWS.astype("float64"), CLASSES)
    evaluated = evaluation_batches(table, batch_size=8, labels=True).as_numpy_iterator()
    rows, labels = map(np.concatenate, zip(*evaluated))
    np.testing.assert_array_equal(rows, ROWS)
    np.testing.assert_array_equal(labels, CLASSES)


@pytest.mark.parametrize(
    ("dataset", "kind", "said"),
    [
        (ROWS, ArgumentTypeError, "dataset must be a tf.data.Dataset, but got an array"),
        (given().repeat(), ArgumentError, "dataset must be finite.*repeat"),
        (given().take(0), ArgumentError, "dataset must contain.*empty"),
        (tf.data.Dataset.from_tensor_slices(ROWS), ArgumentTypeError, r"\(x, label\).*elements of"),
        (given(np.eye(6, dtype="float32")[CLASSES]).batch(4), ArgumentError, "label_mode='int'"),
        (given(CLASSES + 0.5), ArgumentTypeError, "labels must be .*whole numbers .*but got "),
        (
            tf.data.Dataset.from_generator(
                lambda: ((np.zeros(n, "float32"), n) for n in (2, 3)),
                output_signature=(tf.TensorSpec([None]), tf.TensorSpec([], tf.int32)),
            ),
            ArgumentError,
            r"one shape, but got \(2,\) and \(3,\)",
        ),
        (given(CLASSES, np.array(["a"] * 30)), ArgumentTypeError, "must contain.*strings as x"),
    ],
)
def test_invalid_datasets_are_refused(dataset, kind, said):
    with pytest.raises(kind, match=said):
        balanced(dataset, 2, 2)


def test_images_in_files_need_a_transform():
    table = ImageTable.from_paths(["a.png", "b.png"], ["a", "b"])
    with pytest.raises(ArgumentError, match="transform must be set.*EvaluationTransform"):
        training_batches(table, RandomSampler(2, 1))
    with pytest.raises(ArgumentError, match="transform must be set.*EvaluationTransform"):
        evaluation_batches(table)


def test_names_that_are_not_utf_8_stay_different_classes():
    names = [b"\xff", b"\xfe", b"a", b"\xff"]
    table = table_from_dataset(tf.data.Dataset.from_tensor_slices((np.eye(4), names)))
    assert table.num_classes == 3 and table.labels[0] == table.labels[3]


def test_a_table_with_a_file_under_two_classes(tmp_path):
    rows = ["a.jpg,cat", "b.jpg,cat", "./a.jpg,dog", "c.jpg,dog", "c.jpg,dog", "d.jpg,owl"]
    file = tmp_path / "animals.csv"
    file.write_text("path,label\n" + "\n".join(rows))
    with pytest.raises(ValueError, match=r"animals.csv must list each .* but got 1 .*a\.jpg"):
        pipelines.load_dataset("table", data_dir=file)
    # Texts and tags allow several classes, but not in training and test.
    with pytest.raises(ValueError, match="both training and test, but got 1"):
        pipelines.load_dataset("table", data_dir=file, several_classes=True, train_classes=1)
    split = pipelines.load_dataset("table", data_dir=file, several_classes=True, train_classes=2)
    assert len(split.train) == 5
    # One row twice, on both sides of each class.
    file.write_text("path,label\na.jpg,cat\na.jpg,cat\nb.jpg,dog\nc.jpg,dog")
    with pytest.raises(ValueError, match="both training and test, but got 1"):
        pipelines.load_dataset("table", data_dir=file, split="within_classes")
    pipelines.load_dataset("table", data_dir=file, split="every_class")


def test_csv_files_in_other_encodings_are_named(tmp_path):
    file, text = tmp_path / "animals.csv", "path,label\na.jpg,cat\nb.jpg,dog\n"
    file.write_bytes(text.encode("utf-8-sig"))
    assert pipelines.read_table(file).class_names == ("cat", "dog")
    file.write_bytes(text.encode("utf-16"))
    with pytest.raises(ValueError, match=r"animals.csv must be text in UTF-8, but got UTF-16\."):
        pipelines.read_table(file)
    file.write_bytes(text.replace("\n", "\r").encode())
    with pytest.raises(ValueError, match="animals.csv must have lines .* carriage returns only"):
        pipelines.read_table(file)


def test_a_label_of_many_digits_is_a_text(tmp_path):
    digits = "1" * 5000
    Image.new("RGB", (4, 4)).save(tmp_path / "a.png")
    (tmp_path / "t.csv").write_text(f"path,class\na.png,{digits}\na.png,2\n")
    table = pipelines.read_table(tmp_path / "t.csv")
    assert sorted(table.class_names) == [digits, "2"]


def test_a_small_parquet_file_cannot_fill_the_memory(tmp_path):
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    zeros = pyarrow.array(np.zeros(10**6, np.int32))
    column = pyarrow.DictionaryArray.from_arrays(zeros, pyarrow.array(["x" * 10_000]))
    table = pyarrow.table({"image": column, "label": column})
    parquet.write_table(table, tmp_path / "t.parquet", store_schema=False)
    for source in (tmp_path / "t.parquet", tmp_path):
        with pytest.raises(ValueError, match="must have at most 256 MB.*compressed too much"):
            pipelines.read_table(source)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no pipes in the file system")
def test_a_large_table_and_a_pipe_are_not_read(tmp_path):
    with open(tmp_path / "t.csv", "wb") as file:
        file.truncate(2**30 + 1)
    with pytest.raises(OSError, match=r"a file of more than 1,024 MB.*t.csv"):
        pipelines.read_table(tmp_path / "t.csv")
    pytest.importorskip("pyarrow")
    os.mkfifo(tmp_path / "t.parquet")
    with pytest.raises(ValueError, match="not a regular file"):
        pipelines.read_table(tmp_path / "t.parquet")
