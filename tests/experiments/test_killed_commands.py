"""Commands that are killed several times at random and then repeated have the same result."""

import shutil

import numpy as np
import pytest
import tiers
from kills import Undisturbed, ended_as_allowed, kill
from left_behind import differences, left_behind
from trials import Tally, seeds

from experiments.exporting.formats import FORMATS

# Command -> number of thorough trials. Each command takes at most a few minutes on two cores.
TRIALS = {"run": 5, "compare": 2, "index": 10, "evaluate": 10, "prepare": 20}
TRIALS |= {f"export {name}": 3 for name in FORMATS}


def is_refused(ended):
    """Return whether another command used the folder."""
    return bool(ended.refused) and "by another" in ended.refused


def trial(command, folder, whole, seed, tally):
    """Kill a command one to three times, repeat it, and compare the result.

    In half of the cases, a second command starts in the same folder. One works, or both one after
    the other, and the other is refused.
    """
    generator = np.random.default_rng(seed)
    how = []
    for _ in range(int(generator.integers(1, 4))):
        process = command.start(folder)
        second = command.start(folder) if generator.random() < 0.5 else None
        number, words = kill(process, folder, whole, generator)
        how.append(words + (" next to another" if second else ""))
        ended = process.wait()
        if alive := process.left_alive():
            tally.fail(seed, f"{how}: children are left: {alive}")
        allowed = ended_as_allowed(ended, number) or is_refused(ended)
        if second and allowed:
            ended = second.wait()
            allowed = is_refused(ended) or (ended.code == 0 and not ended.problem)
        if not allowed:
            tally.fail(seed, f"{how}: ended with {ended.code}: {ended.output[-3000:]}")
            return
    ended = command.start(folder).wait()
    if ended.code or ended.problem:
        tally.fail(seed, f"{how}: does not complete ({ended.code}): {ended.output[-3000:]}")
    elif different := differences(whole.left, left_behind(folder)):
        tally.fail(seed, f"{how}: another result: {different}")
    else:
        tally.add(f"the same result after {len(how)} kills")


@tiers.thorough
@pytest.mark.parametrize("name", TRIALS)
def test_many_killed_commands(name, small, tmp_path, capsys):
    for package in FORMATS[name.split()[-1]].packages if name.startswith("export") else ():
        pytest.importorskip(package, exc_type=ImportError)
    tally = Tally(f"killed {name} commands")
    whole = Undisturbed(small[name], tmp_path / "whole")
    for seed in seeds(TRIALS[name]):
        folder = tmp_path / "killed"
        trial(small[name], folder, whole, seed, tally)
        shutil.rmtree(folder)
    tally.check(capsys)
