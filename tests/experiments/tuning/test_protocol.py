"""The flags of the final runs, on all training classes, after a search."""

import json
import pathlib

import numpy as np
import pytest

from experiments.evaluation.scores import compared
from experiments.options import RunOptions, UsageError, parse
from experiments.tuning import protocol
from experiments.tuning.protocol import RecipeSearch, scores_on_test_classes
from experiments.tuning.space import Trial
from keras_dml import metrics

FORWARDED = ("--dataset=glyphs", "--train_classes=6", "--test_classes=3", "--schedule=constant")


def search_of(best, *words, scores=()):
    options = parse(RunOptions, ["study", *FORWARDED, *words])
    return RecipeSearch(
        pathlib.Path("tiny.flags"), pathlib.Path("tiny"), (*FORWARDED, *words), options,
        space=(), folds=3, trials=2, storage=None, run=lambda *_: None,
        done=[best], best=best, scores=scores,
    )  # fmt: skip


@pytest.fixture
def best_epochs(monkeypatch):
    monkeypatch.setattr(RecipeSearch, "best_epochs", lambda search: [4, 9, 5])


def final_options(search):
    return parse(RunOptions, ["run", *search.final_words()])


@pytest.mark.usefixtures("best_epochs")
def test_a_final_run_trains_as_long_as_its_folds():
    best = Trial(1, {"margin": 0.5}, 0.25)
    search = search_of(best, "--patience=3", "--epochs=50", scores=[0.2, 0.3, 0.25])
    final = final_options(search)
    assert (final.epochs, final.eval_every, final.patience) == (6, 6, 0)
    assert search.sentence.endswith(
        "MAP@R 25.0 (folds 20.0 30.0 25.0), each fold after epoch 4 9 5"
    )
    # Values from the search override the recipe.
    drawn = Trial(1, {"patience": 2, "head_epochs": 7}, 0.25)
    final = final_options(search_of(drawn, "--epochs=50"))
    assert (final.epochs, final.eval_every, final.patience) == (8, 8, 0)


def test_a_final_run_without_patience_trains_all_epochs():
    best = Trial(1, {"margin": 0.5, "epochs": 9}, 0.25)
    search = search_of(best, "--epochs=50", scores=[0.25])
    final = final_options(search)
    assert (final.epochs, final.eval_every, final.patience) == (9, 9, 0)
    assert search.sentence.endswith("(folds 25.0)")


def test_the_test_classes_do_not_choose_the_epoch_of_final_runs():
    best = Trial(1, {"margin": 0.5}, 0.25)
    assert final_options(search_of(best, "--keep=best_test")).keep == "last"
    # Other recipes keep their flags, so that a study of an earlier version can resume.
    assert final_options(search_of(best)).keep is None


def test_patience_is_checked_before_the_first_trial(monkeypatch):
    # Do not load the dataset.
    monkeypatch.setattr(RecipeSearch, "one_fold", lambda search: None)
    trial = Trial(0, {})
    search_of(trial, "--patience=3").check()  # the search adds --fold
    with pytest.raises(UsageError, match="schedule must be .*--patience.*warm_cosine"):
        search_of(trial, "--patience=3", "--schedule=warm_cosine").check()


def test_models_of_the_folds_are_scored_separately_and_concatenated(tmp_path, monkeypatch):
    rows = np.random.default_rng(0).normal(size=(2, 36, 4))

    def evaluate(module, *words, name):
        output = pathlib.Path(words[-1].partition("=")[2])
        output.mkdir(parents=True)
        fold = int(output.parent.name)
        np.save(output / "evaluation.npy", rows[fold])
        found = {score.key: 0.5 + 0.25 * fold for score in compared()}
        (output / "evaluation.json").write_text(json.dumps({"scores": found}))

    monkeypatch.setattr(protocol, "run_module", evaluate)
    runs = [tmp_path / "0", tmp_path / "1"]
    found = scores_on_test_classes(tmp_path, runs, FORWARDED)
    both = np.hstack([each / np.linalg.norm(each, axis=1, keepdims=True) for each in rows])
    expected = metrics.evaluate(both, np.repeat(np.arange(3), 12), [1], clustering=False)
    for name, key in (("R@1", "recall@1/cosine"), ("MAP@R", "map@r/cosine")):
        assert found[name]["separate"] == 0.625
        assert found[name]["concatenated"] == pytest.approx(expected[key])
    monkeypatch.setattr(protocol, "run_module", pytest.fail)  # the evaluations are stored
    assert scores_on_test_classes(tmp_path, runs, FORWARDED) == found


def test_the_evaluation_of_a_trial_is_allowed_the_same_code_as_its_runs(tmp_path, monkeypatch):
    recipe, given = tmp_path / "tiny.flags", []
    recipe.write_text("--backbone=mine.keras\n--import_modules=module_of_the_recipe\n")

    def refuse(module, *words, name):
        given.extend(words)
        raise UsageError(name)

    monkeypatch.setattr(protocol, "run_module", refuse)
    with pytest.raises(UsageError, match="the evaluation of"):
        words = [f"--flagfile={recipe}", *FORWARDED, "--trust_code"]
        scores_on_test_classes(tmp_path, [tmp_path / "fold-1-of-2"], words)
    assert "--trust_code" in given and not any("import_modules" in word for word in given)
