"""The files of a command as a value, which is equal for two bit-identical results.

Without timings and dates: seconds, dates on pages, TensorBoard's files, and dates in archives.
"""

import hashlib
import json
import pathlib

import numpy as np

_OF_THE_TIME = {"train/seconds", "seconds", "train_seconds", "table", "files", "sha256"}
# Only the names of archives, pages, exports, and their manifests, which contain dates and times;
# flags contain the folder's name.
_NAMES_ALONE = (".html", ".keras", ".pb", ".index", ".data-00000-of-00001", "flags.txt")
_NAMES_ALONE += (
    ".onnx",
    ".tflite",
    ".xml",
    ".bin",
    "export.json",
    "model_card.md",
    "manifest.json",
)
_ARRAYS_OF_THE_TIME = {"records", "state_seconds"}


def left_behind(folder):
    """Return name -> content of all files below a folder, including hidden files."""
    folder = pathlib.Path(folder)
    return {
        str(path.relative_to(folder)): _held(path)
        for path in sorted(folder.rglob("*"))
        if path.is_file() and "tensorboard" not in path.parts
    }


def differences(expected, found):
    """Return the names that differ, as one line; empty if all are equal."""
    names = sorted(expected.keys() | found.keys())
    return ", ".join(
        f"{name} ({'more' if name not in expected else 'gone' if name not in found else 'other'})"
        for name in names
        if name not in expected or name not in found or expected[name] != found[name]
    )


def _held(path):
    if path.name.endswith(_NAMES_ALONE) or "saved_model" in path.parts:
        return None
    if path.suffix == ".npz":
        with np.load(path) as arrays:
            names = sorted(set(arrays.files) - _ARRAYS_OF_THE_TIME)
            return {name: _digest(np.ascontiguousarray(arrays[name])) for name in names}
    if path.suffix == ".jsonl":
        return [_without_the_time(json.loads(line)) for line in path.read_text().splitlines()]
    if path.suffix == ".md":
        return _without_seconds(path.read_text())
    if path.suffix == ".json":
        return _without_the_time(json.loads(path.read_text()))
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _digest(array):
    return array.dtype.str, array.shape, hashlib.sha256(array.tobytes()).hexdigest()


def _without_the_time(value):
    return {name: held for name, held in value.items() if name not in _OF_THE_TIME}


def _without_seconds(table):
    """Return the cells of a Markdown table without the columns of seconds."""
    rows = [[cell.strip() for cell in line.split("|")] for line in table.splitlines()]
    kept = [number for number, name in enumerate(rows[0]) if not name.endswith(", s")]
    return [[row[number] for number in kept] for row in rows]
