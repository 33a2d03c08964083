"""JSON objects with a checksum of their own, so that damage is told from what was written."""

import hashlib
import json
import pathlib
from collections.abc import Mapping
from typing import Any

_SHA256 = "sha256"


def checked_text(value: Mapping[str, Any]) -> str:
    """A JSON object as the text of a file, its checksum within."""
    return json.dumps({**value, _SHA256: _digest(value)}, indent=1) + "\n"


def read_checked(path: pathlib.Path) -> dict[str, Any] | None:
    """The object whose `checked_text` a file holds; None where it is missing or damaged.

    One without a checksum, of an earlier version, is taken as it is.

    Raises:
        PermissionError: the file is not damaged, but must not be read.
    """
    try:
        return checked(path.read_text())
    except PermissionError:
        raise
    except (OSError, ValueError):
        return None


def checked(text: str) -> dict[str, Any] | None:
    """The object that a `checked_text` is, as `read_checked`."""
    try:
        found = json.loads(text)
        expected = found.pop(_SHA256, None)
        return found if expected is None or expected == _digest(found) else None
    except (ValueError, AttributeError, TypeError, RecursionError):
        return None


def _digest(value: Mapping[str, Any]) -> str:
    """SHA-256 of a JSON object, whatever it looks like as text."""
    # As it is read: numbers that are keys have become words.
    same = json.loads(json.dumps(value))
    return hashlib.sha256(json.dumps(same, sort_keys=True).encode()).hexdigest()
