"""Run the support programs in processes, and compare their results."""

import json
import subprocess
import sys

import local_workers
import numpy as np


def printed(program, *words):
    """Return the last line of `tests.support.PROGRAM` as JSON; show its output if it fails."""
    command = [sys.executable, "-m", f"tests.support.{program}", *map(str, words)]
    done = subprocess.run(
        command, cwd=local_workers.ROOT, capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.strip().splitlines()[-1])


def difference(a, b):
    """Return the largest difference of two lists of weights, relative to the largest weight."""
    a, b = (np.concatenate([np.ravel(w) for w in weights]) for weights in (a, b))
    return np.abs(a - b).max() / np.abs(a).max()
