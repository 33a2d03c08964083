"""Commands killed at moments drawn at random."""

import os
import signal
import time

from left_behind import left_behind

SIGNALS = (signal.SIGKILL, signal.SIGKILL, signal.SIGTERM, signal.SIGINT)
# Python itself needs a moment until it can be interrupted.
BEGUN = 0.05
LOOK = 0.002


def look_of(folder):
    """Changes whenever a file there is made, written, renamed or removed."""
    found = []
    # Not `rglob`, which ends where a folder goes meanwhile.
    for place, folders, names in os.walk(folder):
        for name in (*folders, *names):
            path = os.path.join(place, name)
            try:
                status = os.stat(path)
            except OSError:  # gone meanwhile
                continue
            found.append((path, status.st_size, status.st_mtime_ns))
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


def killed_as_it_may(ended, number):
    """Whether a command that got a signal has ended as it may."""
    # By the signal itself where it comes when all is done and Python ends.
    expected = {0, -number, 130 if number == signal.SIGINT else 0}
    return ended.code in expected and "Traceback" not in ended.output and ended.code != 1
