"""The marks of the slower tests: `slow` (in the gate) and `thorough` (by hand)."""

import pytest

THOROUGH = (pytest.mark.slow, pytest.mark.thorough)
"""The marks of a case that runs only by hand."""


def thorough(test):
    """Mark a test that runs only by hand."""
    return pytest.mark.slow(pytest.mark.thorough(test))


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
