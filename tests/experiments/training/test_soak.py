"""A long run: no memory more with every evaluation."""

import json
import os
import pathlib
import subprocess
import sys

import pytest
from memory import growth

EVALUATIONS = 100
MOST_KILOBYTES = 25  # more with each evaluation, of those in the second half
SUPPORT = pathlib.Path(__file__).parents[2] / "support"


@pytest.mark.slow
@pytest.mark.thorough
@pytest.mark.parametrize("leak", [0, 79])
def test_many_evaluations(leak, photos, tmp_path, capsys):
    words = [SUPPORT / "evaluations.py", photos, tmp_path / "run", EVALUATIONS, leak]
    path = os.pathsep.join(filter(None, sys.path))
    done = subprocess.run(
        [sys.executable, *map(str, words)],
        env={**os.environ, "PYTHONPATH": path, "PYTHONMALLOC": "malloc"},
        capture_output=True,
        text=True,
        timeout=550,
        check=True,
    )
    held = json.loads(done.stdout.splitlines()[-1])
    grown = growth(held)
    with capsys.disabled():
        print(f"\n{len(held)} evaluations, {leak} kB kept of each: {grown:.1f} kB more with each")
        print(f"{held[len(held) // 2]:,} kB after half of them, {held[-1]:,} kB at the end")
    assert len(held) == EVALUATIONS
    assert (grown < MOST_KILOBYTES) == (leak == 0)
