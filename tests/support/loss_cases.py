"""Cases for the shared tests of each loss, from the decorators of the oracles."""

import dataclasses
from collections.abc import Callable

import oracles
import pytest


@dataclasses.dataclass(frozen=True)
class Case:
    """A loss with its name, its oracle, and its arguments.

    Attributes:
        pairs: the loss compares images with each other (not logits with a classifier).
        numeric: its gradient is the derivative of its value (it does not set another one).
        quick: the quick tests compile its training, too.
    """

    name: str
    oracle: Callable
    arguments: dict = dataclasses.field(default_factory=dict)
    pairs: bool = True
    numeric: bool = True
    quick: bool = False

    def __str__(self):
        given = ",".join(f"{key}={value}" for key, value in self.arguments.items())
        return f"{self.name}({given})"


def _cases(loss, oracle, arguments, pairs, sets_gradient, quick):
    return [
        Case(loss, oracle, given, pairs, numeric=not sets_gradient(given), quick=quick)
        for given in ({}, *arguments)
    ]


CASES = [case for declared in oracles.ORACLES for case in _cases(**declared)]
"""Each loss with its defaults, and with each set of non-default arguments."""

NON_DEFAULT = [
    case for case in CASES if case.arguments or sum(other.name == case.name for other in CASES) == 1
]
"""Cases with arguments, and losses without arguments: the cases to save, load, and fit."""

DEFAULTS = [case for case in CASES if not case.arguments]
"""Each loss with its defaults."""


def each(cases=CASES, quick=None, later=(pytest.mark.slow, pytest.mark.thorough)):
    """`pytest.mark.parametrize` over cases, of which only some are quick.

    Args:
        cases: the cases.
        quick: names of the losses whose cases are quick. None: the first case of each loss.
        later: the marks of the other cases.
    """
    first = {case.name: case for case in reversed(cases)}
    return pytest.mark.parametrize(
        "case",
        [
            pytest.param(case, id=str(case), marks=() if now else later)
            for case in cases
            for now in [first[case.name] is case if quick is None else case.name in quick]
        ],
    )
