"""Exceptions for invalid arguments, their messages, and the checks of arrays."""

import re
import sys
from typing import Any

import numpy as np

# From these limits on, neighboring whole numbers can be equal.
EXACT_LIMITS = {"bfloat16": 2**8, "float16": 2**11, "float32": 2**24, "float64": 2**53}
_LONGEST_ECHO = 200
_LONGEST_TEXT = 20_000  # the search takes quadratic time
# An address with a name, a password, or both. The password can contain @ and /.
_IN_ADDRESS = re.compile(r"//(?:[^\s/:@]*:[^\s\"<>]*|[^\s/]*)@")
# A parameter of an address, or a word of PostgreSQL's connection strings.
_PARAMETER = re.compile(
    r"\b((?:ssl)?password|passwd|pwd|secret(?:_?(?:access_?)?key)?|(?:access_?|auth_?|session_?)?token"
    r"|api_?key|access_?key(?:_?id)?|sig(?:nature)?)=(?:'(?:\\.|[^'\\])*'|[^\s&;,'\"]+)",
    re.IGNORECASE,
)


class ArgumentError(ValueError):
    """An invalid argument. The message names it, shows its value, and suggests a valid one.

    Attributes:
        argument: Name of the argument, the first word of the message. None if the code that raises
            the error does not set it.
        problem: The rest of the message. Empty without `argument`.
    """

    argument: str | None = None
    problem = ""

    # AutoGraph in a tf.function replaces exceptions with another constructor.
    __init__ = Exception.__init__

    def renamed(self, name: str) -> str:
        """Return the message for callers that know the argument by another name."""
        return f"{name} {self.problem}"


class ArgumentTypeError(ArgumentError, TypeError):
    """An argument with an invalid type."""


class DownloadError(ArgumentError):
    """An argument that requires a download, without a network."""


def without_passwords(text: str) -> str:
    """Return a text, cut to 20,000 characters, without the passwords and keys in its addresses.

    Examples:
        >>> without_passwords("http://user:secret@host/path and postgresql://h/db?password=secret")
        'http://…@host/path and postgresql://h/db?password=…'
    """
    return _PARAMETER.sub(r"\1=…", _IN_ADDRESS.sub("//…@", text[:_LONGEST_TEXT]))


def shown(value: object) -> str:
    """Format a value for a message on one line. Large arrays are shown by shape and dtype."""
    if isinstance(value, np.ndarray) and value.size > 10:
        return f"an array of shape {value.shape} and dtype {value.dtype}"
    try:
        text = without_passwords(repr(value))
    except ValueError:  # an integer of more than 4,300 digits
        text = f"a value of type {type(value).__name__} with too many digits"
    if "\n" in text:
        text = " ".join(text.split())
    return text if len(text) <= _LONGEST_ECHO else f"{text[:_LONGEST_ECHO]}…"


def argument_error(
    name: str,
    wanted: str,
    value: object,
    kind: type[ArgumentError] = ArgumentError,
    *,
    advice: str = "",
) -> ArgumentError:
    """Create the error for an argument that must be `wanted`.

    Args:
        name: Name of the argument.
        wanted: Description of the valid values.
        value: The argument.
        kind: Class of the error.
        advice: Next step, as a sentence.
    """
    return _error(name, wanted, shown(value), kind, advice)


def shape_error(name: str, wanted: str, value: Any, *, advice: str = "") -> ArgumentError:
    """Create the error for a tensor or array that must be `wanted`, with its shape."""
    return _error(name, wanted, f"shape {tuple(value.shape)}", ArgumentError, advice)


def _error(
    name: str, wanted: str, received: str, kind: type[ArgumentError], advice: str
) -> ArgumentError:
    problem = f"must be {wanted}, but got {received}. {advice}".rstrip()
    error = kind(f"{name} {problem}")
    error.argument, error.problem = name, problem
    return error


def as_array(name: str, value: object) -> np.ndarray:
    """Convert `value` to a NumPy array. Arrays are returned unchanged, tensors from any device.

    Raises:
        ValueError: The value has gaps or nested lists of different lengths, or cannot be converted
            by NumPy.
    """
    if has_gaps(value):
        raise argument_error(name, "an array without masked entries or ragged rows", value)
    keras = sys.modules.get("keras")  # otherwise the value is not a tensor
    if keras is not None and keras.ops.is_tensor(value):
        # Tensors from PyTorch can have a gradient or be on a GPU.
        return np.asarray(keras.ops.convert_to_numpy(value))
    try:
        return np.asarray(value)
    except (TypeError, ValueError) as error:
        wanted = "an array, or lists of one length"
        raise argument_error(name, wanted, value) from error


def has_gaps(value: object) -> bool:
    """Return whether an array has masked entries or ragged rows, which a conversion would fill."""
    # Only TensorFlow has ragged tensors.
    return bool(np.ma.is_masked(value)) or hasattr(value, "nested_row_splits")


def check_exact(labels: np.ndarray | None, dtype: str, name: str, what: str = "class ids") -> None:
    """Raise `ValueError` unless labels in a float dtype are whole and cannot be rounded.

    Args:
        labels: Labels of any shape, or None if they are not known yet.
        dtype: Their dtype before they became NumPy's.
        name: Name of the argument, for the message.
        what: Description of the labels, in the plural.
    """
    if labels is None:
        return
    limit = EXACT_LIMITS.get(dtype, EXACT_LIMITS["float64"])
    bad = np.argwhere(~(np.abs(labels) < limit) | (labels != np.floor(labels)))
    if len(bad):
        where = f" in row {bad[0][0]}" if labels.ndim else ""
        raise ArgumentTypeError(
            f"{name} must be {what}, which are whole numbers below {limit} in {dtype}, but got "
            f"{labels[tuple(bad[0])]}{where}. Pass larger ids as integers."
        )
