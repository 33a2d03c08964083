"""JSON files: the types of their values, and errors that name the file and the value."""

import json
import os
from typing import Any

import pytest

from keras_dml._common.errors import ArgumentError
from keras_dml._files.json_files import parsed_json, read_json

FORM = {
    "name": str,
    "count": int,
    "rate": float | None,
    "rows": dict[str, list[float]],
    "inner": ({"flag": bool}, None),
    "pair": ([str, int], None),
    "others": ({"one": int | None, ...: str}, None),
}
GOOD = {"name": "a", "count": 1, "rows": {"x": [1, 0.5]}, "inner": {"flag": True}, "more": [{}]}
GOOD |= {"pair": ["x", 2], "others": {"one": 1, "two": "b"}}
WRONG = [
    ("name", 1, "name must be a text"),
    ("name", "a\0b", "name must be a text without NUL"),
    ("count", 1.5, "count must be a whole number"),
    ("count", True, "count must be a whole number"),
    ("count", 10**400, "count must be a whole number"),
    ("rate", 10**400, "rate must be a number"),
    ("rate", "x" * 1000, "rate must be a number, but got 'x+…$"),
    ("rows", [], "rows must be an object"),
    ("rows", {"x": {"y": 1}}, "rows.x must be a list"),
    ("rows", {"x": [1, None]}, r"rows.x\[1\] must be a number, but got None"),
    ("inner", {}, "inner.flag must be true or false, but got None"),
    ("inner", "x", "inner must be an object"),
    ("pair", ["x"], "pair must be a list of 2 values"),
    ("pair", ["x", "y"], r"pair\[1\] must be a whole number, but got 'y'"),
    ("others", {"one": "a"}, "others.one must be a whole number"),
    ("others", {"two": 1}, "others.two must be a text"),
]
NO_JSON = [b"", b"{", b"\xff", b"[" * 100_000, b'{"count": ' + b"1" * 5000 + b"}", b"\0"]


def test_a_value_of_the_form_is_returned(tmp_path):
    path = tmp_path / "a.json"
    for value in (GOOD, {**GOOD, "inner": None, "rate": 2}):
        path.write_text(json.dumps(value))
        assert read_json(path, FORM) == value
    with pytest.raises(FileNotFoundError):
        read_json(tmp_path / "b.json", FORM)


@pytest.mark.parametrize(("name", "value", "message"), WRONG)
def test_a_wrong_value_is_named(name, value, message):
    text = json.dumps({**GOOD, name: value})
    with pytest.raises(ArgumentError, match=f"^a.json is damaged: {message}"):
        parsed_json(text, FORM, "a.json")


@pytest.mark.parametrize("text", [*NO_JSON, b"null", b"[]", b"7", b'"x"'])
def test_another_text_is_damaged(text, tmp_path):
    path = tmp_path / "a.json"
    path.write_bytes(text)
    with pytest.raises(ArgumentError, match=f"^{path} is damaged: ") as refused:
        read_json(path, FORM)
    assert len(str(refused.value)) < 1000


def test_only_a_regular_file_is_opened(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "huge").touch()
    os.truncate(tmp_path / "huge", 2**40)  # no space on the disk
    for path in (tmp_path / "pipe", tmp_path / "huge", tmp_path):
        with pytest.raises(ArgumentError, match=f"^{path} must be a regular file"):
            read_json(path, Any)
