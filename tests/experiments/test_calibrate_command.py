"""`experiments.calibrate`: the threshold, the page, and invalid input."""

import dataclasses
import json

import numpy as np
import pytest
from photo_search import make_index
from tiny_run import command_of

from experiments.evaluation.calibration import (
    Calibration,
    calibration_path,
    read_calibration,
    write_calibration,
)
from experiments.options.errors import UsageError
from keras_dml.export.load import fingerprint
from keras_dml.metrics import verification

command = command_of("calibrate")


def embeddings_file(path, **change):
    rng = np.random.default_rng(0)
    labels = np.repeat([f"<{i}>" for i in range(30)], 4)
    centers = np.repeat(rng.normal(size=(30, 8)), 4, axis=0)
    arrays = {"embeddings": centers + 0.5 * rng.normal(size=(120, 8)), "labels": labels, **change}
    np.savez(path, **arrays)
    return arrays


def model_folder(path):
    path.mkdir(parents=True)
    (path / "saved_model.pb").write_bytes(b"a graph")
    return path


def test_threshold_and_page_are_written_next_to_the_model(tmp_path, capsys):
    arrays = embeddings_file(tmp_path / "all.npz")
    model = model_folder(tmp_path / "model")
    given = [f"--embeddings={tmp_path / 'all.npz'}", f"--saved_model={model}"]
    assert command(*given, "--false_match_rate=0.01") == 0
    path, page = tmp_path / "model-calibration.json", tmp_path / "model-calibration.html"
    printed = capsys.readouterr().out.splitlines()
    assert printed[-2:] == [f"threshold: {path}", f"page: {page}"]
    (point,) = verification(arrays["embeddings"], arrays["labels"], [0.01]).points
    calibration = read_calibration(model, fingerprint(model), "cosine")
    assert (calibration.threshold, calibration.false_match_rate) == (point.threshold, 0.01)
    found = calibration.findings
    assert tuple(found["threshold_interval"]) == point.threshold_interval
    assert found["true_match_rate"] == point.true_match_rate
    assert 0 < found["identification"]["false_positive_identification_rate"] < 1
    assert calibration.matches(point.threshold) and not calibration.matches(point.threshold - 1e-3)
    text = page.read_text()
    assert text.count("<svg") == 2 and f"{point.threshold:.3f}" in text
    assert "http" not in text.replace("http-equiv", "").replace("http://www.w3.org", "")


def test_a_run_is_calibrated_with_its_test_embeddings(tmp_path, capsys):
    model = model_folder(tmp_path / "saved_model")
    embeddings_file(tmp_path / "test_embeddings.npz")
    (tmp_path / "flags.txt").write_text("--dataset=glyphs\n")
    assert command(f"--run={tmp_path}", "--false_match_rate=0.01", "--metric=l2") == 0
    calibration = read_calibration(model, fingerprint(model), "l2")
    assert calibration.matches(calibration.threshold)
    assert not calibration.matches(calibration.threshold * 1.01)
    assert str(tmp_path / "saved_model-calibration.json") in capsys.readouterr().out


@pytest.mark.slow
def test_the_recommended_rate_finds_half_of_the_pairs(tmp_path, capsys):
    arrays = embeddings_file(tmp_path / "all.npz")
    assert command(f"--embeddings={tmp_path / 'all.npz'}") == 0
    out = capsys.readouterr().out
    points = verification(arrays["embeddings"], arrays["labels"], [0.03, 0.01, 3e-3, 1e-3]).points
    useful = [point for point in points if point.true_match_rate_interval[0] >= 0.5]
    best = useful[-1]
    assert f"recommended: --false_match_rate={best.false_match_rate:g}, the lowest rate" in out
    assert "for no model" in out
    found = json.loads((tmp_path / "all-calibration.json").read_text())
    assert found["threshold"] == best.threshold and found["fingerprint"] is None
    noise = np.random.default_rng(0).normal(size=(120, 8))
    embeddings_file(tmp_path / "noise.npz", embeddings=noise)
    assert command(f"--embeddings={tmp_path / 'noise.npz'}") == 0
    assert "no rate is useful: with --false_match_rate=0.03, only" in capsys.readouterr().out


@pytest.mark.slow
def test_an_index_is_calibrated_with_its_classes(tmp_path):
    names = [f"{label}/{number}.png" for label in range(12) for number in range(2)]
    index = make_index(tmp_path, names)
    assert command(f"--index={index}") == 0
    model = tmp_path / "model"
    found = read_calibration(model, fingerprint(model), "cosine")
    assert found.findings["classes"] == 12 and found.findings["positive_pairs"] == 12


def test_a_calibration_of_another_model_or_metric_is_refused(tmp_path):
    model = model_folder(tmp_path / "model")
    path = calibration_path(model)
    assert read_calibration(model, "a", "cosine") is None
    calibration = Calibration("cosine", 0.5, 1e-3, "a")
    write_calibration(path, calibration)
    assert read_calibration(model, "a", "cosine") == calibration
    of_no_model = dataclasses.replace(calibration, fingerprint=None)
    for written, of_model, metric, message in [
        (calibration, "b", "cosine", "belongs to another model than"),
        (of_no_model, "a", "cosine", "belongs to another model than"),
        (calibration, "a", "l2", "metric=l2, but got metric=cosine"),
    ]:
        write_calibration(path, written)
        with pytest.raises(UsageError, match=message):
            read_calibration(model, of_model, metric)
    for text in ("", "{}", "[]", path.read_text().replace("0.5", "0.6"), '{"metric": "cosine"}'):
        path.write_text(text)
        with pytest.raises(UsageError, match=r"is damaged.*\. Delete it"):
            read_calibration(model, "a", "cosine")
