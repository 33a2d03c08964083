"""SHA-256 checksums of the files in a folder, to detect damage before loading."""

import hashlib
import json
import pathlib
from collections.abc import Mapping

from keras_dml._common.errors import ArgumentError
from keras_dml._files.json_files import read_json

# TensorFlow ignores the files in this folder.
_OF_A_SAVED_MODEL = "assets.extra/sha256.json"
# Contains a random number, and no part of the model.
_RANDOM = "fingerprint.pb"


def folder_checksums(folder: pathlib.Path) -> dict[str, str]:
    """Compute the SHA-256 of every file in a folder, recursively: relative path -> checksum."""
    found = {}
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            with path.open("rb") as stream:
                digest = hashlib.file_digest(stream, "sha256").hexdigest()
            found[path.relative_to(folder).as_posix()] = digest
    return found


def check_same(found: Mapping[str, str], expected: Mapping[str, str]) -> None:
    """Raise `ValueError`, which names the file, unless all expected checksums match."""
    for name, digest in expected.items():
        if found.get(name) != digest:
            what = "has changed since it was written" if name in found else "is missing"
            raise ArgumentError(f"{name} {what} (its SHA-256 differs)")


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
        ValueError: A file has changed since it was written (the message names it).
    """
    path = saved_model / _OF_A_SAVED_MODEL
    if not path.exists():
        return
    try:
        expected: dict[str, str] = read_json(path, dict[str, str])
    except ArgumentError as error:
        raise ArgumentError(f"{_OF_A_SAVED_MODEL} has changed since it was written") from error
    check_same(folder_checksums(saved_model), expected)
