"""Losses that are tracked and not trained, and the gap of Proposition 1."""

from types import SimpleNamespace

import numpy as np
import pytest
import tiers
from tiny_run import assert_same_weights, finished_run, history

from experiments.evaluation.figures import Curves, accuracy_difference, tracked_figures
from experiments.evaluation.measurement import log_row
from experiments.training.objectives.tracked_losses import TrackedLosses, proposition_1
from keras_dml import losses


def test_the_identity_of_proposition_1_holds():
    rng = np.random.default_rng(0)
    for scale in (0.0, 0.1, 3.0):
        z, labels = rng.normal(size=(60, 3)), np.arange(60) % 4
        found = proposition_1(z, labels, scale * rng.normal(size=(4, 3)))
        rest = found["ce"] - found["pce"] - (found["a1"] - found["a2"] - found["b"])
        largest = max(abs(value) for value in found.values())
        assert abs(rest) < 1e-9 * largest and found["b"] > -1e-9 * largest


def test_fewer_rows_than_dimensions_have_no_pairwise_cross_entropy():
    rng = np.random.default_rng(0)
    z, theta = rng.normal(size=(4, 6)), rng.normal(size=(2, 6))
    found = proposition_1(z, np.array([0, 0, 1, 1]), theta)
    assert found.keys() == {"ce", "lambda"} and found["lambda"] == 0
    flat = np.pad(rng.normal(size=(60, 3)), ((0, 0), (0, 1)))
    assert proposition_1(flat, np.arange(60) % 2, theta[:, :4])["lambda"] == 0


def test_tracked_values_equal_the_losses_on_the_first_batches():
    labels = np.arange(40) % 4
    rows = [(np.arange(12) + 7 * step) % 40 for step in range(8)]
    data = SimpleNamespace(train=SimpleNamespace(labels=labels))
    run = SimpleNamespace(data=data, sampler=rows.__getitem__)
    z = np.random.default_rng(0).normal(size=(40, 5)).astype("float32")
    evaluator = TrackedLosses(["ce", "contrastive"], ["contrastive/margin=0.5"], False)
    found = log_row(evaluator.measure(run, None, {"training": z}))
    assert found.keys() == {
        "track/contrastive", "track/contrastive_tightness", "track/contrastive_contrastive",
    }  # fmt: skip
    loss = losses.ContrastiveLoss(margin=0.5)
    expected = np.mean([float(loss(labels[each], z[each])) for each in rows])
    assert found["track/contrastive"] == pytest.approx(expected, rel=1e-5)


def test_figures_of_tracked_losses():
    rows = [
        {"epoch": e, "track/spce": 1.0, "track/spce_tightness": 0.5, "track/gap_ce": 2.0,
         "track/gap_pce": 3.0, "track/gap_lambda": 0.01}
        for e in (1, 2)
    ]  # fmt: skip
    found = tracked_figures({"mine": rows})
    assert list(found["Losses on fixed training batches"].lines) == ["spce mine"]
    gap = found["Gap of Proposition 1"]
    assert isinstance(gap, Curves) and gap.lines["CE − PCE mine"] == [(1, -1.0), (2, -1.0)]
    assert gap.levels == {"0": 0.0}
    assert tracked_figures({"mine": [{"epoch": 1}]}) == {}


@tiers.thorough
def test_weights_with_and_without_tracking_are_equal_to_the_bit(photos, tmp_path):
    words = ["--loss=ce", "--class_split=within_classes"]
    plain = finished_run(tmp_path / "plain", photos, *words)
    tracked = finished_run(tmp_path / "tracked", photos, *words, "--track=spce,pce,ce,contrastive")
    assert_same_weights(plain, tracked)
    for row in history(tracked):
        for name in ("spce", "pce", "ce", "contrastive"):
            total = row[f"track/{name}_tightness"] + row[f"track/{name}_contrastive"]
            assert row[f"track/{name}"] == pytest.approx(total)
        assert "track/gap_lambda" in row
    assert "Losses on fixed training batches" in (tracked / "report.html").read_text()


def test_the_largest_difference_of_two_accuracy_curves():
    first = [{"epoch": e, "test/accuracy": a} for e, a in ((1, 0.5), (2, 0.9))]
    second = [{"epoch": e, "test/accuracy": a} for e, a in ((1, 0.25), (2, 0.85), (3, 0.9))]
    said = accuracy_difference({"a": first, "b": second})
    assert said.startswith("accuracy curves: largest difference 25.0 points (epoch 1), 5.0 at")
    assert accuracy_difference({"a": first}) == accuracy_difference({"a": first, "b": []}) == ""
