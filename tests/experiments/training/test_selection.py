"""The epoch whose model a run keeps, and the early end of a training."""

import json
import re
from types import SimpleNamespace

import keras
import local_workers
import numpy as np
import pytest
from tiny_run import TINY, TINY_GLYPHS, command, finished_run, history

from experiments.evaluation.evaluators import RetrievalScores
from experiments.evaluation.scores import ACCURACY, MAP_AT_R
from experiments.evaluation.scores import RECALL_AT_1 as RECALL
from experiments.options import RunOptions, UsageError, parse
from experiments.training import refit
from experiments.training.plan import check_validated, describe
from experiments.training.run_files import read_finished
from experiments.training.selection import (
    check_selection,
    epochs_of_all_classes,
    is_over,
    kept,
    kept_by,
    kept_in_words,
    stopped,
    waited,
)
from pipelines import ImageTable, Split

FOLD = "--fold=1/4"
PATIENT = ["--fold=1/2", "--schedule=constant", "--batch_size=4", "--steps_per_epoch=2"]


def options(*words):
    return parse(RunOptions, ["run", *words])


@pytest.mark.parametrize(
    ("words", "rule", "epoch", "why"),
    [
        ([], "last", 3, "the last"),
        ([FOLD], "best_fold", 2, "the best by R@1 on fold 1/4"),
        (["--keep=last"], "last", 3, "the last"),
        ([FOLD, "--keep=last"], "last", 3, "the last"),
        (["--keep=best_test"], "best_test", 2, "the best by R@1 on the test images"),
        # A run on a fold reads no test images.
        ([FOLD, "--keep=best_test"], "best_fold", 2, "the best by R@1 on fold 1/4"),
        ([FOLD, "--keep=best_fold"], "best_fold", 2, "the best by R@1 on fold 1/4"),
    ],
)
def test_the_default_is_the_last_epoch_or_the_best_on_a_fold(words, rule, epoch, why):
    log = [{"epoch": number, RECALL: value} for number, value in ((1, 0.5), (2, 0.7), (3, 0.6))]
    given = options(*words)
    check_selection(given)
    assert kept_by(given) == rule
    row = kept(log, given)
    assert row["epoch"] == epoch
    assert kept_in_words(row, given) == why


def test_the_best_epoch_is_chosen_by_the_watched_score():
    given = options(FOLD, "--patience=2")
    log = [{"epoch": 1, RECALL: 0.9, MAP_AT_R: 0.1}, {"epoch": 2, RECALL: 0.1, MAP_AT_R: 0.2}]
    assert kept(log, given)["epoch"] == 2
    assert kept_in_words(log[0], given) == "the best by MAP@R on fold 1/4"
    row = {"epoch": 1, RECALL: 0.9, ACCURACY: 0.5}
    said = kept_in_words(row, options("--keep=best_test"))
    assert said == "the best by accuracy on the test images"


@pytest.mark.slow
def test_files_and_pages_belong_to_the_kept_epoch(photos, tmp_path, monkeypatch):
    scores = iter([0.9, 0.1])  # the first epoch is better
    monkeypatch.setattr(RetrievalScores, "measure", lambda *_: [(RECALL, next(scores))])
    folder = finished_run(tmp_path / "run", photos, "--keep=best_test")
    result = json.loads((folder / "result.json").read_text())
    assert (result["best_epoch"], result["keep"]) == (1, "best_test")
    said = "kept from epoch 1, the best by R@1 on the test images"
    assert result["table"].endswith(f"\n{said}")
    assert f"R@1, cosine, {said}</span>" in (folder / "report.html").read_text()
    assert said in (folder / "model_card.md").read_text()
    best, last = (
        keras.saving.load_model(folder / name, compile=False).get_weights()
        for name in ("best.keras", "last.keras")
    )
    assert any((one != other).any() for one, other in zip(best, last, strict=True))


def rows(*scores):
    return [
        {"epoch": number, MAP_AT_R: value, RECALL: 1 - value}
        for number, value in enumerate(scores, 1)
    ]


@pytest.mark.parametrize(
    ("scores", "evaluations"),
    [
        ((), 0),
        ((0.3,), 0),
        ((0.3, 0.4, 0.5), 0),
        ((0.3, 0.5, 0.4), 1),
        ((0.3, 0.5, 0.5, 0.5), 2),  # an equal score is not a gain
        ((0.5, 0.3, 0.4, 0.45), 3),  # rising, but not above the best
        ((0.5, 0.3, 0.51), 0),
    ],
)
def test_number_of_evaluations_without_a_gain(scores, evaluations):
    log = rows(*scores)
    assert waited(log, options(FOLD)) == evaluations
    for patience in range(1, 5):
        assert is_over(log, options(FOLD, f"--patience={patience}")) == (evaluations >= patience)
    assert not is_over(log, options(FOLD))  # the default has no early stopping


def test_head_epochs_do_not_count():
    given = options(FOLD, "--head_epochs=4", "--patience=2")
    assert waited(rows(0.5, 0.4, 0.3, 0.2), given) == 0
    assert not is_over(rows(0.5, 0.4, 0.3, 0.2, 0.1), given)
    assert is_over(rows(0.5, 0.4, 0.3, 0.2, 0.1, 0.1), given)


