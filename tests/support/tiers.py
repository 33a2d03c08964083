"""Which of many alike cases run where: the quick tests, the longer checks, the thorough ones."""

import pytest


def parametrize(argument, values, sooner, later=pytest.mark.slow):
    """`pytest.mark.parametrize` of a test that takes long: all values but `sooner` marked `later`,
    which is a mark or several.

    Under `pytest.mark.slow`, `later=pytest.mark.thorough` says which of them the gate leaves out. A
    name in `sooner` that is no value is an error: nothing would be tried sooner, unseen.
    """
    values = list(values)
    unknown = set(sooner) - set(values)
    if unknown:
        raise ValueError(f"sooner must be among the values. Received: {sorted(unknown)}")
    several = isinstance(argument, tuple)
    cases = [
        value if value in sooner else pytest.param(*(value if several else [value]), marks=later)
        for value in values
    ]
    return pytest.mark.parametrize(argument, cases)
