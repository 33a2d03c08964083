"""SHA-256 of the files of a folder: damage is found before a reader meets it."""

import hashlib
import json
import pathlib
from collections.abc import Mapping

from keras_dml.errors import ArgumentError

# TensorFlow leaves what is in this folder to whoever wrote it.
_OF_A_SAVED_MODEL = "assets.extra/sha256.json"
# Holds a random number, and nothing that a model is made of.
_RANDOM = "fingerprint.pb"


def folder_checksums(folder: pathlib.Path) -> dict[str, str]:
    """SHA-256 of every file in a folder and below, by its path there."""
    found = {}
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            with path.open("rb") as stream:
                digest = hashlib.file_digest(stream, "sha256").hexdigest()
            found[path.relative_to(folder).as_posix()] = digest
    return found


def check_same(found: Mapping[str, str], expected: Mapping[str, str]) -> None:
    """ValueError, which names the file, unless all that is expected is found as it was written."""
    for name, digest in expected.items():
        if found.get(name) != digest:
            what = "is no longer what was written" if name in found else "is missing"
            raise ArgumentError(f"{name} {what} (its SHA-256 says so)")


def write_checksums(saved_model: pathlib.Path) -> None:
    """Leave the checksums of a SavedModel's files in it."""
    found = folder_checksums(saved_model)
    found.pop(_RANDOM, None)
    path = saved_model / _OF_A_SAVED_MODEL
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(found, indent=1) + "\n")


def check_saved_model(saved_model: pathlib.Path) -> None:
    """Before it is loaded: a changed byte of its graph is another function, and no error.

    One without checksums, anybody's, is taken as it is.

    Raises:
        ValueError: a file is no longer what was written (names it).
    """
    path = saved_model / _OF_A_SAVED_MODEL
    if not path.is_file():
        return
    try:
        expected = {str(name): digest for name, digest in json.loads(path.read_bytes()).items()}
    except (ValueError, AttributeError, RecursionError) as error:
        raise ArgumentError(f"{_OF_A_SAVED_MODEL} is no longer what was written") from error
    check_same(folder_checksums(saved_model), expected)
