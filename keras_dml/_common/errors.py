"""Exceptions for invalid arguments, so that callers can distinguish them from bugs."""

__all__ = ["ArgumentError", "ArgumentTypeError", "DownloadError", "SecondDerivativeError"]


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


class SecondDerivativeError(NotImplementedError):
    """A second derivative of a loss whose gradient is not the derivative of its value.

    In a TensorFlow graph, which replaces Python exceptions, it is `tf.errors.UnimplementedError`
    with the same message. XLA does not compile such a graph, and names the operation
    `SecondDerivativesAreNotSupported`.

    Examples:
        >>> error = SecondDerivativeError("CircleLoss has no second derivative")
        >>> isinstance(error, NotImplementedError)
        True
    """

    # AutoGraph hides other exceptions within a tf.function.
    __init__ = Exception.__init__
