"""A long run: no memory more with every evaluation."""

import os

import numpy as np
import pytest
from memory import kept_kilobytes, lasting_growth
from tiny_run import TINY, command

from experiments.training.callbacks import EvaluateAndSave

EVALUATIONS = 200
MOST_KILOBYTES = 25  # more with each evaluation; of megabytes that come and go the least is taken


@pytest.mark.parametrize("leak", [0, 79])
def test_a_leak_is_seen_amid_what_comes_and_goes(leak):
    rng = np.random.default_rng(0)
    # A cache that is emptied once, megabytes that come and go, and the leak.
    held = 450_000 + 300_000 * (np.arange(EVALUATIONS) < 90) + rng.integers(0, 11_000, EVALUATIONS)
    grown = lasting_growth(held + leak * np.arange(EVALUATIONS))
    assert grown == pytest.approx(leak, abs=15)
    assert (grown < MOST_KILOBYTES) == (leak == 0)


@pytest.mark.slow
@pytest.mark.thorough
@pytest.mark.parametrize("leak", [0, 79])
def test_many_evaluations(leak, photos, tmp_path, monkeypatch, capsys):
    held, leaked = [], []

    def on_epoch_end(self, epoch, logs=None):
        original(self, epoch, logs)
        leaked.append(bytearray(os.urandom(leak * 1024)))
        held.append(kept_kilobytes())

    original = EvaluateAndSave.on_epoch_end
    monkeypatch.setattr(EvaluateAndSave, "on_epoch_end", on_epoch_end)
    arguments = [f"--data_dir={photos}", f"--output_dir={tmp_path / 'run'}"]
    assert command(*TINY, *arguments, f"--epochs={EVALUATIONS}", "--steps_per_epoch=1") == 0
    grown = lasting_growth(held)
    with capsys.disabled():
        print(f"\n{len(held)} evaluations, {leak} kB kept of each: {grown:.1f} kB more with each")
        print(f"{held[len(held) // 2]:,} kB after half of them, {held[-1]:,} kB at the end")
    assert len(held) == EVALUATIONS
    assert (grown < MOST_KILOBYTES) == (leak == 0)
