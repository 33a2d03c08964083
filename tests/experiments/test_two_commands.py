"""Two processes that start in one folder at random times: one works, the other is refused."""

import shutil
import signal
import time

import numpy as np
import pytest
from left_behind import differences, left_behind
from trials import Tally, seeds

# Command -> number of thorough trials, and a flag that changes its result.
TRIALS = {
    "run": (6, "--seed=1"),
    "index": (30, "--metric=l2"),
    "evaluate": (25, "--noclustering"),
    "prepare": (60, None),
}
# Messages of the refused command.
IN_USE = ("in use by another", "being written by another", "being prepared by another")
OTHER_FLAGS = "has a run with other flags"


def undisturbed(command, commands, folder, words):
    began = time.monotonic()
    ended = command.run(commands, folder, *words)
    assert ended.code == 0, ended.output
    return left_behind(folder), time.monotonic() - began


def problem(ended, killed):
    """Return the fault in how one of two commands ended, or None."""
    if killed and ended.code == -signal.SIGKILL:
        return None
    if ended.problem:
        return ended.problem
    if ended.code == 0:
        return None
    line = ended.refused
    if line and any(words in line for words in (*IN_USE, OTHER_FLAGS)):
        return None
    return f"neither done nor refused in one line ({ended.code}): {ended.output[-3000:]}"


def trial(command, commands, folder, wholes, other, seed, tally):
    """Run two commands in one folder, kill the first in some trials, and compare the result.

    Args:
        command: Command to run.
        commands: `ForkedCommands` that starts it.
        folder: Output folder of both commands.
        wholes: Output and seconds of an undisturbed run, per command.
        other: Flag that the second command has in half of the trials, or None.
        seed: Seed of the trial.
        tally: `Tally` that counts the outcomes.
    """
    generator = np.random.default_rng(seed)
    different = bool(other) and generator.random() < 0.5
    words = [[], [other] if different else []]
    seconds = wholes[0][1]
    first = command.start(commands, folder)
    # In half of the trials, both commands start at almost the same time.
    delay = generator.random() * (0.3 if generator.random() < 0.5 else seconds)
    first.sleep(delay)
    second = command.start(commands, folder, *words[1])
    killed = generator.random() < 0.5
    how = f"{'other' if different else 'the same'} flags, the second after {delay:.3f} s"
    if killed:
        moment = generator.random() * seconds
        how += f", the first killed {moment:.3f} s later"
        first.sleep(moment)
        first.send(signal.SIGKILL)
    ended = [process.wait() for process in (first, second)]
    for one, is_first in zip(ended, (True, False)):
        if why := problem(one, killed and is_first):
            tally.fail(seed, f"{how}: {why}")
            return
    # A repeated command completes unless it is refused for its flags. The folder has one owner.
    again = [command.run(commands, folder, *more) for more in words]
    done = [number for number, one in enumerate(again) if one.code == 0]
    for one in again:
        if why := problem(one, False):
            tally.fail(seed, f"{how}: repeated: {why}")
            return
    if not done:
        tally.fail(
            seed, f"{how}: neither command completes: {[each.output[-1000:] for each in again]}"
        )
        return
    # Both complete if the second command may replace the result, for example rebuild an index.
    expected = wholes[done[-1] if different else 0][0]
    if found := differences(expected, left_behind(folder)):
        tally.fail(seed, f"{how}: another result: {found}")
        return
    refused = sum(one.code == 2 for one in ended)
    tally.add(f"with {['none', 'one', 'both'][refused]} refused")


def trials(name, count, small, commands, tmp_path, capsys):
    other = TRIALS[name][1]
    wholes = [
        undisturbed(small[name], commands, tmp_path / f"whole-{number}", words)
        for number, words in enumerate([[], [other]] if other else [[]])
    ]
    tally = Tally(f"pairs of {name} commands")
    for seed in seeds(count):
        trial(small[name], commands, tmp_path / "both", wholes, other, seed, tally)
        shutil.rmtree(tmp_path / "both")
    tally.check(capsys)


@pytest.mark.slow
@pytest.mark.thorough
@pytest.mark.parametrize("name", TRIALS)
def test_many_pairs_of_commands(name, small, commands, tmp_path, capsys):
    trials(name, TRIALS[name][0], small, commands, tmp_path, capsys)
