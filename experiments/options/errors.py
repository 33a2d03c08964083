"""Exceptions that end a command early."""

from keras_dml._common.errors import without_passwords

MISTAKE = 2
"""Exit code of a user's mistake."""


class UsageError(ValueError):
    """A user's mistake in the flags, the files, or the folder."""


class RunError(Exception):
    """A run that has to stop for a reason that the user can resolve."""


class FindingsError(Exception):
    """A check that found more than the user allows."""


class HelpRequested(Exception):
    """A request for the help, which is the message."""


def one_line(error: Exception) -> str:
    """Return the message of an error on one line, without passwords."""
    return without_passwords(" ".join(str(error).split()))
