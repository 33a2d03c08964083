"""JSON files of any origin, read with a check of their values' types."""

import errno
import json
import os
import types
import typing
from collections.abc import Iterable
from typing import Any

from keras_dml._common.errors import ArgumentError, shown
from keras_dml._common.regular_files import MOST_TEXT, read_regular
from keras_dml._common.types import StrPath

_WORDS = {
    str: "a text without NUL",
    int: "a whole number",
    float: "a number",
    bool: "true or false",
}


def read_json(path: StrPath, form: Any) -> Any:
    """Read a JSON file, and check the types of its values.

    Args:
        path: The file.
        form: A type (`str`, `int`, `bool`, or `float`, which includes whole numbers), None,
            `list[form]`, `dict[str, form]`, forms with `|` or in a tuple between them, a list of
            one form for each element, a dictionary from field names to forms, or `Any`. A missing
            field equals null. Other fields have the form of the name `...`, or any form.

    Raises:
        ArgumentError: The file is not such a JSON file. The message names it and the value.
        OSError: The file is missing or cannot be read.
    """
    try:
        text = read_regular(path, MOST_TEXT)
    except OSError as error:
        if error.errno not in (errno.EISDIR, errno.EINVAL, errno.EFBIG):
            raise
        raise ArgumentError(
            f"{os.fspath(path)} must be a regular file of at most {MOST_TEXT:,} bytes"
        ) from error
    return parsed_json(text, form, os.fspath(path))


def parsed_json(text: str | bytes, form: Any, name: str) -> Any:
    """Parse JSON, and check the types of its values.

    Args:
        text: The JSON.
        form: As for `read_json`.
        name: Name of the source, for the message.

    Raises:
        ArgumentError: As `read_json`.
    """
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ArgumentError(f"{name} is damaged: it is not JSON ({error})") from error
    if problem := _problem(value, form):
        place, wanted, found = problem
        place = place.lstrip(".") or "its value"
        raise ArgumentError(f"{name} is damaged: {place} must be {wanted}, but got {shown(found)}")
    return value


def _problem(value: Any, form: Any) -> tuple[str, str, Any] | None:
    """Return the place of a wrong value, what it must be, and the value. None without one."""
    origin, arguments = typing.get_origin(form), typing.get_args(form)
    if isinstance(form, tuple) or origin is types.UnionType:
        problems = [_problem(value, each) for each in (arguments or form)]
        return None if None in problems else problems[0]
    inner: Iterable[tuple[str, Any, Any]]
    if isinstance(form, dict) or origin is dict:
        if not isinstance(value, dict):
            return "", "an object", value
        forms, rest = (form, form.get(..., Any)) if isinstance(form, dict) else ({}, arguments[1])
        forms = dict.fromkeys(value, rest) | {name: forms[name] for name in forms if name != ...}
        inner = ((f".{name}", value.get(name), each) for name, each in forms.items())
    elif isinstance(form, list) or origin is list:
        if not isinstance(value, list):
            return "", "a list", value
        if isinstance(form, list) and len(value) != len(form):
            return "", f"a list of {len(form)} values", value
        of_rows = form if isinstance(form, list) else [arguments[0]] * len(value)
        inner = ((f"[{row}]", *each) for row, each in enumerate(zip(value, of_rows)))
    else:
        return None if _has_type(value, form) else ("", _WORDS.get(form, "null"), value)
    for place, each, its_form in inner:
        if found := _problem(each, its_form):
            return place + found[0], *found[1:]
    return None


def _has_type(value: Any, form: Any) -> bool:
    if form is Any or value is None:
        return form in (Any, None, types.NoneType)
    if isinstance(value, bool) or form is bool:
        return isinstance(value, bool) and form is bool
    if isinstance(value, int):
        return form in (int, float) and abs(value) < 2**63  # an array takes no larger number
    if isinstance(value, str):
        return form is str and "\0" not in value  # no path has a NUL
    return form is float and isinstance(value, float)
