"""`experiments.study`: recipes over several seeds, and searches."""

import json
import re
import shutil

import numpy as np
import pytest
from tiny_run import command_of

from experiments import study
from experiments.evaluation.conclusions import differences, mean_interval
from experiments.options import RunError
from experiments.options.held_folder import held_by_equal_commands, try_lock
from experiments.tuning import protocol  # imported before names are patched

command = command_of("study")


UNTRAINED = {"cosine": {"recall@1": 0.974, "map@r": 0.457}}


def score(recipe, seed):
    return {"good": 0.8, "bad": 0.7}[recipe] + np.random.default_rng(seed).normal(0, 0.01)


@pytest.fixture
def recipes(tmp_path, monkeypatch):
    """Two recipes with simulated runs."""
    started = []

    def run(recipe, folder, forwarded):
        started.append((recipe.stem, folder, tuple(forwarded)))
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "best.keras").touch()

    def finished(folder, whole):
        recipe = "good" if "good" in folder.parts else "bad"
        value = score(recipe, int(folder.name.partition("-")[2]))
        scores = {"recall@1/cosine": value}
        scores["map@r/cosine"] = value / 2 if recipe == "good" else None
        return {"scores": scores, "baselines": {"untrained backbone": UNTRAINED}}, []

    monkeypatch.setattr(study, "run_recipe", run)
    monkeypatch.setattr("experiments.training.run_files.read_finished", finished)
    for name in ("good", "bad"):
        (tmp_path / f"{name}.flags").write_text("--dataset=glyphs\n")
    words = [f"--recipes={tmp_path / 'good.flags'},{tmp_path / 'bad.flags'}"]
    return [*words, f"--output_dir={tmp_path / 'out'}"], started, tmp_path / "out"


def test_every_recipe_runs_with_every_seed_and_has_an_interval(recipes, capsys):
    words, started, output = recipes
    tracker = "--log_to=mlflow:http://me:secret@host"
    assert command(*words, "--seeds=4", "--seed=3", "--epochs=2", tracker) == 0
    assert len(started) == 8
    for recipe, folder, forwarded in started:
        seed = int(folder.name.partition("-")[2])
        assert folder == output / recipe / f"seed-{seed}"
        assert forwarded == ("--epochs=2", tracker, f"--seed={seed}")
    assert sorted({folder.name for _, folder, _ in started}) == [f"seed-{n}" for n in range(3, 7)]
    scores = {name: [100 * score(name, n) for n in range(3, 7)] for name in ("good", "bad")}
    kept = json.loads((output / "study.json").read_text())
    assert kept["seeds"] == [3, 4, 5, 6]
    assert kept["scores"] == {"R@1": scores}  # some runs lack MAP@R
    assert kept["baselines"]["untrained backbone"] == UNTRAINED
    said, page = capsys.readouterr().out, (output / "study.html").read_text()
    for name, values in scores.items():
        assert re.search(rf"\| {name} +\| {mean_interval(values).text()} ", said)
    (difference,) = differences(scores)
    assert f"R@1: {difference.text()}\n" in said
    assert len(re.findall(r"\| untrained backbone +\| +97\.4 +\|", said)) == 1
    assert (output / "study.md").read_text().strip() in said
    assert page.count("<svg") == 1 and "larger than chance" in page
    assert "untrained backbone" in page
    assert kept["forwarded"] == ["--epochs=2", "--log_to=mlflow:http://…@host"]
    assert "secret" not in page


def test_two_processes_in_one_folder_share_the_runs(recipes, monkeypatch, capsys):
    words, started, output = recipes
    (output / "good").mkdir(parents=True)
    other = try_lock(output / "good" / ".seed-0.lock")
    before = []

    def sleep(seconds):
        before[:] = before or [folder for _, folder, _ in started]
        other.close()

    monkeypatch.setattr(study.time, "sleep", sleep)
    assert command(*words, "--seeds=2") == 0
    assert output / "good" / "seed-0" not in before and len(before) == 3
    assert started[3][1] == output / "good" / "seed-0" and len(started) == 4
    assert capsys.readouterr().out.count("waiting for another process: good, seed 0\n") == 1


def recipes_of(words):
    """Return the recipes of a command line."""
    return words[0].partition("=")[2].split(",")


def test_a_second_study_shares_the_folder_only_with_the_same_flags(recipes, monkeypatch, capsys):
    words, started, output = recipes
    first, codes = study.run_recipe, []

    def run(recipe, folder, forwarded):
        first(recipe, folder, forwarded)
        if len(started) == 1:
            # A second process begins. It finds the folder of this run locked, but not the others.
            codes.append(command(*words, "--seeds=2", "--epochs=3"))
            with held_by_equal_commands(output, [*recipes_of(words), "--epochs=2", "4"]):
                codes.append(0)

    monkeypatch.setattr(study, "run_recipe", run)
    assert command(*words, "--seeds=2", "--epochs=2") == 0
    assert codes == [2, 0]
    assert "is in use by another running process with other flags" in capsys.readouterr().err
    assert {forwarded[0] for *_, forwarded in started} == {"--epochs=2"}
    # The first study has ended.
    assert command(*words, "--seeds=2", "--epochs=3") == 0


