"""Commands that are killed several times at random and then repeated have the same result."""

import shutil

import numpy as np
import pytest
from kills import Undisturbed, ended_as_allowed, kill
from left_behind import differences, left_behind
from trials import Tally, seeds

# Command -> number of thorough trials. Together, they take ten minutes on two cores.
TRIALS = {"run": 6, "compare": 2, "index": 25, "evaluate": 20, "prepare": 60}


def trial(command, commands, folder, whole, seed, tally):
    """Kill a command one to three times, repeat it, and compare the result."""
    generator = np.random.default_rng(seed)
    how = []
    for _ in range(int(generator.integers(1, 4))):
        process = command.start(commands, folder)
        number, words = kill(process, folder, whole, generator)
        how.append(words)
        ended = process.wait()
        if alive := process.left_alive():
            tally.fail(seed, f"{how}: children are left: {alive}")
        if not ended_as_allowed(ended, number):
            tally.fail(seed, f"{how}: ended with {ended.code}: {ended.output[-3000:]}")
            return
    ended = command.run(commands, folder)
    if ended.code or ended.problem:
        tally.fail(seed, f"{how}: does not complete ({ended.code}): {ended.output[-3000:]}")
    elif different := differences(whole.left, left_behind(folder)):
        tally.fail(seed, f"{how}: another result: {different}")
    else:
        tally.add(f"the same result after {len(how)} kills")


def trials(name, count, small, commands, tmp_path, capsys):
    tally = Tally(f"killed {name} commands")
    whole = Undisturbed(small[name], commands, tmp_path / "whole")
    for seed in seeds(count):
        folder = tmp_path / "killed"
        trial(small[name], commands, folder, whole, seed, tally)
        shutil.rmtree(folder)
    tally.check(capsys)


@pytest.mark.slow
@pytest.mark.thorough
@pytest.mark.parametrize("name", TRIALS)
def test_many_killed_commands(name, small, commands, tmp_path, capsys):
    trials(name, TRIALS[name], small, commands, tmp_path, capsys)
