"""Run slow processes only once, even if they fail."""

import functools

import pytest


def once(make):
    """Cache the results of `make`, as `functools.cache` does, and its failures.

    If `make` fails, the first test fails with its error. The other tests would wait as long for the
    same error, so they are skipped.
    """
    made, tried = {}, set()

    @functools.wraps(make)
    def kept(*arguments):
        if arguments not in made:
            if arguments in tried:
                pytest.skip(f"{make.__name__}{arguments} failed in the first test that needed it")
            tried.add(arguments)
            made[arguments] = make(*arguments)
        return made[arguments]

    return kept
