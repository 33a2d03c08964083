"""--search and --grid: parsing, printed scores, and the final runs after a search."""

import json
import pathlib

import numpy as np
import pytest

from experiments.evaluation.scores import compared
from experiments.options import RunOptions, UsageError, parse
from experiments.recipes import find_recipe
from experiments.tuning import protocol
from experiments.tuning.grid import printed_scores, printed_table, read_grid
from experiments.tuning.protocol import RecipeSearch, scores_on_test_classes
from experiments.tuning.space import Parameter, Trial, own_values, read_space, words_of_trial
from keras_dml import metrics


def read(*words, loss="contrastive", given=()):
    options = parse(RunOptions, ["run", f"--loss={loss}", *given])
    return read_space(words, "one", options, ["one", "another"])


def test_bounds_scales_whole_numbers_and_choices():
    found = read(
        "learning_rate=1e-5:1e-3:log",
        "one/margin=0.05:0.5",
        "another/margin=2:1",  # for another recipe
        "images_per_class=2:8",
        "optimizer=adam,sgd",
        "flip=true,false",
    )
    assert found == (
        Parameter("learning_rate", 1e-5, 1e-3, log=True),
        Parameter("margin", 0.05, 0.5),
        Parameter("images_per_class", 2, 8, whole=True),
        Parameter("optimizer", choices=("adam", "sgd")),
        Parameter("flip", choices=("true", "false")),
    )
    assert (found[0].text, found[3].text) == ("learning_rate=1e-05:0.001:log", "optimizer=adam,sgd")
    words = words_of_trial({"learning_rate": 0.00012345678, "flip": "false"})
    assert words == ["--learning_rate=0.000123457", "--flip=false"]
    options = parse(RunOptions, ["run", *words])
    assert options.learning_rate == 0.000123457
    assert not options.flip


def test_values_of_a_recipe_within_the_bounds(tmp_path):
    def own(*flags):
        (tmp_path / "one.flags").write_text("\n".join(["--loss=contrastive", *flags]))
        options = parse(RunOptions, ["run", f"--flagfile={tmp_path / 'one.flags'}"])
        return own_values(read_space(words, "one", options, ["one"]), options)

    words = ("learning_rate=1e-4:1e-2:log", "margin=0.5:2", "positive_margin=0.1:0.3")
    words += ("images_per_class=2:8", "optimizer=adam,sgd", "flip=true,false", "power=1,2")
    # The learning rate and the default of positive_margin are out of bounds.
    assert own("--learning_rate=0.02", "--images_per_class=4", "--optimizer=sgd", "--noflip") == {
        "margin": 1.0,
        "images_per_class": 4,
        "optimizer": "sgd",
        "flip": "false",
        "power": "2",
    }
    assert "optimizer" not in own("--optimizer=rmsprop")
    assert own("--margin=0.7")["margin"] == 0.7


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("scale=1:2", "must name an argument of loss=contrastive.*margin"),
        ("learning_rate=1e-3:1e-5", "must have the lower bound before the higher"),
        ("learning_rate=0:1:log", "must have bounds above 0 for log"),
        ("learning_rate=0.1", "two different words or more"),
        ("learning_rate", "must be NAME=LOW:HIGH"),
        ("ema=0:2", "ema must be a finite number .*1.0"),
        ("optimizer=adam,adam", "two different words"),
        ("optimizer=adam,addam", "optimizer must be one of "),
        ("train_classes=1:5", "not of the data or the evaluation"),
        ("eval_every=1:2", "not of the data or the evaluation"),
        ("loss=ce,contrastive", "not of the data or the evaluation"),
        ("jitter=0,1", "must name a flag of one value"),
        ("learning_rat=1:2", "must name a flag of keras-dml run.*Did you mean learning_rate"),
        ("another/learning_rate=1:2", "must name a hyperparameter of one"),
    ],
)
def test_bad_input(word, message):
    with pytest.raises(UsageError, match=f"^search .*{message}"):
        read(word)


def test_a_parameter_that_is_also_a_flag_or_is_named_twice():
    with pytest.raises(UsageError, match="must not name learning_rate, which is also set"):
        read("learning_rate=1e-5:1e-3", given=["--learning_rate=0.1"])
    with pytest.raises(UsageError, match="must name learning_rate once"):
        read("learning_rate=1e-5:1e-3", "one/learning_rate=1e-5:1e-3")


def test_a_grid_is_every_combination_of_values():
    found = read_grid(["scale=1,16", "seed=3,4"])
    assert [setting.name for setting in found] == [
        "scale=1 seed=3", "scale=1 seed=4", "scale=16 seed=3", "scale=16 seed=4",
    ]  # fmt: skip
    assert found[1].words == ["--scale=1", "--seed=4"]
    assert [setting.name for setting in read_grid([])] == [""]
    for word in ("scale", "scale=", "no_flag=1", "scale=1,1"):
        with pytest.raises(UsageError, match="^grid must .*, but got"):
            read_grid([word])


