"""What the library raises where it refuses an argument: a caller can tell it from a bug."""

__all__ = ["ArgumentError", "ArgumentTypeError", "DownloadError"]


class ArgumentError(ValueError):
    """An argument that is refused: the message names it, echoes it and says what would be right."""

    # As AutoGraph wants it: other exceptions it hides behind one of its own inside a tf.function.
    __init__ = Exception.__init__


class ArgumentTypeError(ArgumentError, TypeError):
    """The same, of an argument of another type than is asked for."""


class DownloadError(ArgumentError):
    """An argument that asks for a download, where there is no network."""
