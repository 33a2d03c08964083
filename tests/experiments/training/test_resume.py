"""A run that resumes after `kill -9` equals a run that was never killed."""

import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
from once import once
from tiny_run import TINY, final_weights, history

ARGUMENTS = [
    *TINY,
    "--epochs=4",
    "--steps_per_epoch=3",
    "--eval_every=2",
    "--jitter=0.2,0.2,0.2,0.1",
    "--deterministic",
]
# Three steps per epoch, so that RankMI is killed between its two alternating updates.
LOSSES = {
    "ce": [
        *("--loss=ce", "--dropout=0.5", "--optimizer=sgd"),
        *("--momentum=0.9", "--nesterov", "--velocity=torch"),
    ],
    "rankmi": ["--loss=rankmi", "--optimizer=adam"],
    "pce": ["--loss=pce", "--classifier", "--classifier_factor=10"],
    "alternating": ["--loss=ce", "--label_smoothing=0", "--objective=alternating"],
    # The memory starts in step 3 of 12 and overwrites its oldest rows from step 5.
    "supcon": ["--loss=supcon", "--memory_size=20", "--memory_start_step=2"],
}


def start(data, folder, loss):
    command = [sys.executable, "-m", "experiments.run", *ARGUMENTS, *LOSSES[loss]]
    command += [f"--data_dir={data}", f"--output_dir={folder}"]
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=os.environ
    )


def finish(process):
    try:
        output, _ = process.communicate(timeout=300)
    finally:
        process.kill()
    assert process.returncode == 0, output
    return output


@once
def whole(photos, folder, loss):
    finish(start(photos, folder / loss, loss))
    return folder / loss


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    return tmp_path_factory.mktemp("runs")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("loss", "epoch"),
    [
        ("ce", 1),
        pytest.param("ce", 3, marks=pytest.mark.slow),
        pytest.param("rankmi", 1, marks=pytest.mark.slow),
        pytest.param("pce", 1, marks=pytest.mark.thorough),
        pytest.param("alternating", 1, marks=pytest.mark.thorough),
        pytest.param("supcon", 1, marks=pytest.mark.thorough),
    ],
)
def test_a_killed_run_resumes_identically(photos, runs, tmp_path, loss, epoch):
    expected_run = whole(photos, runs, loss)
    killed = tmp_path / "killed"
    process = start(photos, killed, loss)
    checkpoint = killed / "checkpoint.npz"
    deadline = time.monotonic() + 300
    seen = 0
    while seen < epoch and time.monotonic() < deadline and process.poll() is None:
        time.sleep(0.001)
        if checkpoint.is_file():
            with np.load(checkpoint) as saved:
                seen = int(saved["state_epoch"])
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()
    assert seen >= epoch
    assert not (killed / "result.json").exists(), "killed too late to show anything"

    assert "continued after epoch" in finish(start(photos, killed, loss))
    expected, found = final_weights(expected_run), final_weights(killed)
    assert expected.keys() == found.keys()
    for name, array in expected.items():
        np.testing.assert_array_equal(array, found[name], err_msg=name)
    assert history(expected_run) == history(killed)
    saved = [
        np.load(folder / "test_embeddings.npz")["embeddings"] for folder in (expected_run, killed)
    ]
    np.testing.assert_array_equal(*saved)
