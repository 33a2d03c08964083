"""JSON files with a checksum, so that damage is detected."""

import hashlib
import json
import pathlib
from collections.abc import Mapping
from typing import Any

from keras_dml._common.errors import ArgumentError
from keras_dml._files.json_files import read_json

_SHA256 = "sha256"


def checked_text(value: Mapping[str, Any]) -> str:
    """Return a JSON object with its checksum as the text of a file."""
    return json.dumps({**value, _SHA256: _digest(value)}, indent=1) + "\n"


def read_checked(path: pathlib.Path, form: Any = dict[str, Any]) -> dict[str, Any]:
    """Read the object of a file with `checked_text`.

    An object without a checksum is accepted.

    Args:
        path: The file.
        form: Its fields and their types, as for `read_json`.

    Raises:
        ArgumentError: The file is damaged. The message names it.
        OSError: The file is missing or cannot be read.
    """
    found: dict[str, Any] = read_json(path, form)
    expected = found.pop(_SHA256, None)
    if expected not in (None, _digest(found)):
        raise ArgumentError(f"{path} is damaged: its SHA-256 differs")
    return found


def _digest(value: Mapping[str, Any]) -> str:
    """Return the SHA-256 of a JSON object, independent of its formatting."""
    # JSON turns keys that are numbers into strings.
    same = json.loads(json.dumps(value))
    return hashlib.sha256(json.dumps(same, sort_keys=True).encode()).hexdigest()
