"""The epoch whose model a run keeps, the early end of a training, and the refit on all classes."""

import json
from unittest import mock

import keras
import local_workers
import numpy as np
import pytest
import tiers
from tiny_run import (
    TINY,
    TINY_GLYPHS,
    assert_same_weights,
    command,
    command_of,
    finish,
    finished_run,
    history,
    kill_when,
    start,
)
from tiny_run import run_options as options

from experiments.evaluation.evaluators import RetrievalScores
from experiments.evaluation.measurement import Measurement
from experiments.evaluation.scores import ACCURACY, MAP_AT_R
from experiments.evaluation.scores import RECALL_AT_1 as RECALL
from experiments.options import UsageError
from experiments.training import refit, selection
from experiments.training.plan import check_validated
from experiments.training.run_files import read_finished
from experiments.training.run_folder import RunFolder
from pipelines import ImageTable, Split

FOLD = "--fold=1/4"


@pytest.mark.parametrize(
    ("words", "rule", "epoch", "why"),
    [
        ([], "last", 3, "the last"),
        ([FOLD], "best_fold", 2, "the best by R@1 on fold 1/4"),
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
    selection.check_selection(given)
    assert selection.kept_by(given) == rule
    row = selection.kept(log, given)
    assert row["epoch"] == epoch
    assert selection.kept_in_words(row, given) == why


def test_the_best_epoch_is_chosen_by_the_watched_score():
    given = options(FOLD, "--patience=2")
    log = [{"epoch": 1, RECALL: 0.9, MAP_AT_R: 0.1}, {"epoch": 2, RECALL: 0.1, MAP_AT_R: 0.2}]
    assert selection.kept(log, given)["epoch"] == 2
    assert selection.kept_in_words(log[0], given) == "the best by MAP@R on fold 1/4"
    row = {"epoch": 1, RECALL: 0.9, ACCURACY: 0.5}
    said = selection.kept_in_words(row, options("--keep=best_test"))
    assert said == "the best by accuracy on the test images"


@pytest.mark.slow
def test_files_and_pages_belong_to_the_kept_epoch(photos, tmp_path, monkeypatch):
    scores = iter([0.9, 0.1])  # the first epoch is better

    def measure(*_):
        return [Measurement("recall", next(scores), k=1, distance="cosine")]

    monkeypatch.setattr(RetrievalScores, "measure", measure)
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
        ((0.3, 0.5, 0.4), 1),
        ((0.3, 0.5, 0.5, 0.5), 2),  # an equal score is not a gain
        ((0.5, 0.3, 0.4, 0.45), 3),  # rising, but not above the best
        ((0.5, 0.3, 0.51), 0),
    ],
)
def test_number_of_evaluations_without_a_gain(scores, evaluations):
    log = rows(*scores)
    assert selection.waited(log, options(FOLD)) == evaluations
    for patience in range(5):  # 0, the default, has no early stopping
        over = selection.is_over(log, options(FOLD, f"--patience={patience}"))
        assert over == (0 < patience <= evaluations)


def test_head_epochs_do_not_count():
    given = options(FOLD, "--head_epochs=4", "--patience=2")
    assert selection.waited(rows(0.5, 0.4, 0.3, 0.2), given) == 0
    assert not selection.is_over(rows(0.5, 0.4, 0.3, 0.2, 0.1), given)
    assert selection.is_over(rows(0.5, 0.4, 0.3, 0.2, 0.1, 0.1), given)


def test_messages_of_early_stopping():
    given = options(FOLD, "--patience=2", "--epochs=9")
    assert selection.stopped(rows(0.3, 0.5, 0.4, 0.45), given) == (
        "after epoch 4 of 9: in 2 evaluations MAP@R on fold 1/4 has not risen above the 50.0 % of "
        "epoch 2"
    )
    assert selection.stopped(rows(0.3, 0.5, 0.4), given) == ""
    # The run ends after this epoch in any case.
    last = options(FOLD, "--patience=2", "--epochs=4")
    assert selection.stopped(rows(0.3, 0.5, 0.4, 0.45), last) == ""


def split(labels):
    table = ImageTable(np.array(labels), ("a", "b"), arrays=np.zeros((len(labels), 8, 8, 3), "u1"))
    return Split(table, table)


def test_a_fold_of_single_images_has_no_score_to_watch():
    check_validated(options(FOLD, "--patience=2"), split([0, 0, 1]))
    check_validated(options(FOLD), split([0, 1]))
    with pytest.raises(UsageError, match="patience must be 0 for fold=1/4"):
        check_validated(options(FOLD, "--patience=2"), split([0, 1]))


