"""Two Ray workers train a run, which is bit-identical if a worker is killed."""

import os
import pathlib
import signal
import time

import pytest
import tiers
from tiny_run import TINY_GLYPHS, assert_same_runs, finish, start

TINY = [*TINY_GLYPHS, "--dropout=0.5", "--optimizer=adam", "--deterministic"]
TINY += ["--epochs=6", "--steps_per_epoch=4", "--eval_every=3"]
SECONDS = 240


def start_run(folder, *more):
    words = [*TINY, "--engine=ray", "--workers=2", f"--output_dir={folder}", *more]
    return start("experiments.run", *words)


def workers_of(folder):
    """Return the process ids of a run's Ray workers, in ascending order."""
    pytest.importorskip("ray")
    found = []
    for process in pathlib.Path("/proc").glob("[0-9]*"):
        try:
            name = (process / "cmdline").read_bytes()
            words = (process / "environ").read_bytes()
        except OSError:
            continue
        if name.startswith(b"ray::RayTrainWorker") and f"MARK={folder}\0".encode() in words:
            found.append(int(process.name))
    return sorted(found)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    pytest.importorskip("ray")
    folder = tmp_path_factory.mktemp("runs") / "whole"
    said = finish(start_run(folder))
    assert f"report: {folder}/report.html" in said
    assert said.count("building its first step") == 1  # only the first worker prints
    return folder


@pytest.mark.slow
@tiers.parametrize("victim", [1, 0], [1], pytest.mark.thorough)
def test_a_killed_worker_is_restarted_and_the_run_is_bit_identical(
    whole, tmp_path, victim, monkeypatch
):
    folder = tmp_path / "killed"
    monkeypatch.setenv("MARK", str(folder))
    process = start_run(folder)
    deadline = time.monotonic() + SECONDS
    while not (folder / "checkpoint.npz").is_file() and time.monotonic() < deadline:
        time.sleep(0.005)
    os.kill(workers_of(folder)[victim], signal.SIGKILL)
    assert not (folder / "result.json").exists(), "killed too late"
    assert "continued after epoch" in finish(process)
    assert_same_runs(whole, folder)


@pytest.mark.slow
def test_a_mistake_stops_the_workers_with_one_line_and_no_retry(tmp_path):
    pytest.importorskip("ray")
    said = finish(start_run(tmp_path / "run", "--batch_size=25"), code=2)
    last = said.splitlines()[-1]  # after the lines of Ray
    assert last.startswith("error: batch_size must be a multiple of the 2 devices")
    assert not (tmp_path / "run").exists()
