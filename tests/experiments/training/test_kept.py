"""The epoch whose model a run keeps."""

import json

import keras
import pytest
from tiny_run import TINY, command, finished_run

from experiments.evaluation.evaluators import RetrievalScores
from experiments.evaluation.scores import ACCURACY, MAP_AT_R
from experiments.evaluation.scores import RECALL_AT_1 as RECALL
from experiments.options import RunOptions, UsageError, parse
from experiments.training.kept import check_keep, kept, kept_by, kept_in_words

FOLD = "--fold=1/4"


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
    check_keep(given)
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


def test_best_fold_needs_a_fold(tmp_path, capsys):
    with pytest.raises(UsageError, match="keep must be last or best_test without --fold"):
        check_keep(options("--keep=best_fold"))
    assert command(*TINY, "--keep=best_fold", f"--output_dir={tmp_path / 'run'}") == 2
    assert capsys.readouterr().err.count("\n") == 1
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "epoch", "rule", "why"),
    [
        ([], 2, "last", "the last"),
        (["--keep=best_test"], 1, "best_test", "the best by R@1 on the test images"),
    ],
)
def test_files_and_pages_belong_to_the_kept_epoch(
    words, epoch, rule, why, photos, tmp_path, monkeypatch
):
    scores = iter([0.9, 0.1])  # the first epoch is better
    monkeypatch.setattr(RetrievalScores, "measure", lambda *_: [(RECALL, next(scores))])
    folder = finished_run(tmp_path / "run", photos, *words)
    result = json.loads((folder / "result.json").read_text())
    assert (result["best_epoch"], result["keep"]) == (epoch, rule)
    said = f"kept from epoch {epoch}, {why}"
    assert result["table"].endswith(f"\n{said}")
    assert f"R@1, cosine, {said}</span>" in (folder / "report.html").read_text()
    assert said in (folder / "model_card.md").read_text()
    best, last = (
        keras.saving.load_model(folder / name, compile=False).get_weights()
        for name in ("best.keras", "last.keras")
    )
    same = all((one == other).all() for one, other in zip(best, last, strict=True))
    assert same == (rule == "last")
