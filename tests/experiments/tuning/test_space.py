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
    assert [parameter.text for parameter in found][::3] == [
        "learning_rate=1e-05:0.001:log",
        "optimizer=adam,sgd",
    ]
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
        ("learning_rate=0:1:lin", "must be NAME=LOW:HIGH"),
        ("learning_rate=0.1", "two different words or more"),
        ("learning_rate", "must be NAME=LOW:HIGH"),
        ("=1:2", "must be NAME=LOW:HIGH"),
        ("learning_rate=nan:1", "learning_rate must be a finite number"),
        ("ema=0:2", "ema must be a finite number .*of at most 1"),
        ("batch_size=1.5:3", "batch_size must be a whole number"),
        ("optimizer=adam,adam", "two different words"),
        ("optimizer=adam,addam", "optimizer must be one of "),
        ("train_classes=1:5", "not of the data or the evaluation"),
        ("eval_every=1:2", "not of the data or the evaluation"),
        ("loss=ce,contrastive", "not of the data or the evaluation"),
        ("jitter=0,1", "must name a flag of one value"),
        ("learning_rat=1:2", "must name a flag of experiments.run.*Did you mean learning_rate"),
        ("another/learning_rate=1:2", "must name a hyperparameter of one"),
        ("two/margin=1:2", "must name one of the recipes one, another before the /"),
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


@pytest.mark.parametrize("word", ["scale", "scale=", "no_flag=1", "scale=1,1"])
def test_mistakes_of_a_grid(word):
    with pytest.raises(UsageError, match="^grid must .*, but got"):
        read_grid([word])


def test_ice_has_the_printed_scores_of_tables_2_4_5_and_6():
    recipe = find_recipe("sop_ice.flags")
    words = {"scale": "1,16,32,48,64,80", "images_per_class": "2,3,4,5"}
    words |= {"batch_size": "180,160,140,120,100", "embedding_size": "64,128,256,512"}
    for name, values in words.items():
        settings = read_grid([f"{name}={values}"])
        found = printed_scores([recipe], settings)
        assert len(found) == len(values.split(","))
        assert all(scores.keys() == {"R@1", "R@10", "R@100"} for scores in found.values())
    found = printed_scores([recipe], read_grid(["scale=16,2"]))
    assert found == {"sop_ice, scale=16": {"R@1": 71.0, "R@10": 85.6, "R@100": 93.8}}


@pytest.mark.parametrize("dataset", ["cub", "cars", "sop"])
@pytest.mark.parametrize("loss", ["ce", "triplet", "lifted_structure", "n_pairs", "proxy_nca"])
def test_baselines_of_ice_have_the_printed_scores_of_table_3(dataset, loss):
    recipe = find_recipe(f"{dataset}_bn_{loss}.flags")
    assert "R@1" in printed_scores([recipe], read_grid([]))[f"{dataset}_bn_{loss}"]


def test_printed_scores_are_next_to_the_means_of_ours():
    results = {"a, scale=1": [{"scores": {"recall@1/cosine": 0.5}}] * 2, "a, scale=2": [{}, {}]}
    head, first, second = printed_table(results, {"a, scale=1": {"R@1": 42.0, "NMI": 60.0}})
    assert head == ["setting", "R@1", "R@1, paper", "NMI", "NMI, paper"]
    assert first == ["a, scale=1", "50.0 ± 0.0", "42.0", "–", "60.0"]
    assert second == ["a, scale=2", "–", "–", "–", "–"]
    assert printed_table(results, {}) == []


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
