"""A run that resumes, also after `kill -9`, equals a run that was never stopped."""

import numpy as np
import pytest
import tiers
from tiny_run import (
    TINY,
    assert_same_runs,
    command,
    finish,
    kill_when,
    start,
    stopping_after_a_checkpoint,
)

ARGUMENTS = [
    *TINY,
    "--epochs=4",
    "--steps_per_epoch=3",
    "--eval_every=2",
    "--jitter=0.2,0.2,0.2,0.1",
    "--deterministic",
]
# Three steps per epoch, so that RankMI stops between its two alternating updates.
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


def words_of(loss, photos, folder):
    return [*ARGUMENTS, *LOSSES[loss], f"--data_dir={photos}", f"--output_dir={folder}"]


@pytest.mark.slow
def test_a_killed_run_resumes_identically(photos, tmp_path):
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    assert command(*words_of("ce", photos, whole)) == 0
    checkpoint = killed / "checkpoint.npz"

    def ready():
        if not checkpoint.is_file():
            return False
        with np.load(checkpoint) as saved:
            return int(saved["state_epoch"]) >= 3

    command_line = ["experiments.run", *words_of("ce", photos, killed)]
    kill_when(ready, start(*command_line), killed)
    assert "continued after epoch" in finish(start(*command_line))
    assert_same_runs(whole, killed)


@pytest.mark.slow
@tiers.parametrize("loss", LOSSES, ["rankmi"], pytest.mark.thorough)
def test_a_stopped_run_resumes_identically(loss, photos, tmp_path):
    whole, stopped = tmp_path / "whole", tmp_path / "stopped"
    assert command(*words_of(loss, photos, whole)) == 0
    with stopping_after_a_checkpoint():
        assert command(*words_of(loss, photos, stopped)) == 130
    assert command(*words_of(loss, photos, stopped)) == 0
    assert_same_runs(whole, stopped)
