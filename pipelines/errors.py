"""What the pipelines raise where they refuse an argument: a caller can tell it from a bug."""

__all__ = ["ArgumentError", "ArgumentTypeError"]


class ArgumentError(ValueError):
    """An argument that is refused: the message names it, echoes it and says what would be right."""


class ArgumentTypeError(ArgumentError, TypeError):
    """The same, of an argument of another type than is asked for."""
