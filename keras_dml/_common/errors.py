"""Exceptions for invalid arguments, so that callers can distinguish them from bugs."""

__all__ = ["ArgumentError", "ArgumentTypeError", "DownloadError"]


class ArgumentError(ValueError):
    """An invalid argument. The message names it, shows its value, and suggests a valid one.

    Attributes:
        argument: Name of the argument. None if the code that raises the error does not set it.
    """

    argument: str | None = None

    # AutoGraph in a tf.function replaces exceptions with another constructor.
    __init__ = Exception.__init__

    def renamed(self, name: str) -> str:
        """Return the message for callers that know the argument by another name."""
        message = str(self)
        for end in (" must", "="):
            message = message.replace(f"{self.argument}{end}", f"{name}{end}")
        return message


class ArgumentTypeError(ArgumentError, TypeError):
    """An argument with an invalid type."""


class DownloadError(ArgumentError):
    """An argument that requires a download, without a network."""
