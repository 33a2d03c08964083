"""`experiments.study`: recipes over several seeds, and searches."""

import json
import re
import shutil

import numpy as np
import pytest
from tiny_run import TINY, command

from experiments import evaluate, study
from experiments.evaluation.held_folder import try_lock
from experiments.evaluation.intervals import differences, mean_interval
from experiments.options import RunError, UsageError, run_command
from experiments.tuning import folds, protocol  # imported before names are patched
from keras_dml import metrics

SEARCH = ["--recipes=glyphs_contrastive.flags", "--search=learning_rate=1e-4:1e-2:log"]


def score(recipe, seed):
    return {"good": 0.8, "bad": 0.7}[recipe] + np.random.default_rng(seed).normal(0, 0.01)


@pytest.fixture
def recipes(tmp_path, monkeypatch):
    """Two recipes with simulated runs."""
    started = []

    def run(recipe, folder, forwarded):
        started.append((recipe.stem, folder, tuple(forwarded)))

    def finished(folder):
        value = score(folder.parent.name, int(folder.name.partition("-")[2]))
        scores = {"recall@1/cosine": value}
        scores["map@r/cosine"] = value / 2 if "good" in str(folder) else None
        return {"scores": scores}, []

    monkeypatch.setattr(study, "run_recipe", run)
    monkeypatch.setattr("experiments.training.run_files.read_finished", finished)
    for name in ("good", "bad"):
        (tmp_path / f"{name}.flags").write_text("--dataset=glyphs\n")
    words = [f"--recipes={tmp_path / 'good.flags'},{tmp_path / 'bad.flags'}"]
    return [*words, f"--output_dir={tmp_path / 'out'}"], started, tmp_path / "out"


def test_every_recipe_runs_with_every_seed_and_has_an_interval(recipes, capsys):
    words, started, output = recipes
    assert run_command(study.main, ["study", *words, "--seeds=4", "--seed=3", "--epochs=2"]) == 0
    assert len(started) == 8
    for recipe, folder, forwarded in started:
        seed = int(folder.name.partition("-")[2])
        assert folder == output / recipe / f"seed-{seed}"
        assert forwarded == ("--epochs=2", f"--seed={seed}")
    assert sorted({folder.name for _, folder, _ in started}) == [f"seed-{n}" for n in range(3, 7)]
    scores = {name: [100 * score(name, n) for n in range(3, 7)] for name in ("good", "bad")}
    kept = json.loads((output / "study.json").read_text())
    assert kept["seeds"] == [3, 4, 5, 6]
    assert kept["scores"] == {"R@1": scores}  # some runs lack MAP@R
    said, page = capsys.readouterr().out, (output / "study.html").read_text()
    for name, values in scores.items():
        assert re.search(rf"\| {name} +\| {mean_interval(values).text()} ", said)
    (difference,) = differences(scores)
    assert f"R@1: {difference.text()}\n" in said
    assert (output / "study.md").read_text().strip() in said
    assert page.count("<svg") == 1 and "larger than chance" in page


def test_two_processes_in_one_folder_share_the_runs(recipes, monkeypatch, capsys):
    words, started, output = recipes
    (output / "good").mkdir(parents=True)
    other = try_lock(output / "good" / ".seed-0.lock")
    before = []

    def sleep(seconds):
        before[:] = before or [folder for _, folder, _ in started]
        other.close()

    monkeypatch.setattr(study.time, "sleep", sleep)
    assert run_command(study.main, ["study", *words, "--seeds=2"]) == 0
    assert output / "good" / "seed-0" not in before and len(before) == 3
    assert started[3][1] == output / "good" / "seed-0" and len(started) == 4
    assert capsys.readouterr().out.count("waiting for another process: good, seed 0\n") == 1


def test_the_untrained_backbone_is_a_row_of_the_study(recipes, monkeypatch, capsys):
    words, _, output = recipes
    rows = {"cosine": {"recall@1": 0.974, "map@r": 0.457}}
    result = {"scores": {"recall@1/cosine": 0.967, "map@r/cosine": 0.5}}
    result["baselines"] = {"untrained backbone": rows}
    monkeypatch.setattr("experiments.training.run_files.read_finished", lambda _: (result, []))
    assert run_command(study.main, ["study", *words, "--seeds=2"]) == 0
    line = r"\| untrained backbone +\| +97\.4 +\| +45\.7 +\|"
    for text in (capsys.readouterr().out, (output / "study.md").read_text()):
        assert len(re.findall(line, text)) == 1
    assert (
        json.loads((output / "study.json").read_text())["baselines"]["untrained backbone"] == rows
    )
    page = (output / "study.html").read_text()
    assert re.search(r'"row">untrained backbone</th>.*97\.4.*45\.7', page)


