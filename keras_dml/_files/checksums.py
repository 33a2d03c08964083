"""Checksums inside a SavedModel or a JSON file, which can be copied without their folder."""

import hashlib
import json
import pathlib
from collections.abc import Mapping
from typing import Any

from keras_dml._common.errors import ArgumentError
from keras_dml._files.json_files import read_json
from keras_dml._files.manifest import DamagedError, sha256

# TensorFlow ignores the files in this folder.
_OF_A_SAVED_MODEL = "assets.extra/sha256.json"
# Contains a random number, and no part of the model.
_RANDOM = "fingerprint.pb"
_OF_JSON = "sha256"


def folder_checksums(folder: pathlib.Path) -> dict[str, str]:
    """Compute the SHA-256 of every file in a folder, recursively: relative path -> checksum."""
    paths = (path for path in sorted(folder.rglob("*")) if path.is_file())
    return {path.relative_to(folder).as_posix(): sha256(path) for path in paths}


def check_same(found: Mapping[str, str], expected: Mapping[str, str]) -> None:
    """Raise `DamagedError`, which names the file, unless all expected checksums match."""
    for name, digest in expected.items():
        if found.get(name) != digest:
            what = "has changed since it was written" if name in found else "is missing"
            raise DamagedError(f"{name} {what} (its SHA-256 differs)")


def write_checksums(saved_model: pathlib.Path) -> None:
    """Write the checksums of a SavedModel's files into it."""
    found = folder_checksums(saved_model)
    found.pop(_RANDOM, None)
    path = saved_model / _OF_A_SAVED_MODEL
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(found, indent=1) + "\n")


def check_saved_model(saved_model: pathlib.Path) -> None:
    """Check a SavedModel before loading, because a changed byte of its graph raises no error.

    A SavedModel without checksums, from another library, is accepted.

    Raises:
        DamagedError: A file has changed since it was written (the message names it).
    """
    path = saved_model / _OF_A_SAVED_MODEL
    if not path.exists():
        return
    try:
        expected: dict[str, str] = read_json(path, dict[str, str])
    except ArgumentError as error:
        raise DamagedError(f"{_OF_A_SAVED_MODEL} has changed since it was written") from error
    check_same(folder_checksums(saved_model), expected)


def sealed_json(value: Mapping[str, Any]) -> str:
    """Return a JSON object with its checksum, `sha256`, as the text of a file."""
    return json.dumps({**value, _OF_JSON: json_digest(value)}, indent=1) + "\n"


def read_sealed_json(path: pathlib.Path, form: Any = dict[str, Any]) -> dict[str, Any]:
    """Read the object of a file with `sealed_json`.

    An object without a checksum is accepted.

    Args:
        path: The file.
        form: Its fields and their types, as for `read_json`.

    Raises:
        ArgumentError: The file is damaged. The message names it.
        OSError: The file is missing or cannot be read.
    """
    found: dict[str, Any] = read_json(path, form)
    expected = found.pop(_OF_JSON, None)
    if expected not in (None, json_digest(found)):
        raise DamagedError(f"{path} is damaged: its SHA-256 differs")
    return found


def json_digest(value: Mapping[str, Any]) -> str:
    """Return the SHA-256 of a JSON object without its checksum, independent of its formatting."""
    # JSON turns keys that are numbers into strings.
    same = json.loads(json.dumps({key: value[key] for key in value if key != _OF_JSON}))
    return hashlib.sha256(json.dumps(same, sort_keys=True).encode()).hexdigest()
