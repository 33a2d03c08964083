"""What ends a command early: a mistake in what was given, a run that must stop, a call for help."""

__all__ = ["FindingsError", "HelpRequested", "RunError", "UsageError", "one_line"]


class UsageError(ValueError):
    """A mistake in what the user gave: the flags, the files, the folder."""


class RunError(Exception):
    """A run that had to stop for a reason that its user can act on."""


class FindingsError(Exception):
    """A check that did its work and found more than its user allows."""


class HelpRequested(Exception):
    """The command line asks for the flags instead of a run; the text is the message."""


def one_line(error: Exception) -> str:
    """What an error says, on one line."""
    return " ".join(str(error).split())