@tiers.thorough
def test_a_run_stops_early_and_stays_stopped(photos, tmp_path, capfd, monkeypatch):
    monkeypatch.setattr(refit, "run_module", lambda _, *words, **more: command(*words))
    folder = tmp_path / "run"
    # A learning rate of 0, so no evaluation has a gain after the first.
    words = [*TINY, "--learning_rate=0", "--epochs=50", "--patience=2", "--fold=1/2"]
    words += ["--schedule=constant", "--batch_size=4", "--steps_per_epoch=2"]
    words += [f"--data_dir={photos}", f"--output_dir={folder}"]
    assert command(*words) == 0
    said = capfd.readouterr().out
    why = "after epoch 3 of 50: in 2 evaluations MAP@R on fold 1/2 has not risen above the"
    assert f"stopped {why}" in said
    log = history(folder)
    assert [row["epoch"] for row in log] == [1, 2, 3]
    assert [row["test/evaluations_without_gain"] for row in log] == [0, 1, 2]
    result, _ = read_finished(folder)
    assert (result["best_epoch"], result["stopped"]["after_epoch"]) == (1, 3)
    assert result["scores"]["map@r/cosine"] == pytest.approx(log[0][MAP_AT_R], abs=1e-6)
    assert f"<dt>Stopped</dt><dd>{why}" in (folder / "report.html").read_text()

    # A run that is killed after its last checkpoint resumes without further training.
    (folder / "result.json").unlink()
    assert command(*words) == 0
    assert [row["epoch"] for row in history(folder)] == [1, 2, 3]
    assert read_finished(folder)[0]["scores"] == result["scores"]

    # The refit trains as many epochs as the kept model.
    assert command(*words, "--refit") == 0
    assert [row["step"] for row in history(folder / "refit")] == [2]


@tiers.thorough
def test_workers_stop_together(tmp_path):
    folder = tmp_path / "run"
    words = [*TINY_GLYPHS, "--fold=1/2", "--epochs=30", "--patience=2", "--steps_per_epoch=2"]
    words += ["--schedule=constant", "--learning_rate=0"]
    words += ["--strategy=multi_worker", f"--output_dir={folder}"]
    first, second = local_workers.finish(local_workers.start(2, "experiments.run", *words))
    assert "stopped after epoch 3 of 30" in first and second == ""
    assert [row["epoch"] for row in history(folder)] == [1, 2, 3]


def words_of(photos, folder):
    """Return the flags of a run with a refit."""
    words = [*TINY, f"--data_dir={photos}", f"--output_dir={folder}", "--refit"]
    return [*words, "--epochs=3", "--steps_per_epoch=2", "--raw_pixels"]


def test_the_refit_has_the_steps_and_batch_of_the_first_run(tmp_path, monkeypatch):
    words = [*TINY, "--train_classes=5"]
    folder = RunFolder(tmp_path, "\n".join(words) + "\n").open()
    sides = {"trained_on": "20 images of 5 classes: a", "tested_on": "8 images of 2 other classes"}
    folder.write_json("result.json", {"table": "its table", "batch_size": 6, **sides})
    folder.write_text("metrics.jsonl", '{"epoch": 2, "step": 14}\n')
    passed_on = mock.Mock()
    monkeypatch.setattr(refit, "run_module", passed_on)
    refit.refit(options(*words, "--raw_pixels", f"--output_dir={tmp_path}", "--refit"))
    second = options(*passed_on.call_args.args[1:])
    assert (second.batch_size, second.steps_per_epoch, second.epochs) == (6, 7, 2)
    assert (second.class_split, second.train_classes) == ("every_class", None)
    assert second.folder == tmp_path / "refit" and not (second.refit or second.raw_pixels)
    assert (second.learning_rate, second.embedding_size) == (0.001, 8)  # from the flags
    refit.check_refit(second)
    before = refit.measured(second)
    assert before["table"] == "its table"
    said = refit.origin_of(before)
    assert "It trained on 20 images of 5 classes: a, and was tested on 8 images of 2" in said


@tiers.thorough
def test_a_refit_trains_on_every_class(photos, tmp_path, capfd, monkeypatch):
    # Run in this process, because another process takes seconds to start.
    monkeypatch.setattr(refit, "run_module", lambda _, *words, **more: command(*words))
    folder = tmp_path / "run"
    words = words_of(photos, folder)
    assert command(*words) == 0
    final = folder / "refit"
    assert history(folder)[-1]["step"] == history(final)[-1]["step"] == 6
    before, after = (json.loads((each / "result.json").read_text()) for each in (folder, final))
    assert after["recall"] == before["recall"] and after["scores"] == before["scores"]
    sentence = "belong to the model before. It trained on 20 images of 5 classes: class0, class1"
    page, card = ((final / name).read_text() for name in ("report.html", "model_card.md"))
    for text in (page, card, after["measured"]):
        assert sentence in text and "20 images of 5 other classes: class5" in text
    assert "all 40 images of 10 classes" in card
    assert '<a href="refit/report.html">' in (folder / "report.html").read_text()
    assert '<a href="../report.html">The run that measured</a>' in page
    for name in ("saved_model/saved_model.pb", "best.keras", "last.keras"):
        assert (final / name).is_file(), name

    finished = (final / "result.json").stat().st_mtime_ns
    assert command(*words) == 0  # both are finished
    assert (final / "result.json").stat().st_mtime_ns == finished
    # A threshold cannot be calibrated on training images.
    assert command_of("calibrate")(f"--run={final}") == 2
    assert "run must have unseen test images" in capfd.readouterr().err


@tiers.thorough
def test_a_kill_in_either_phase_does_not_change_the_result(photos, tmp_path):
    killed, whole = tmp_path / "killed", tmp_path / "whole"
    words = ["experiments.run", *words_of(photos, killed), "--deterministic"]
    for phase in (killed, killed / "refit"):
        kill_when((phase / "checkpoint.npz").is_file, start(*words), phase)
    said = finish(start(*words))
    assert f"{killed} is finished" in said and "; continued after epoch" in said
    finish(start("experiments.run", *words_of(photos, whole), "--deterministic"))
    for part in (".", "refit"):
        assert_same_weights(whole / part, killed / part)
