"""What takes a process of its own is made once, and fails once."""

import functools

import pytest


def once(make):
    """Keeps what `make` returns for its arguments, as `functools.cache` does.

    If it fails, the first test that asked fails and says why; the others, which would wait as long
    for the same end, are skipped.
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
