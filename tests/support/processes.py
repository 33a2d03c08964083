"""Python programs in separate processes, and the difference of their results."""

import os
import pathlib
import subprocess
import sys

import numpy as np

ROOT = pathlib.Path(__file__).parents[2]


def start(*words, stderr=subprocess.PIPE, **environment):
    """Start `python WORDS` in the root of the repository."""
    return subprocess.Popen(
        [sys.executable, *map(str, words)],
        cwd=ROOT,
        env=os.environ | environment,
        stdout=subprocess.PIPE,
        stderr=stderr,
        text=True,
    )


def finish(processes, timeout=300, code=0):
    """Return the stdout of each process; all must end with `code` within a limit in seconds."""
    try:
        ended = [process.communicate(timeout=timeout) for process in processes]
    finally:
        for process in processes:
            process.kill()
    for process, (out, err) in zip(processes, ended):
        assert process.returncode == code, f"{out[-3000:]}\n{(err or '')[-3000:]}"
    return [out for out, _ in ended]


def run_python(*words, timeout=600, **environment):
    """Run `python WORDS` in the root of the repository. Return its stdout. It must succeed."""
    (out,) = finish([start(*words, **environment)], timeout)
    return out


def difference(a, b):
    """Return the largest difference of two lists of weights, relative to the largest weight."""
    a, b = (np.concatenate([np.ravel(w) for w in weights]) for weights in (a, b))
    return np.abs(a - b).max() / np.abs(a).max()
