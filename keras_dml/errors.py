"""What the library raises where it refuses an argument: a caller can tell it from a bug."""

__all__ = ["ArgumentError", "ArgumentTypeError", "DownloadError", "SecondDerivativeError"]


class ArgumentError(ValueError):
    """An argument that is refused: the message names it, echoes it and says what would be right."""

    # As AutoGraph wants it: other exceptions it hides behind one of its own inside a tf.function.
    __init__ = Exception.__init__


class ArgumentTypeError(ArgumentError, TypeError):
    """The same, of an argument of another type than is asked for."""


class DownloadError(ArgumentError):
    """An argument that asks for a download, where there is no network."""


class SecondDerivativeError(NotImplementedError):
    """A second derivative of a loss whose gradient is not the derivative of its value.

    In a TensorFlow graph, which replaces Python exceptions, it is `tf.errors.UnimplementedError`
    with the same message. XLA does not compile such a graph, and names the operation
    `SecondDerivativesAreNotSupported`.
    """

    # AutoGraph hides other exceptions within a tf.function.
    __init__ = Exception.__init__
