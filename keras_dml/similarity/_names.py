"""Objects that programs can also pass by name."""

from collections.abc import Callable, Mapping
from typing import Any

from keras_dml._common.errors import argument_error


def from_name(argument: str, value: Any, kind: type, known: Mapping[str, Callable[[], Any]]) -> Any:
    """Return `value` if it is of a kind, or make the known object of this name.

    Raises:
        ValueError: The value is neither. The message lists the names.
    """
    if isinstance(value, kind):
        return value
    if isinstance(value, str) and value.lower() in known:
        return known[value.lower()]()
    raise argument_error(argument, f"a {kind.__name__} or one of {', '.join(known)}", value)
