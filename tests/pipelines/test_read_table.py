"""Tables from files, Hugging Face datasets, data frames, and columns."""

import numpy as np
import pytest
from image_files import encode
from PIL import Image

import pipelines
from keras_dml._common.errors import ArgumentError

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


def test_numbers_in_text_are_sorted_as_numbers(tmp_path):
    (tmp_path / "a.csv").write_text("path,label\na,10\nb,9\nc,9\n")
    assert pipelines.read_table(tmp_path / "a.csv").class_names == ("9", "10")
    (tmp_path / "b.csv").write_text("path,label\na,010\nb,10\n")
    assert pipelines.read_table(tmp_path / "b.csv").class_names == ("010", "10")


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


class Feature:
    """Stands for `datasets.ClassLabel`."""

    names = ("eel", "cat", "dog")


class Dataset(dict):
    """Stands for `datasets.Dataset`, in tests without the package."""

    def __init__(self, columns, **features):
        super().__init__(columns)
        self.column_names, self.features = list(columns), features


def test_class_names_of_features():
    dataset = Dataset({"image": np.zeros([3, 2]), "label": [2, 0, 2]}, label=Feature())
    assert pipelines.read_table(dataset).class_names == ("eel", "dog")
    with pytest.raises(ArgumentError, match="label must be a class"):
        pipelines.read_table(
            Dataset({"image": np.zeros([2, 2]), "label": [-1, 0]}, label=Feature())
        )


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
    lines = ["path,label", *(f"images/{n}.jpg,{n // 2}" for n in range(4))]
    (folder / "photos.csv").write_text("\n".join(lines))
    split = pipelines.load_dataset("table", folder / "photos.csv")
    assert (split.train.class_names, split.test.class_names) == (("0",), ("1",))
    assert len(split.train) == len(split.test) == 2
    with pytest.raises(ArgumentError, match="data_dir must be a .csv"):
        pipelines.load_dataset("table")