def test_ice_and_its_baselines_have_printed_scores():
    ice = find_recipe("sop_ice.flags")
    found = printed_scores([ice], read_grid(["scale=16,2"]))
    assert found == {"sop_ice, scale=16": {"R@1": 71.0, "R@10": 85.6, "R@100": 93.8}}
    words = ["scale=1,80", "images_per_class=2,5", "batch_size=180,100", "embedding_size=64,512"]
    assert all(len(printed_scores([ice], read_grid([word]))) == 2 for word in words)
    baselines = ("untrained", "ce", "triplet", "lifted_structure", "n_pairs", "proxy_nca")
    baselines += ("ranked_list", "ranked_list_lmh")
    names = [f"{dataset}_bn_{loss}" for dataset in ("cub", "cars", "sop") for loss in baselines]
    found = printed_scores([find_recipe(f"{name}.flags") for name in names], read_grid([]))
    assert found.keys() == set(names)
    assert all("R@1" in scores for scores in found.values())


def test_printed_scores_are_next_to_the_means_of_ours():
    results = {"a, scale=1": [{"scores": {"recall@1/cosine": 0.5}}] * 2, "a, scale=2": [{}, {}]}
    head, first, second = printed_table(results, {"a, scale=1": {"R@1": 42.0, "NMI": 60.0}})
    assert head == ["setting", "R@1", "R@1, paper", "NMI", "NMI, paper"]
    assert first == ["a, scale=1", "50.0 ± 0.0", "42.0", "–", "60.0"]
    assert second == ["a, scale=2", "–", "–", "–", "–"]
    assert printed_table(results, {}) == []


FORWARDED = ("--dataset=glyphs", "--train_classes=6", "--test_classes=3", "--schedule=constant")


def search_of(values, *words, scores=()):
    """Return a finished search whose only trial has these values and scores."""
    options = parse(RunOptions, ["study", *FORWARDED, *words])
    best = Trial(1, values, 0.25)
    return RecipeSearch(
        pathlib.Path("tiny.flags"), pathlib.Path("tiny"), (*FORWARDED, *words), options,
        space=(), folds=3, trials=2, storage=None, run=lambda *_: None,
        done=[best], best=best, scores=scores,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("values", "words", "epochs", "keep"),
    [
        # With patience, as long as the folds. Values from the search override the recipe.
        ({"margin": 0.5}, ["--patience=3", "--epochs=50"], 6, None),
        ({"patience": 2, "head_epochs": 7}, ["--epochs=50"], 8, None),
        ({"margin": 0.5, "epochs": 9}, ["--epochs=50"], 9, None),
        # Other recipes keep their flags, so that a study of an earlier version can resume.
        ({"margin": 0.5}, ["--epochs=50", "--keep=best_test"], 50, "last"),
    ],
)
def test_a_final_run_has_as_many_epochs_and_no_choice_by_test_classes(
    values, words, epochs, keep, monkeypatch
):
    monkeypatch.setattr(RecipeSearch, "best_epochs", lambda search: [4, 9, 5])
    final = parse(RunOptions, ["run", *search_of(values, *words).final_words()])
    assert (final.epochs, final.eval_every, final.patience) == (epochs, epochs, 0)
    assert final.keep == keep


def test_the_sentence_of_a_search_has_the_scores_and_epochs_of_the_folds(monkeypatch):
    monkeypatch.setattr(RecipeSearch, "best_epochs", lambda search: [4, 9, 5])
    search = search_of({"margin": 0.5}, "--patience=3", scores=[0.2, 0.3, 0.25])
    assert search.sentence.endswith(
        "MAP@R 25.0 (folds 20.0 30.0 25.0), each fold after epoch 4 9 5"
    )
    assert search_of({"epochs": 9}, scores=[0.25]).sentence.endswith("(folds 25.0)")


def test_patience_is_checked_before_the_first_trial(monkeypatch):
    # Do not load the dataset.
    monkeypatch.setattr(RecipeSearch, "one_fold", lambda search: None)
    search_of({}, "--patience=3").check()  # the search adds --fold
    with pytest.raises(UsageError, match="schedule must be .*--patience.*warm_cosine"):
        search_of({}, "--patience=3", "--schedule=warm_cosine").check()


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
    file = runs[1] / "test" / "evaluation.npy"
    for content in (file.read_bytes()[:200], b"", None):
        file.unlink() if content is None else file.write_bytes(content)
        with pytest.raises(ValueError, match=f"{file} is (missing|damaged). Delete {file.parent}"):
            scores_on_test_classes(tmp_path, runs, FORWARDED)
    file = runs[1] / "test" / "evaluation.json"
    for content in ("", "[]", '{"scores": {"recall@1/cosine": "high"}}'):
        file.write_text(content)
        with pytest.raises(UsageError, match=f"{file} is damaged.*Delete {file.parent}, and"):
            scores_on_test_classes(tmp_path, runs, FORWARDED)


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
