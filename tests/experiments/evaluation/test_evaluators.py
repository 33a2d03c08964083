"""Evaluators: their scores after an epoch and their findings at the end."""

from types import SimpleNamespace

import keras
import numpy as np
import pytest
from retrieval_sets import needs_scann

from experiments.evaluation.baselines import RawPixels, UntrainedBackbone
from experiments.evaluation.evaluators import (
    ClassifierAccuracy,
    ClassMeanAccuracy,
    Finished,
    InformationScores,
    MeanDistance,
    RetrievalScores,
    Start,
)
from experiments.evaluation.measurement import RAW_PIXELS as RAW
from experiments.evaluation.measurement import log_row
from experiments.evaluation.result import RAW_PIXELS_FILE as RAW_PIXELS
from experiments.evaluation.result import UNTRAINED_FILE as UNTRAINED
from experiments.evaluation.result import Findings
from experiments.evaluation.scores import ACCURACY, MAP_AT_R
from experiments.training.run_folder import RunFolder
from keras_dml import metrics
from pipelines import ImageTable, Split


def table(labels, seed=0):
    images = np.random.default_rng(seed).integers(0, 256, (len(labels), 8, 8, 3), dtype=np.uint8)
    return ImageTable(np.array(labels), ("a", "b"), arrays=images)


@pytest.fixture
def closed():
    """Training and test data of the same two classes, and a classifier that swaps them."""
    data = Split(table([0, 0, 1, 1]), table([0, 0, 1, 1], seed=1), same_classes=True)
    embedding = keras.Input((2,), name="embeddings")
    logits = keras.layers.Dense(2, use_bias=False, name="logits")
    model = keras.Model(embedding, logits(embedding))
    logits.kernel.assign([[0.0, 1.0], [1.0, 0.0]])
    embeddings = np.array([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0], [1.0, 0.5]], "float32")
    return data, model, {"test": embeddings, "training": embeddings}


def test_accuracy_of_the_classifier_or_of_the_nearest_class_mean(closed):
    data, model, embeddings = closed
    run = SimpleNamespace(data=data)
    assert log_row(ClassifierAccuracy().measure(run, model, embeddings)) == {ACCURACY: 0.25}
    assert log_row(ClassMeanAccuracy().measure(run, None, embeddings)) == {ACCURACY: 0.75}
    assert not ClassifierAccuracy().sides(data)
    assert ClassMeanAccuracy().sides(data) == ("training",)


def test_unseen_classes_have_no_accuracy():
    run = SimpleNamespace(data=Split(table([0, 0, 1, 1]), table([0, 0, 1, 1], seed=1)))
    for evaluator in (ClassifierAccuracy(), ClassMeanAccuracy()):
        assert list(evaluator.measure(run, None, {})) == []
        assert not evaluator.sides(run.data)
    assert ClassMeanAccuracy().finish(run, Finished(None, {}, [], {"epoch": 1})) == Findings()
    findings = ClassifierAccuracy().finish(run, Finished(None, {}, [], {ACCURACY: 0.875}))
    assert findings.printed == ["accuracy on the training classes: 87.5 %"]
    assert findings.result == {"accuracy": 0.875}


def run_on(data, ks=(1, 2), **options):
    options = {"patience": 0, "neighbors": "auto", "raw_pixels": False, "eval_batch_size": 2,
               **options}  # fmt: skip
    return SimpleNamespace(data=data, ks=ks, options=SimpleNamespace(**options))


def test_scores_equal_metrics_evaluate_with_and_without_a_gallery():
    rng = np.random.default_rng(0)
    queries, items = rng.normal(size=(6, 3)), rng.normal(size=(8, 3))
    labels, numbers = [0, 1] * 3, [0, 1] * 4
    for gallery, patience in ((None, 0), (table(numbers, seed=2), 3)):
        data = Split(table([0, 1]), table(labels), gallery=gallery)
        run = run_on(data, patience=patience)
        embeddings = {"test": queries} if gallery is None else {"test": queries, "gallery": items}
        assert set(RetrievalScores().sides(data)) == set(embeddings)
        others = {} if gallery is None else {"gallery": items, "gallery_labels": numbers}
        expected = metrics.evaluate(queries, labels, [1, 2], **others)
        row = log_row(RetrievalScores().measure(run, None, embeddings))
        names = {f"test/recall@{k}/{name}" for k in (1, 2) for name in ("cosine", "l2")}
        assert set(row) == names | ({MAP_AT_R} if patience else set())
        for name, share in row.items():
            assert share == pytest.approx(expected[name.removeprefix("test/")])
        findings = RetrievalScores().finish(run, Finished(None, embeddings, [row], row))
        found = log_row(findings.measurements)
        assert found["test/recall@2/l2"] == row["test/recall@2/l2"]
        for name in ("map@r/cosine", "nmi"):
            assert found[f"test/{name}"] == pytest.approx(expected[name])
        assert findings.lines[0][0] == "NMI"


