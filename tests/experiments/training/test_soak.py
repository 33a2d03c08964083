"""A long run: no memory more with every evaluation."""

import pytest
from memory import kept_kilobytes, lasting_growth
from tiny_run import TINY, command

from experiments.training.callbacks import EvaluateAndSave

EVALUATIONS = 200
MOST_KILOBYTES = 25  # more with each evaluation; of megabytes that come and go the least is taken


@pytest.mark.slow
@pytest.mark.thorough
def test_many_evaluations(photos, tmp_path, monkeypatch, capsys):
    held = []

    def on_epoch_end(self, epoch, logs=None):
        original(self, epoch, logs)
        held.append(kept_kilobytes())

    original = EvaluateAndSave.on_epoch_end
    monkeypatch.setattr(EvaluateAndSave, "on_epoch_end", on_epoch_end)
    arguments = [f"--data_dir={photos}", f"--output_dir={tmp_path / 'run'}"]
    assert command(*TINY, *arguments, f"--epochs={EVALUATIONS}", "--steps_per_epoch=1") == 0
    with capsys.disabled():
        print(f"\n{len(held)} evaluations: {lasting_growth(held):.1f} kB more with each")
        print(f"{held[len(held) // 2]:,} kB after half of them, {held[-1]:,} kB at the end")
    assert len(held) == EVALUATIONS and lasting_growth(held) < MOST_KILOBYTES
