"""The marks of the slower tests: `slow` (in the gate) and `thorough` (by hand)."""

import keras
import pytest

THOROUGH = (pytest.mark.slow, pytest.mark.thorough)
"""The marks of a case that runs only by hand."""

ON_TENSORFLOW = keras.backend.backend() == "tensorflow"


def thorough(test):
    """Mark a test that runs only by hand."""
    return pytest.mark.slow(pytest.mark.thorough(test))


def slow_on_tensorflow(test):
    """Mark a test that takes seconds on TensorFlow, and that the gate also runs elsewhere."""
    return pytest.mark.slow(test) if ON_TENSORFLOW else test


def thorough_elsewhere(test):
    """Mark a test that runs only by hand on JAX and PyTorch.

    Other tests run its operations there, and compare them with loops.
    """
    return test if ON_TENSORFLOW else thorough(test)


def few_elsewhere(values, few):
    """Return all values on TensorFlow, or else the values for which `few` is true.

    For `parametrize`, if the values differ only in code that does not depend on the backend.
    """
    return [value for value in values if ON_TENSORFLOW or few(value)]


def parametrize(argument, values, sooner, later=THOROUGH, ids=None):
    """`pytest.mark.parametrize` whose values except `sooner` get the marks `later`.

    Raises an error if `sooner` contains an unknown name, because the case would never run.
    """
    values = list(values)
    unknown = [value for value in sooner if value not in values]
    if unknown:
        raise ValueError(f"sooner must be among the values, but got {unknown}.")
    several = isinstance(argument, tuple)
    cases = [
        value if value in sooner else pytest.param(*(value if several else [value]), marks=later)
        for value in values
    ]
    return pytest.mark.parametrize(argument, cases, ids=ids)
