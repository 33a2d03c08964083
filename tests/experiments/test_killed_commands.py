"""Commands that are killed several times at random and then repeated have the same result."""

import shutil

import numpy as np
import pytest
from kills import Undisturbed, ended_as_allowed, kill
from left_behind import differences, left_behind
from trials import Tally, seeds

# Command -> number of thorough trials. Together, they take ten minutes on two cores.
TRIALS = {"run": 6, "compare": 2, "index": 25, "evaluate": 20, "prepare": 60}


def is_refused(ended):
    """Return whether another command used the folder."""
    return bool(ended.refused) and "by another" in ended.refused


def trial(command, commands, folder, whole, seed, tally):
    """Kill a command one to three times, repeat it, and compare the result.

    In half of the cases, a second command starts in the same folder. One works, or both one after
    the other, and the other is refused.
    """
    generator = np.random.default_rng(seed)
    how = []
    for _ in range(int(generator.integers(1, 4))):
        process = command.start(commands, folder)
        second = command.start(commands, folder) if generator.random() < 0.5 else None
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
    ended = command.run(commands, folder)
    if ended.code or ended.problem:
        tally.fail(seed, f"{how}: does not complete ({ended.code}): {ended.output[-3000:]}")
    elif different := differences(whole.left, left_behind(folder)):
        tally.fail(seed, f"{how}: another result: {different}")
    else:
        tally.add(f"the same result after {len(how)} kills")


@pytest.mark.slow
@pytest.mark.thorough
@pytest.mark.parametrize("name", TRIALS)
def test_many_killed_commands(name, small, commands, tmp_path, capsys):
    tally = Tally(f"killed {name} commands")
    whole = Undisturbed(small[name], commands, tmp_path / "whole")
    for seed in seeds(TRIALS[name]):
        folder = tmp_path / "killed"
        trial(small[name], commands, folder, whole, seed, tally)
        shutil.rmtree(folder)
    tally.check(capsys)
