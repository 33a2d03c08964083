"""Reading CSV files from various programs."""

import pytest

from experiments.searching.csv_file import read_csv

TEXT = "path,brand,price\na/1.jpg,Åre,3\n\n b/2.jpg , ,4\n"
ROWS = {"a/1.jpg": ["Åre", "3"], "b/2.jpg": ["", "4"]}


@pytest.mark.parametrize(
    ("encoding", "separator", "end"),
    [
        ("utf-8", ",", "\n"),
        ("utf-8-sig", ";", "\r\n"),
        ("utf-16", "\t", "\r"),
        ("utf-8", "|", "\n"),
    ],
)
def test_encodings_separators_and_line_endings(tmp_path, encoding, separator, end):
    text = TEXT.replace(",", separator).replace("\n", end)
    (tmp_path / "known.csv").write_bytes(text.encode(encoding))
    table = read_csv(tmp_path / "known.csv")
    assert table == (["brand", "price"], ROWS, 0)


@pytest.mark.parametrize(
    ("text", "columns", "rows"),
    [
        # The path column can be anywhere. Otherwise, it is the first column with a name, because
        # row numbers have no name. Quotes may contain separators and line breaks.
        ('price;Path\n"a;b";1.jpg\n', ["price"], {"1.jpg": ["a;b"]}),
        (",file,note\n0,1.jpg,x\n", ["note"], {"1.jpg": ["x"]}),
        ('path,note\n1.jpg,"2\nlines, ""so"""\n', ["note"], {"1.jpg": ['2\nlines, "so"']}),
        ("path,note,,\n1.jpg,x,,,,\n", ["note"], {"1.jpg": ["x"]}),
        ("path,note\n1.jpg,a\u202eb\x1b[31m\0\n", ["note"], {"1.jpg": ["a\u202eb\x1b[31m\0"]}),
    ],
)  # fmt: skip
def test_columns_and_rows(tmp_path, text, columns, rows):
    (tmp_path / "known.csv").write_text(text)
    table = read_csv(tmp_path / "known.csv")
    assert (table.columns, table.rows) == (columns, rows)


def test_duplicate_rows(tmp_path):
    path = tmp_path / "known.csv"
    path.write_text("path,note\n1.jpg,x\n1.jpg,x\n./1.jpg,x\n")
    assert read_csv(path).repeated == 1
    assert read_csv(path, lambda name: name.removeprefix("./")).repeated == 2
    path.write_text("path,note\n1.jpg,x\n2.jpg,x\n1.jpg,y\n")
    with pytest.raises(ValueError, match="line 4: 1.jpg has other values than in line 2"):
        read_csv(path)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "must start with a line of different names"),
        (b"path,note\n", "has no rows"),
        (b"path,note,note\n1.jpg,x,y\n", "different names: .* but got path, note, note"),
        (b"path,note\n1.jpg\n", "line 2: 1 values for 2 columns"),
        (b"path,note\n ,x\n", "line 2: no path in the column path"),
        (b'path,note\n1.jpg,"x\n', "line 2: no CSV"),
        (b"path,note\n1.jpg,x\n2.jpg,\xe5\n", "columns must be .*UTF-8.* in line 3"),
        ("path,note\n1.jpg,x\n".encode("utf-16-le"), "in UTF-16 with a byte order mark"),
        (b"path,note\n1.jpg," + b"x" * 200_000, "line 2: no CSV .field larger than"),
    ],
)
def test_invalid_csvs_are_refused_in_one_line(tmp_path, data, message):
    path = tmp_path / "known.csv"
    path.write_bytes(data)
    with pytest.raises(ValueError, match=message) as error:
        read_csv(path)
    assert len(str(error.value)) < 500


def test_missing_files(tmp_path):
    for path in (tmp_path, tmp_path / "none.csv"):
        with pytest.raises(ValueError, match="columns must be a CSV file"):
            read_csv(path)
