"""Two workers on this machine give the result of one process, also after `kill -9`."""

import os
import signal
import time

import local_workers
import numpy as np
import pytest
from tiny_run import TINY_GLYPHS, assert_same_runs, command, final_weights, history

TINY = [*TINY_GLYPHS, "--dropout=0.5", "--optimizer=adam", "--deterministic"]
TINY += ["--epochs=4", "--steps_per_epoch=3", "--eval_every=2"]

pytestmark = pytest.mark.slow


def start(folder, *more):
    words = ["experiments.run", *TINY, "--strategy=multi_worker", f"--output_dir={folder}"]
    return local_workers.start(2, *words, *more)


def ended(processes):
    """Wait for processes. Return the exit code, stdout, and stderr of each process."""
    outputs = [process.communicate(timeout=300) for process in processes]
    return [(process.returncode, *output) for process, output in zip(processes, outputs)]


def embeddings(folder):
    with np.load(folder / "test_embeddings.npz") as saved:
        return saved["embeddings"]


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "whole"
    first, second = local_workers.finish(start(folder))
    assert "report.html" in first
    assert second == ""
    return folder


def test_two_workers_give_the_result_of_one_process(whole, tmp_path):
    alone = tmp_path / "alone"
    assert command(*TINY, f"--output_dir={alone}") == 0
    expected, found = final_weights(alone), final_weights(whole)
    for name, array in expected.items():
        largest = max(np.abs(array).max(), 1e-3)
        np.testing.assert_allclose(found[name], array, atol=1e-5 * largest, err_msg=name)
    assert embeddings(whole).shape == (132, 8)
    np.testing.assert_allclose(embeddings(whole), embeddings(alone), rtol=1e-4, atol=1e-5)
    for ours, theirs in zip(history(whole), history(alone)):
        assert ours["train/loss"] == pytest.approx(theirs["train/loss"], rel=1e-5)
    kept = [{path.name for path in folder.iterdir()} for folder in (whole, alone)]
    assert kept[0] == kept[1]


@pytest.mark.thorough
@pytest.mark.parametrize("victim", [0, 1])
def test_a_run_resumes_identically_after_a_worker_is_killed(whole, tmp_path, victim):
    folder = tmp_path / "killed"
    processes = start(folder)
    deadline = time.monotonic() + 300
    while not (folder / "checkpoint.npz").is_file() and time.monotonic() < deadline:
        time.sleep(0.001)
    os.kill(processes[victim].pid, signal.SIGKILL)
    code, _, err = ended(processes)[1 - victim]
    assert code == 1
    assert "stopped: another worker is gone" in err
    assert "Traceback" not in err
    assert not (folder / "result.json").exists(), "killed too late to show anything"

    first, _ = local_workers.finish(start(folder))
    assert "continued after epoch" in first
    assert_same_runs(whole, folder)


@pytest.mark.thorough
def test_each_worker_names_flags_that_differ(tmp_path):
    words = ["experiments.run", *TINY, "--strategy=multi_worker"]
    words += [f"--output_dir={tmp_path / 'run'}", "--seed=@index"]
    processes = local_workers.start(2, *words)
    for code, _, err in ended(processes):
        assert code == 2
        assert "error: flags must be the same on all workers" in err
    assert not (tmp_path / "run").exists()
