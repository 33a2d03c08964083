"""Commands killed at moments drawn at random, several times, then repeated: the undisturbed end."""

import pathlib
import shutil
import signal
import time

import numpy as np
import pytest
from left_behind import differences, left_behind
from trials import Tally, seeds

SIGNALS = (signal.SIGKILL, signal.SIGKILL, signal.SIGTERM, signal.SIGINT)
# Of each: how many of the thorough trials, which take the ten minutes of two cores together.
TRIALS = {"run": 6, "compare": 2, "index": 25, "evaluate": 20, "prepare": 60}
# Python itself needs a moment until it can be interrupted.
BEGUN = 0.05
LOOK = 0.002


def look_of(folder):
    """Changes whenever a file there is made, written, renamed or removed."""
    found = []
    for path in pathlib.Path(folder).rglob("*"):
        try:
            status = path.stat()
        except OSError:  # gone meanwhile
            continue
        found.append((str(path), status.st_size, status.st_mtime_ns))
    return sorted(found)


def changes_seen(process, folder, most):
    """How often the folder has changed until the process ended, or `most` times."""
    before, seen = look_of(folder), 0
    while seen < most and process.sleep(LOOK):
        now = look_of(folder)
        seen, before = seen + (now != before), now
    return seen


class Undisturbed:
    """A command's end that nobody disturbed, how long it took and how often it wrote."""

    def __init__(self, command, commands, folder):
        began = time.monotonic()
        process = command.start(commands, folder)
        self.changes = changes_seen(process, folder, float("inf"))
        ended = process.wait()
        self.seconds = time.monotonic() - began
        assert ended.code == 0, ended.output
        self.left = left_behind(folder)


def kill(process, folder, whole, generator):
    """One signal at a random moment: of the time, or of what the command writes; as words."""
    number = SIGNALS[generator.integers(len(SIGNALS))]
    process.sleep(BEGUN)
    if generator.random() < 0.5:
        moment = generator.random() * whole.seconds
        process.sleep(moment)
        when = f"{moment:.3f} s"
    else:
        most = int(generator.integers(1, whole.changes + 1))
        changes_seen(process, folder, most)
        process.sleep(generator.random() * 0.02)
        when = f"change {most}"
    process.send(number)
    return number, f"{number.name} at {when}"


def trial(command, commands, folder, whole, seed, tally):
    """Up to three kills, then the end."""
    generator = np.random.default_rng(seed)
    how = []
    for _ in range(int(generator.integers(1, 4))):
        process = command.start(commands, folder)
        number, words = kill(process, folder, whole, generator)
        how.append(words)
        ended = process.wait()
        if alive := process.left_alive():
            tally.fail(seed, f"{how}: children are left: {alive}")
        # By the signal itself where it comes when all is done and Python ends.
        expected = {0, -number, 130 if number == signal.SIGINT else 0}
        if ended.code not in expected or "Traceback" in ended.output or ended.code == 1:
            tally.fail(seed, f"{how}: ended with {ended.code}: {ended.output[-3000:]}")
            return
    ended = command.run(commands, folder)
    if ended.code or ended.problem:
        tally.fail(seed, f"{how}: does not go on ({ended.code}): {ended.output[-3000:]}")
    elif different := differences(whole.left, left_behind(folder)):
        tally.fail(seed, f"{how}: another end: {different}")
    else:
        tally.add(f"the undisturbed end after {len(how)} kills")


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
@pytest.mark.parametrize("name", ["index", "prepare"])
def test_a_few_kills(name, small, commands, tmp_path, capsys):
    trials(name, 2, small, commands, tmp_path, capsys)


@pytest.mark.slow
@pytest.mark.thorough
@pytest.mark.parametrize("name", TRIALS)
def test_many_kills(name, small, commands, tmp_path, capsys):
    trials(name, TRIALS[name], small, commands, tmp_path, capsys)
