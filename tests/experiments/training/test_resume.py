"""A run that resumes after `kill -9` equals a run that was never killed."""

import numpy as np
import pytest
from once import once
from tiny_run import TINY, assert_same_runs, finish, kill_when, start

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


def run(data, folder, loss):
    words = [*ARGUMENTS, *LOSSES[loss], f"--data_dir={data}", f"--output_dir={folder}"]
    return start("experiments.run", *words)


@once
def whole(photos, folder, loss):
    finish(run(photos, folder / loss, loss))
    return folder / loss


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    return tmp_path_factory.mktemp("runs")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("loss", "epoch"),
    [
        ("ce", 3),
        ("rankmi", 1),
        pytest.param("ce", 1, marks=pytest.mark.thorough),
        pytest.param("pce", 1, marks=pytest.mark.thorough),
        pytest.param("alternating", 1, marks=pytest.mark.thorough),
        pytest.param("supcon", 1, marks=pytest.mark.thorough),
    ],
)
def test_a_killed_run_resumes_identically(photos, runs, tmp_path, loss, epoch):
    expected_run = whole(photos, runs, loss)
    killed = tmp_path / "killed"
    checkpoint = killed / "checkpoint.npz"

    def ready():
        if not checkpoint.is_file():
            return False
        with np.load(checkpoint) as saved:
            return int(saved["state_epoch"]) >= epoch

    kill_when(ready, run(photos, killed, loss), killed)
    assert "continued after epoch" in finish(run(photos, killed, loss))
    assert_same_runs(expected_run, killed)
