"""Two processes and one folder: what the first has written by the time the second holds it counts.

The order of events is forced: the second looks at the folder, the first works and is killed, the
second opens it.
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

# Opens the folder, writes when told to and waits to be killed.
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
    """Another process that runs in the folder."""

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


@pytest.mark.gate_cases(2)
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
def test_a_folder_that_another_run_has_used_meanwhile_is_refused(tmp_path, kept, seen):
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
    # Refused, it does not hold the folder: the first's own command goes on.
    RunFolder(path, "--seed=0\n").open()


@pytest.mark.slow
def test_a_folder_that_another_run_has_left_without_a_checkpoint_is_taken(tmp_path):
    second = RunFolder(tmp_path / "run", "--seed=1\n")
    first = First(second.path, "--seed=0\n")
    first.write(RANKMI)
    first.kill()
    second.open()
    assert (second.path / FLAGS_FILE).read_text() == "--seed=1\n"
    assert not (second.path / RANKMI).exists()


@pytest.mark.thorough
@pytest.mark.slow
def test_the_second_run_trains_nothing_of_the_first(
    finished,
    photos,
    tmp_path,
    monkeypatch,
    capsys,
):
    """The first run trains, and ends, while the second reads its images."""
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
