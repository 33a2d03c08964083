"""Distribute similar cases over the quick tests, the longer checks, and the thorough checks."""

import pytest


def parametrize(argument, values, sooner, later=pytest.mark.slow):
    """`pytest.mark.parametrize` for a slow test: all values except `sooner` get the marks `later`.

    Under `pytest.mark.slow`, set `later=pytest.mark.thorough` to exclude the values from the gate.
    Raises an error if `sooner` contains an unknown name, because the case would never run.
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