def test_a_search_is_followed_by_runs_with_the_best_flags(recipes, monkeypatch, capsys):
    pytest.importorskip("optuna")
    words, started, output = recipes
    tested = []

    def value(folder):
        """Return the score of the trial in this folder, which increases with the margin."""
        words = next(given for _, of, given in started if of == folder)
        (margin,) = [word for word in words if word.startswith("--margin=")]
        return float(margin.partition("=")[2]) / 2

    def of_fold(folder):
        return {"scores": {"map@r/cosine": value(folder)}}, []

    def of_seed(folder):
        score = value(folder) + int(folder.name.partition("-")[2]) / 100
        return {"scores": {"recall@1/cosine": score}}, []

    def on_test_classes(folder, runs, words):
        tested.append((folder.parent.name, folder.name, len(started)))
        return {"R@1": {"separate": 0.5, "concatenated": 0.625}}

    monkeypatch.setattr(protocol, "read_finished", of_fold)
    monkeypatch.setattr("experiments.training.run_files.read_finished", of_seed)
    monkeypatch.setattr(protocol, "scores_on_test_classes", on_test_classes)
    given = [*words, "--train_classes=6", "--test_classes=3", "--loss=contrastive", "--epochs=7"]
    search = ["--search=margin=0.1:1", "--search=good/learning_rate=1e-4:1e-2:log", "--folds=3"]
    command = ["study", *given, *search, "--trials=4", "--seeds=2"]
    assert run_command(study.main, command) == 0

    searched = [one for one in started if any("--fold=" in word for word in one[2])]
    # All searches come before the runs with test classes.
    assert started[: len(searched)] == searched
    trials = {(recipe, folder.parent.name) for recipe, folder, _ in searched}
    assert trials == {(name, f"trial-{n}") for name in ("good", "bad") for n in range(4)}
    for recipe, folder, flags in searched:
        assert folder.name == f"fold-{flags[-1].removeprefix('--fold=')[0]}-of-3"
        assert ("learning_rate" in " ".join(flags)) == (recipe == "good")
    kept = json.loads((output / "study.json").read_text())
    for name in ("good", "bad"):
        best = kept["search"][name]["best"]
        assert best["values"]["margin"] == max(
            trial["values"]["margin"] for trial in kept["search"][name]["trials"]
        )
        final = [one for one in started[len(searched) :] if one[0] == name]
        folder = output / name / f"best-trial-{best['trial']}"
        assert {one[1] for one in final} == {folder / "seed-0", folder / "seed-1"}
        for _, _, flags in final:
            assert f"--margin={best['values']['margin']:.6g}" in flags
            assert "--eval_every=7" in flags  # so that the test classes do not choose the epoch
            assert not any("fold" in flag for flag in flags)
        assert (name, f"trial-{best['trial']}", len(started)) in tested
    said = capsys.readouterr().out
    assert re.search(r"\| good +\| +50.0 \| +62.5 \|", said)
    page = (output / "study.html").read_text()
    assert "Search of good" in page
    assert "Separate and concatenated" in page
    assert page.count("<svg") == 3  # R@1, and the trials of both recipes

    # A repeated command tries no new values. Other folds are refused as another study.
    number = len(started)
    assert run_command(study.main, command) == 0
    assert len([one for one in started[number:] if one[1].parent.name.startswith("trial")]) == 6
    assert run_command(study.main, [*command, "--folds=2"]) == 2
    assert "there --folds=3, now --folds=2" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "recipes must name at least one recipe"),
        (["--recipes=glyphs.flags", "--trials=3"], "trials must be unset without --search=.*3"),
        (["--recipes=glyphs.flags", "--storage=x://me:secret@y"], "storage .*--search.*x://…@y"),
        ([*SEARCH, "--storage=study.db"], "storage must be a URL.*study.db"),
        ([*SEARCH, "--search=glyphs/margin=1:2"], "one of the recipes glyphs_contrastive before"),
        ([*SEARCH, "--search=margin=-1:1"], "margin must be .*-1"),
        ([*SEARCH, "--fold=1/2"], "fold must be unset with --search.*1/2"),
        ([*SEARCH, "--class_split=every_class"], "class_split must keep classes for the test"),
        ([*SEARCH, "--train_classes=3"], "folds must be at most 3, the .*4"),
        (["--recipes=nothing_*.flags"], "recipes must match at least one recipe"),
    ],
)
def test_bad_input(words, message, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert run_command(study.main, ["study", *words]) == 2
    said = capsys.readouterr().err
    assert re.search(message, said), said
    assert said.count("\n") == 1
    assert not list(tmp_path.iterdir())


@pytest.fixture
def study_of(tmp_path, monkeypatch, capfd):
    """A short study with its runs in this process, which returns its exit code and output."""
    pytest.importorskip("optuna")

    def run_recipe(recipe, folder, forwarded):
        words = [f"--flagfile={recipe}", *forwarded, f"--output_dir={folder}"]
        code = command(*words)
        if code:
            raise (UsageError if code == 2 else RunError)(f"{recipe.stem} ended with code {code}")

    def evaluation(module, *words, name):
        assert run_command(evaluate.main, ["evaluate", *words]) == 0

    def study_of(data, *more):
        recipe = tmp_path / "tiny.flags"
        recipe.write_text("\n".join([*TINY, f"--data_dir={data}", "--loss=contrastive"]) + "\n")
        words = [f"--recipes={recipe}", "--epochs=1", "--batch_size=4", "--search=margin=0.2:1"]
        words += ["--trials=2", "--folds=2", "--seeds=2", f"--output_dir={tmp_path / 'out'}"]
        code = run_command(study.main, ["study", *words, *more])
        return code, "".join(capfd.readouterr())

    monkeypatch.setattr(study, "run_recipe", run_recipe)
    monkeypatch.setattr(folds, "run_module", evaluation)
    return study_of


@pytest.mark.slow
@pytest.mark.thorough
def test_a_search_never_sees_the_test_classes(photos, tmp_path, study_of):
    data = shutil.copytree(photos, tmp_path / "photos")
    unseen = [file for number in range(5, 10) for file in (data / f"class{number}").iterdir()]
    pictures = {file: file.read_bytes() for file in unseen}
    for file in unseen:
        file.write_text("not a picture")
    code, said = study_of(data)
    # The search completes. The first run that needs the test classes fails.
    assert code == 2, said
    assert len(re.findall(r"^  MAP@R .* \(folds ", said, re.MULTILINE)) == 2
    assert "[1/2] tiny, seed 0" in said
    assert re.search("not an image that can be read: .*class5", said)
    assert len(list((tmp_path / "out").rglob("result.json"))) == 4

    for file, picture in pictures.items():
        file.write_bytes(picture)
    code, said = study_of(data)
    assert code == 0, said
    assert "[tiny, trial" not in said
    kept = json.loads((tmp_path / "out" / "study.json").read_text())
    best = kept["search"]["tiny"]["best"]["trial"]
    assert [trial["number"] for trial in kept["search"]["tiny"]["trials"]] == [0, 1]
    for score, found in kept["models of the folds"]["tiny"].items():
        assert 0 < found["separate"] <= 1, score
    # The concatenated embeddings join the embeddings of each fold's model.
    rows = []
    for fold in (1, 2):
        of_fold = np.load(
            tmp_path / "out" / "tiny" / f"trial-{best}" / f"fold-{fold}-of-2" / "test"
            / "evaluation.npy"
        )  # fmt: skip
        rows.append(of_fold / np.linalg.norm(of_fold, axis=1, keepdims=True))
    scores = metrics.evaluate(np.hstack(rows), np.repeat(np.arange(5), 4), [1], clustering=False)
    for score, key in (("R@1", "recall@1/cosine"), ("MAP@R", "map@r/cosine")):
        together = kept["models of the folds"]["tiny"][score]["concatenated"]
        assert together == pytest.approx(scores[key])
    # The scores of the other trial are kept, but not its models.
    other = tmp_path / "out" / "tiny" / f"trial-{1 - best}" / "fold-1-of-2"
    assert (other / "result.json").is_file()
    assert not (other / "saved_model").exists()
    assert not (other / "best.keras").exists()


@pytest.mark.slow
@pytest.mark.thorough
def test_diverged_trainings_have_no_score(photos, study_of):
    code, said = study_of(photos, "--optimizer=sgd", "--search=learning_rate=1e29:1e30")
    assert code == 2
    assert said.count("the training broke") == 2
    assert "search must have values with which tiny trains" in said