def test_messages_of_early_stopping():
    given = options(FOLD, "--patience=2", "--epochs=9")
    assert stopped(rows(0.3, 0.5, 0.4, 0.45), given) == (
        "after epoch 4 of 9: in 2 evaluations MAP@R on fold 1/4 has not risen above the 50.0 % of "
        "epoch 2"
    )
    assert stopped(rows(0.3, 0.5, 0.4), given) == ""
    # The run ends after this epoch in any case.
    assert stopped(rows(0.3, 0.5, 0.4, 0.45), options(FOLD, "--patience=2", "--epochs=4")) == ""
    run = SimpleNamespace(
        data=split([0, 0, 1, 1]), options=given, steps_per_epoch=7, paper={}, gallery=None
    )
    model = SimpleNamespace(count_params=lambda: 7)
    said = describe(run, model, SimpleNamespace(epoch=0))
    assert "9 epochs of 7 steps, or until MAP@R has not risen in 2 evaluations" in said


def test_epochs_of_a_run_on_all_classes():
    assert epochs_of_all_classes([3, 4, 8, 6], None) == 5
    assert epochs_of_all_classes([1], 2) == 3  # the backbone trains for at least one epoch


def split(labels):
    table = ImageTable(np.array(labels), ("a", "b"), arrays=np.zeros((len(labels), 8, 8, 3), "u1"))
    return Split(table, table)


def test_a_fold_of_single_images_has_no_score_to_watch():
    check_validated(options(FOLD, "--patience=2"), split([0, 0, 1]))
    check_validated(options(FOLD), split([0, 1]))
    with pytest.raises(UsageError, match="patience must be 0 for fold=1/4"):
        check_validated(options(FOLD, "--patience=2"), split([0, 1]))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--patience=0", "--keep=best_fold"], "keep must be last or best_test without --fold"),
        (["--fold=1/2"], "schedule must be constant or step with --patience.*warm_cosine"),
        (["--fold=1/2", "--patience=-1"], "patience"),
    ],
)
def test_invalid_patience(words, message, tmp_path, capsys):
    given = [*TINY, "--patience=2", *words, f"--output_dir={tmp_path / 'run'}"]
    assert command(*given) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert re.search(message, line)
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
@pytest.mark.thorough
def test_a_run_stops_early_and_stays_stopped(photos, tmp_path, capfd, monkeypatch):
    monkeypatch.setattr(refit, "run_module", lambda _, *words, **more: command(*words))
    folder = tmp_path / "run"
    # A learning rate of 0, so no evaluation has a gain after the first.
    words = [*TINY, *PATIENT, "--learning_rate=0", "--epochs=50", "--patience=2"]
    words += [f"--data_dir={photos}", f"--output_dir={folder}"]
    assert command(*words) == 0
    said = capfd.readouterr().out
    why = "after epoch 3 of 50: in 2 evaluations MAP@R on fold 1/2 has not risen above the"
    assert "50 epochs of 2 steps, or until MAP@R has not risen in 2 evaluations" in said
    assert f"stopped {why}" in said
    log = history(folder)
    assert [row["epoch"] for row in log] == [1, 2, 3]
    assert [row["test/evaluations_without_gain"] for row in log] == [0, 1, 2]
    result, _ = read_finished(folder)
    assert result["best_epoch"] == 1
    assert result["stopped"]["after_epoch"] == 3 and result["stopped"]["why"].startswith(why)
    assert result["scores"]["map@r/cosine"] == pytest.approx(log[0][MAP_AT_R], abs=1e-6)
    page = (folder / "report.html").read_text()
    assert f"<dt>Stopped</dt><dd>{why}" in page and "MAP@R on the validated classes" in page
    assert "Fold</dt><dd>1/2 of the training classes" in page and "on the test images" not in page

    # A run that is killed after its last checkpoint resumes without further training.
    (folder / "result.json").unlink()
    assert command(*words) == 0
    assert f"stopped {why}" in capfd.readouterr().out
    assert [row["epoch"] for row in history(folder)] == [1, 2, 3]
    again, _ = read_finished(folder)
    assert again["scores"] == result["scores"]

    # The refit trains as many epochs as the kept model.
    assert command(*words, "--refit") == 0
    assert "again on every class, with its best 1 epochs of 2 steps" in capfd.readouterr().out
    assert [row["step"] for row in history(folder / "refit")] == [2]


@pytest.mark.slow
@pytest.mark.thorough
def test_workers_stop_together(tmp_path):
    folder = tmp_path / "run"
    words = [*TINY_GLYPHS, "--fold=1/2", "--epochs=30", "--patience=2", "--steps_per_epoch=2"]
    words += ["--schedule=constant", "--learning_rate=0"]
    words += ["--strategy=multi_worker", f"--output_dir={folder}"]
    first, second = local_workers.finish(local_workers.start(2, "experiments.run", *words))
    assert "stopped after epoch 3 of 30" in first and second == ""
    assert [row["epoch"] for row in history(folder)] == [1, 2, 3]