@needs_scann
def test_scores_by_scann_have_certificates_after_each_epoch_and_at_the_end():
    rng = np.random.default_rng(0)
    data = Split(table([0, 1]), table([0, 1] * 3), catalog=table([1, 0], seed=2))
    run = run_on(data, neighbors="scann")
    embeddings = {"test": rng.normal(size=(6, 3)), "catalog": rng.normal(size=(2, 3))}
    row = log_row(RetrievalScores([2]).measure(run, None, embeddings))
    for key in ("recall@1/cosine", "recall@2/l2/first 2", "map@r/cosine"):
        low, exact, high = (row[f"test/{key}/{name}"]
                            for name in ("exact_low", "exact", "exact_high"))  # fmt: skip
        assert low < exact < high or exact in (0, 1)
    findings = RetrievalScores([2]).finish(run, Finished(None, embeddings, [row], row))
    assert "recall@1/cosine/photo to catalog/exact_low" in findings.result["certificates"]


def test_nearly_equal_embeddings_in_three_evaluations_warn_once(caplog):
    rng, run = np.random.default_rng(0), run_on(Split(table([0, 1]), table([0, 1] * 3)))
    run.folder = SimpleNamespace(history=[{"epoch": 1}])  # of an earlier version
    spread, equal = rng.normal(size=(2, 6, 3)) + np.array([0, 1e3])[:, None, None]
    for embeddings, warned in zip([spread, *[equal] * 4, spread], (0, 0, 0, 1, 1, 1)):
        row = log_row(MeanDistance().measure(run, None, {"test": embeddings}))
        run.folder.history.append(row)
        assert sum("embeddings are nearly equal" in text for text in caplog.messages) == warned
    distances = [row["test/mean_distance/cosine"] for row in run.folder.history[1:]]
    assert distances[0] > 0.5 and 0 < distances[1] < 0.01


def test_raw_pixels_are_scored_once_if_the_flag_is_set(tmp_path, capsys):
    folder = RunFolder(tmp_path / "run", "--seed=0\n").open()
    run = run_on(Split(table([0, 1]), table([0, 1] * 3, seed=3)), [1])
    run.folder = folder
    RawPixels().before(run, Start(0, None))
    assert RawPixels().finish(run, None) == Findings()
    assert not folder.file(RAW_PIXELS).exists()
    folder.write_json(RAW_PIXELS, {"cosine": {"recall@1": 0.5}})  # by the run before a resume
    run.options.raw_pixels = True
    RawPixels().before(run, Start(0, None))
    assert "R@1 50.0 %" in capsys.readouterr().out
    folder.file(RAW_PIXELS).unlink()
    pixels = RawPixels()
    pixels.before(run, Start(0, None))
    assert pixels.measure(run, None, {}) == [] and folder.file(RAW_PIXELS).exists()
    assert "raw pixels, cosine: R@1" in capsys.readouterr().out
    findings = pixels.finish(run, None)
    assert {each.row for each in findings.measurements} == {f"{RAW}, cosine", f"{RAW}, l2"}
    killed = RawPixels()  # before its first evaluation
    folder.file(RAW_PIXELS).unlink()
    killed.before(run, Start(0, None))
    assert killed.finish(run, None) == findings


def test_information_of_the_last_epoch_is_computed_once(monkeypatch):
    rng, calls = np.random.default_rng(0), []
    compute = metrics.information
    monkeypatch.setattr(metrics, "information", lambda *given: calls.append(1) or compute(*given))
    run, embeddings = run_on(Split(table([0, 1]), table([0, 1] * 4))), rng.normal(size=(8, 3))
    evaluator = InformationScores()
    row = log_row(evaluator.measure(run, None, {"test": embeddings}))
    assert len(calls) == 1 and "test/information_generative/l2" not in row
    end = Finished(None, {"test": embeddings.copy()}, [row], row)
    found = log_row(evaluator.finish(run, end).measurements)
    assert len(calls) == 1 and row.items() <= found.items()
    assert "test/information_generative/l2" in found
    assert found == log_row(InformationScores().finish(run, end).measurements)
    end = Finished(None, {"test": rng.normal(size=(8, 3))}, [row], row)
    before = len(calls)
    other = log_row(evaluator.finish(run, end).measurements)
    assert len(calls) == before + 1 and other != found


def test_a_resumed_run_shows_the_scores_before_its_first_step(tmp_path):
    rng = np.random.default_rng(0)
    data = Split(table([0, 1]), table([0, 1] * 3, seed=3), catalog=table([1, 0], seed=2))
    run = run_on(data, weights="imagenet")
    run.folder = RunFolder(tmp_path / "run", "--seed=0\n").open()
    embeddings = {"test": rng.normal(size=(6, 3)), "catalog": rng.normal(size=(2, 3))}
    first, continued = UntrainedBackbone(), UntrainedBackbone()
    first.before(run, Start(0, None, lambda: embeddings))
    continued.before(run, Start(3, None, lambda: pytest.fail("it is trained now")))
    assert continued.finish(run, None) == first.finish(run, None)
    # A run of an earlier version lacks the file.
    run.folder.file(UNTRAINED).unlink()
    old = UntrainedBackbone()
    old.before(run, Start(3, None, lambda: pytest.fail("it is trained now")))
    assert old.finish(run, None) == Findings()
