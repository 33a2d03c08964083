"""Selections of the losses' cases for the shared tests."""

import tiers
from oracles import CASES

DEFAULTS = [case for case in CASES if not case.arguments]
"""Each loss with its defaults."""

NON_DEFAULT = [
    case for case in CASES if case.arguments or sum(other.name == case.name for other in CASES) == 1
]
"""Cases with arguments, and losses without arguments: the cases to save, load, and fit."""


def is_one_of_few(case):
    """Whether a case runs on JAX and PyTorch where all losses share the tested code."""
    return case.name in ("contrastive", "snca", "norm_softmax", "ce")


def each(cases=CASES, quick=None, later=tiers.THOROUGH, few=lambda case: True):
    """`pytest.mark.parametrize` over cases, of which only some are quick.

    Args:
        cases: the cases.
        quick: names of the losses whose cases are quick. None: the first case of each loss.
        later: the marks of the other cases.
        few: which of the quick cases are quick on JAX and PyTorch, too.
    """
    first = {case.name: case for case in reversed(cases)}
    sooner = [
        case
        for case in cases
        if (first[case.name] is case if quick is None else case.name in quick)
    ]
    return tiers.parametrize("case", cases, tiers.few_elsewhere(sooner, few), later, ids=str)
