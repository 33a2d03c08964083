"""The evaluations of a long run do not leak memory."""

import json
import os
import pathlib
import sys

import pytest
from memory import growth
from processes import run_python

EVALUATIONS = 100
MOST_KILOBYTES = 25  # growth per evaluation in the second half of the run
SUPPORT = pathlib.Path(__file__).parents[2] / "support"


@pytest.mark.slow
@pytest.mark.thorough
@pytest.mark.parametrize("leak", [0, 79])
def test_many_evaluations(leak, photos, tmp_path, capsys):
    words = [SUPPORT / "evaluations.py", photos, tmp_path / "run", EVALUATIONS, leak]
    path = os.pathsep.join(filter(None, sys.path))
    said = run_python(*words, PYTHONPATH=path, PYTHONMALLOC="malloc")
    sizes = json.loads(said.splitlines()[-1])
    grown = growth(sizes)
    with capsys.disabled():
        print(f"\n{len(sizes)} evaluations, leak of {leak} kB: {grown:.1f} kB growth each")
        print(f"{sizes[len(sizes) // 2]:,} kB after half of the run, {sizes[-1]:,} kB at the end")
    assert len(sizes) == EVALUATIONS
    assert (grown < MOST_KILOBYTES) == (leak == 0)
