"""Two workers on this machine train a run together: as one process would, and after `kill -9`."""

import os
import signal
import subprocess
import sys
import time

import local_workers
import numpy as np
import pytest
from tiny_run import final_weights, history

# 132 test images: no multiple of the batch size or of the workers times it.
TINY = [
    *("--dataset=glyphs", "--train_classes=20", "--test_classes=11"),
    *("--image_size=16", "--resize=18", "--crop=fixed", "--batch_size=24"),
    *("--backbone=small_convnet", "--filters=8", "--weights=none", "--frozen_batch_norm"),
    *("--embedding_size=8", "--loss=ce", "--dropout=0.5", "--optimizer=adam"),
    *("--epochs=4", "--steps_per_epoch=3", "--eval_every=2", "--eval_batch_size=7"),
    *("--recall_at=1,2", "--deterministic"),
]

pytestmark = pytest.mark.slow


def start(folder, *more):
    words = ["experiments.run", *TINY, "--strategy=multi_worker", f"--output_dir={folder}"]
    return local_workers.start(2, *words, *more)


def ended(processes):
    """Exit code, output and errors of each."""
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


def test_two_workers_train_evaluate_and_write_what_one_process_does(whole, tmp_path):
    alone = tmp_path / "alone"
    command = [sys.executable, "-m", "experiments.run", *TINY, f"--output_dir={alone}"]
    subprocess.run(command, check=True, cwd=local_workers.ROOT, capture_output=True)
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
def test_when_one_is_killed_and_both_start_again_they_end_like_the_whole_run(
    whole, tmp_path, victim
):
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
    expected, found = final_weights(whole), final_weights(folder)
    assert expected.keys() == found.keys()
    for name, array in expected.items():
        np.testing.assert_array_equal(array, found[name], err_msg=name)
    assert history(whole) == history(folder)
    np.testing.assert_array_equal(embeddings(whole), embeddings(folder))


@pytest.mark.thorough
def test_what_the_workers_do_not_agree_on_is_named_by_each(tmp_path):
    words = ["experiments.run", *TINY, "--strategy=multi_worker"]
    words += [f"--output_dir={tmp_path / 'run'}", "--seed=@index"]
    processes = local_workers.start(2, *words)
    for code, _, err in ended(processes):
        assert code == 2
        assert "error: flags must be the same on all workers" in err
    assert not (tmp_path / "run").exists()


@pytest.mark.thorough
def test_a_batch_that_the_workers_cannot_share_is_refused_by_each(tmp_path):
    for code, _, err in ended(start(tmp_path / "run", "--batch_size=25")):
        assert code == 2
        assert "batch_size must be a multiple of the 2 devices. Received: batch_size=25" in err
