"""Two processes in one folder: the second process reads the files when it locks the folder.

The tests force the order of events: the second process looks at the folder, the first process
works and is killed, and the second process opens the folder.
"""

import os
import signal
import subprocess
import sys

import pytest

from experiments.evaluation.baselines import RAW_PIXELS_FILE as RAW_PIXELS
from experiments.training.run_files import CHECKPOINT, FLAGS_FILE
from experiments.training.run_folder import RunFolder

# Open the folder, write files on request, and wait.
FIRST = """
import sys
from experiments.training.run_folder import RunFolder
folder = RunFolder(sys.argv[1], sys.argv[2]).open()
print("open", flush=True)
for line in sys.stdin:
    folder.write_text(line.strip(), "{}")
    print("written", flush=True)
"""


class First:
    """Another process that uses the folder."""

    def __init__(self, path, flags):
        self.process = subprocess.Popen(
            [sys.executable, "-c", FIRST, str(path), flags],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout.readline() == "open\n"

    def write(self, name):
        self.process.stdin.write(f"{name}\n")
        self.process.stdin.flush()
        assert self.process.stdout.readline() == "written\n"

    def kill(self):
        os.kill(self.process.pid, signal.SIGKILL)
        self.process.communicate()


@pytest.mark.slow
@pytest.mark.parametrize(("kept", "seen"), [(CHECKPOINT, "flags"), ("result.json", "nothing")])
def test_a_folder_that_another_run_used_in_between_is_refused(tmp_path, kept, seen):
    path = tmp_path / "run"
    if seen == "nothing":
        second = RunFolder(path, "--seed=1\n")
    first = First(path, "--seed=0\n")
    if seen == "flags":
        second = RunFolder(path, "--seed=1\n")
        with pytest.raises(ValueError, match="in use by another running process"):
            second.open()
    first.write(kept)
    first.kill()
    with pytest.raises(ValueError, match="run with other flags.*there --seed=0, now --seed=1"):
        second.open()
    assert (path / FLAGS_FILE).read_text() == "--seed=0\n"
    # The refused process does not lock the folder, so that the first command can resume.
    RunFolder(path, "--seed=0\n").open()


@pytest.mark.slow
def test_a_folder_without_a_checkpoint_can_be_reused(tmp_path):
    second = RunFolder(tmp_path / "run", "--seed=1\n")
    first = First(second.path, "--seed=0\n")
    first.write(RAW_PIXELS)
    first.kill()
    second.open()
    assert (second.path / FLAGS_FILE).read_text() == "--seed=1\n"
    assert not (second.path / RAW_PIXELS).exists()
