"""Exceptions for invalid arguments, so that callers can distinguish them from bugs."""

__all__ = ["ArgumentError", "ArgumentTypeError", "DownloadError"]


class ArgumentError(ValueError):
    """An invalid argument. The message names it, shows its value, and suggests a valid one."""

    # AutoGraph in a tf.function replaces exceptions with another constructor.
    __init__ = Exception.__init__


class ArgumentTypeError(ArgumentError, TypeError):
    """An argument with an invalid type."""


class DownloadError(ArgumentError):
    """An argument that requires a download, without a network."""