def test_a_grid_is_in_its_order_next_to_the_printed_scores(recipes, tmp_path, capsys):
    words, started, output = recipes
    (tmp_path / "printed.csv").write_text(
        "recipe,item,setting,score,value\ngood,Table 2,scale=16,R@1,71.0\n"
    )
    words = [words[0].partition(",")[0], *words[1:], "--loss=ice", "--grid=scale=16,1"]
    assert command(*words, "--seeds=2") == 0
    names = [folder.relative_to(output).as_posix() for _, folder, _ in started]
    assert sorted(names) == [f"good/scale={n}/seed-{seed}" for n in (1, 16) for seed in (0, 1)]
    said = capsys.readouterr().out
    assert "R@1, paper" in said and "71.0" in said
    assert "<h2>Printed scores</h2>" in (output / "study.html").read_text()
    scores = json.loads((output / "study.json").read_text())["scores"]["R@1"]
    assert list(scores) == ["good, scale=16", "good, scale=1"]


def test_runs_without_a_common_score_are_an_error(recipes, monkeypatch, capsys):
    words, _, output = recipes
    read = "experiments.training.run_files.read_finished"
    monkeypatch.setattr(read, lambda folder, whole: ({"scores": None, "rows": {}}, []))
    assert command(*words, "--seeds=2") == 2
    error = capsys.readouterr().err
    assert error.startswith(f"error: The runs in {output} must have a score in common") and (
        error.count("\n") == 1
    )


def test_a_search_is_followed_by_runs_with_the_best_flags(recipes, monkeypatch, capsys):
    pytest.importorskip("optuna")
    words, started, output = recipes
    tested = []

    def value(folder):
        """Return the score of the trial in this folder, which increases with the margin."""
        words = next(given for _, of, given in started if of == folder)
        (margin,) = [word for word in words if word.startswith("--margin=")]
        return float(margin.partition("=")[2]) / 2

    def of_fold(folder, whole):
        return {"scores": {"map@r/cosine": value(folder)}}, []

    def of_seed(folder, whole):
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
    given += [*search, "--trials=4", "--seeds=2"]
    assert command(*given) == 0

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
        margins = [trial["values"]["margin"] for trial in kept["search"][name]["trials"]]
        assert best["values"]["margin"] == max(margins)
        models = (output / name).glob("trial-*/fold-*/best.keras")
        assert {path.parts[-3] for path in models} == {f"trial-{best['trial']}"}
        final = [one for one in started[len(searched) :] if one[0] == name]
        folder = output / name / f"best-trial-{best['trial']}"
        assert {one[1] for one in final} == {folder / "seed-0", folder / "seed-1"}
        for _, _, flags in final:
            assert f"--margin={best['values']['margin']:.6g}" in flags
            assert "--eval_every=7" in flags  # so that the test classes do not choose the epoch
            assert not any("fold" in flag for flag in flags)
        assert (name, f"trial-{best['trial']}", len(started)) in tested
    assert re.search(r"\| good +\| +50.0 \| +62.5 \|", capsys.readouterr().out)
    page = (output / "study.html").read_text()
    assert "Search of good" in page and page.count("<svg") == 3  # R@1, and the trials of both

    # A repeated command tries no new values. Other folds are refused as another study.
    number = len(started)
    assert command(*given) == 0
    assert len([one for one in started[number:] if one[1].parent.name.startswith("trial")]) == 6
    assert command(*given, "--folds=2") == 2
    assert "there --folds=3, now --folds=2" in capsys.readouterr().err


def test_diverged_trainings_have_no_score(recipes, monkeypatch, capsys):
    pytest.importorskip("optuna")

    def diverge(recipe, folder, forwarded):
        folder.mkdir(parents=True)
        (folder / "diverged.txt").touch()
        raise RunError("the loss is not finite")

    monkeypatch.setattr(study, "run_recipe", diverge)
    words = [*recipes[0], "--train_classes=6", "--test_classes=3", "--loss=contrastive"]
    words += ["--search=margin=0.1:1", "--folds=3", "--trials=2"]
    assert command(*words) == 2
    said = "".join(capsys.readouterr())
    assert said.count("the training broke") == 2
    assert "with which good trains, but got margin=0.1:1. Every training broke" in said


def test_trials_of_other_images_are_refused(recipes, photos, tmp_path, monkeypatch, capsys):
    """The folder of photographs has one more, as after a repeated command on changed data."""
    pytest.importorskip("optuna")
    data = tmp_path / "photos"
    shutil.copytree(photos, data)
    monkeypatch.setattr(
        protocol, "read_finished", lambda _: ({"scores": {"map@r/cosine": 0.5}}, [])
    )
    words = [*recipes[0], "--dataset=folder", f"--data_dir={data}", "--loss=contrastive"]
    words += ["--search=margin=0.1:1", "--folds=2", "--trials=1"]

    def stop(jobs):
        raise RunError("enough")

    monkeypatch.setattr(study, "_run", stop)  # without the runs on the test classes
    assert command(*words) == 1
    photo = sorted(data.rglob("*.jpg"))[0]
    shutil.copy(photo, photo.with_name("another.jpg"))
    assert command(*words) == 2
    said = capsys.readouterr().err
    assert re.search(r"there test: 12 images, .*now test: 13 images", said)
