"""Kill commands at random moments."""

import os
import signal
import time

from left_behind import left_behind

SIGNALS = (signal.SIGKILL, signal.SIGKILL, signal.SIGTERM, signal.SIGINT)
# Python must start before it can be interrupted.
BEGUN = 0.05
LOOK = 0.002


def look_of(folder):
    """Return a value that changes when a file below is created, written, renamed, or removed."""
    found = []
    # Not `rglob`, which stops if a folder disappears during the walk.
    for place, folders, names in os.walk(folder):
        for name in (*folders, *names):
            path = os.path.join(place, name)
            try:
                status = os.stat(path)
            except OSError:  # deleted during the walk
                continue
            found.append((path, status.st_size, status.st_mtime_ns))
    return sorted(found)


def changes_seen(process, folder, most):
    """Count the changes of a folder until the process ends, at most `most`."""
    before, seen = look_of(folder), 0
    while seen < most and process.sleep(LOOK):
        now = look_of(folder)
        seen, before = seen + (now != before), now
    return seen


class Undisturbed:
    """A complete run of a command: its output, its duration, and its number of writes."""

    def __init__(self, command, commands, folder):
        began = time.monotonic()
        process = command.start(commands, folder)
        self.changes = changes_seen(process, folder, float("inf"))
        ended = process.wait()
        self.seconds = time.monotonic() - began
        assert ended.code == 0, ended.output
        self.left = left_behind(folder)


def kill(process, folder, whole, generator):
    """Send a signal at a random time or a random write; return the signal and a description."""
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


def ended_as_allowed(ended, number):
    """Return whether a command ended in an allowed way after a signal."""
    # The signal kills Python if it arrives during shutdown, after the work is done.
    expected = {0, -number, 130 if number == signal.SIGINT else 0}
    return ended.code in expected and "Traceback" not in ended.output and ended.code != 1
