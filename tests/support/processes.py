"""Python programs in separate processes, and the difference of their results."""

import os
import pathlib
import subprocess
import sys

import numpy as np

ROOT = pathlib.Path(__file__).parents[2]


def run_python(*words, timeout=600, **environment):
    """Run `python WORDS` in the root of the repository. Return its stdout. It must succeed."""
    done = subprocess.run(
        [sys.executable, *map(str, words)],
        cwd=ROOT,
        env=os.environ | environment,
        capture_output=True,
        text=True,
        timeout=timeout,
    )
    assert done.returncode == 0, f"{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
    return done.stdout


def difference(a, b):
    """Return the largest difference of two lists of weights, relative to the largest weight."""
    a, b = (np.concatenate([np.ravel(w) for w in weights]) for weights in (a, b))
    return np.abs(a - b).max() / np.abs(a).max()
