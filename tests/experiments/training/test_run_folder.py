"""Two processes in one folder: the second process reads the files when it locks the folder.

The tests force the order of events: the second process looks at the folder, the first process
works and is killed, and the second process opens the folder.
"""

import json
import os
import shutil
import signal
import subprocess
import sys

import pytest
from tiny_run import TINY, command

from experiments.options import data as described
from experiments.training.run_files import CHECKPOINT, FLAGS_FILE, RANKMI
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
@pytest.mark.parametrize(
    ("kept", "seen"),
    [
        (CHECKPOINT, "flags"),
        pytest.param(CHECKPOINT, "nothing", marks=pytest.mark.slow),
        pytest.param("result.json", "nothing", marks=pytest.mark.slow),
        pytest.param("result.json", "flags", marks=pytest.mark.slow),
    ],
)
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
    first.write(RANKMI)
    first.kill()
    second.open()
    assert (second.path / FLAGS_FILE).read_text() == "--seed=1\n"
    assert not (second.path / RANKMI).exists()


@pytest.mark.thorough
@pytest.mark.slow
def test_a_second_run_does_not_repeat_the_training(
    finished,
    photos,
    tmp_path,
    monkeypatch,
    capsys,
):
    """The first run completes while the second run loads its images."""
    load = described.load

    def meanwhile(options):
        shutil.copytree(finished, options.output_dir)
        return load(options)

    monkeypatch.setattr(described, "load", meanwhile)
    arguments = [*TINY, f"--data_dir={photos}", "--raw_pixels"]
    for name, more, code in (("other", ["--seed=1"], 2), ("same", [], 0)):
        assert command(*arguments, *more, f"--output_dir={tmp_path / name}") == code
        out, err = capsys.readouterr()
        if code:
            assert err.startswith("error: output_dir") and "now --seed=1" in err
        else:
            assert "is finished" in out and "epochs of" not in out
        files = {p.name: p.stat().st_mtime_ns for p in finished.iterdir() if p.is_file()}
        left = {p.name: p.stat().st_mtime_ns for p in (tmp_path / name).iterdir() if p.is_file()}
        assert left.keys() == files.keys()
        assert json.loads((tmp_path / name / "result.json").read_text()) == json.loads(
            (finished / "result.json").read_text()
        )
        assert left[CHECKPOINT] == files[CHECKPOINT]
