"""Start commands in processes, and kill them at random moments."""

import contextlib
import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import time
from typing import NamedTuple

from left_behind import left_behind

SIGNALS = (signal.SIGKILL, signal.SIGKILL, signal.SIGTERM, signal.SIGINT)
LOOK = 0.002
LONGEST = 240.0
# `python -m MODULE WORDS` after the Python code in `setup`. An interrupt during the imports, before
# the command can handle it, ends the process.
PROGRAM = """
import importlib, runpy, signal, sys
signal.signal(signal.SIGINT, signal.SIG_DFL)
module, setup, *words = sys.argv[1:]
exec(setup)
importlib.import_module(module)
sys.argv = [module, *words]
signal.signal(signal.SIGINT, signal.default_int_handler)
runpy.run_module(module, run_name="__main__", alter_sys=True)
"""


class Ended(NamedTuple):
    """The end of a command.

    Attributes:
        code: its exit code, or minus the number of the signal that ended it.
        output: its text on stdout and stderr.
    """

    code: int
    output: str

    @property
    def problem(self):
        """Whether the output reports a bug."""
        return "Traceback (most recent" in self.output or "internal error" in self.output

    @property
    def refused(self):
        """The line of a refusal, or None if the command did not refuse."""
        errors = re.findall(r"(?:^|[\r\n])(error: .*)", self.output)
        return errors[0] if self.code == 2 and len(errors) == 1 else None


class Command:
    """A running command, in a new session."""

    def __init__(self, module, arguments, setup):
        self._output = tempfile.TemporaryFile("w+", errors="replace")  # noqa: SIM115
        self._process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, module, setup, *map(str, arguments)],
            stdin=subprocess.DEVNULL,
            stdout=self._output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )

    def sleep(self, seconds):
        """Wait, at most until the command ends; return whether it still runs."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(seconds)
            return False
        return True

    def send(self, number):
        """Send a signal."""
        self._process.send_signal(number)

    def wait(self):
        """Wait for the end and return `Ended`; kill a command that hangs and raise an error."""
        hangs = self.sleep(LONGEST)
        if hangs:
            os.killpg(self._process.pid, signal.SIGKILL)
        self._output.seek(0)
        output = self._output.read()
        if hangs:
            raise TimeoutError(f"no end after {LONGEST} s: {output[-2000:]}")
        return Ended(self._process.returncode, output)

    def left_alive(self):
        """Return the processes of its session that survive it by some seconds."""
        end = time.monotonic() + 5
        while (alive := _of_session(self._process.pid)) and time.monotonic() < end:
            time.sleep(0.01)
        return alive


def _of_session(session):
    found = []
    for path in pathlib.Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            state, _, _, of = path.read_text().rpartition(")")[2].split()[:4]
            if int(of) == session and state != "Z":
                found.append(int(path.parent.name))
    return found


def look_of(folder):
    """Return a value that changes when a file below is created, written, renamed, or removed."""
    found = []
    # Not `rglob`, which stops if a folder disappears during the walk.
    for place, folders, names in os.walk(folder):
        for name in (*folders, *names):
            with contextlib.suppress(OSError):  # deleted during the walk
                path = os.path.join(place, name)
                status = os.stat(path)
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
    """A complete run of a command: its first write, its end, and its number of writes."""

    def __init__(self, command, folder):
        began = time.monotonic()
        process = command.start(folder)
        self.changes = changes_seen(process, folder, 1)
        self.first = time.monotonic() - began
        self.changes += changes_seen(process, folder, float("inf"))
        ended = process.wait()
        self.seconds = time.monotonic() - began
        assert ended.code == 0, ended.output
        self.left = left_behind(folder)


def kill(process, folder, whole, generator):
    """Send a signal at a random time or a random write; return the signal and a description."""
    number = SIGNALS[generator.integers(len(SIGNALS))]
    if generator.random() < 0.5:
        # The imports take most of the time before the first write.
        moment = generator.uniform(0.9 * whole.first, whole.seconds)
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
