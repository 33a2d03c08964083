"""JSON files with a checksum, so that damage is detected."""

import hashlib
import json
import pathlib
from collections.abc import Mapping
from typing import Any

_SHA256 = "sha256"


def checked_text(value: Mapping[str, Any]) -> str:
    """Return a JSON object with its checksum as the text of a file."""
    return json.dumps({**value, _SHA256: _digest(value)}, indent=1) + "\n"


def read_checked(path: pathlib.Path) -> dict[str, Any] | None:
    """Read the object of a file with `checked_text`; None if it is missing or damaged.

    An object without a checksum is accepted.

    Raises:
        PermissionError: The user may not read the file.
    """
    try:
        return checked(path.read_text())
    except PermissionError:
        raise
    except (OSError, ValueError):
        return None


def checked(text: str) -> dict[str, Any] | None:
    """Return the object of a `checked_text`, as `read_checked`."""
    try:
        found = json.loads(text)
        expected = found.pop(_SHA256, None)
        return found if expected is None or expected == _digest(found) else None
    except (ValueError, AttributeError, TypeError, RecursionError):
        return None


def _digest(value: Mapping[str, Any]) -> str:
    """Return the SHA-256 of a JSON object, independent of its formatting."""
    # JSON turns keys that are numbers into strings.
    same = json.loads(json.dumps(value))
    return hashlib.sha256(json.dumps(same, sort_keys=True).encode()).hexdigest()
