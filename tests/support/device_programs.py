"""Run the support programs in processes, and compare their results."""

import json

import numpy as np
from processes import run_python


def printed(program, *words):
    """Return the last line of `tests.support.PROGRAM` as JSON; show its output if it fails."""
    said = run_python("-m", f"tests.support.{program}", *words)
    return json.loads(said.strip().splitlines()[-1])


def difference(a, b):
    """Return the largest difference of two lists of weights, relative to the largest weight."""
    a, b = (np.concatenate([np.ravel(w) for w in weights]) for weights in (a, b))
    return np.abs(a - b).max() / np.abs(a).max()
