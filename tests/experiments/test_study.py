"""Recipes over several seeds, from the command line's side."""

import json
import re

import numpy as np
import pytest

from experiments import study
from experiments.options import run_command
from experiments.report.intervals import differences, mean_interval


def score(recipe, seed):
    return {"good": 0.8, "bad": 0.7}[recipe] + np.random.default_rng(seed).normal(0, 0.01)


@pytest.fixture
def recipes(tmp_path, monkeypatch):
    """Two recipes, whose runs are made up."""
    started = []

    def run(recipe, folder, forwarded):
        started.append((recipe.stem, folder, tuple(forwarded)))

    def finished(folder):
        value = score(folder.parent.name, int(folder.name.partition("-")[2]))
        scores = {"map@r/cosine": value / 2 if "good" in str(folder) else None}
        return {"recall": {"embedding, cosine": {"1": value}}, "scores": scores}, []

    monkeypatch.setattr(study, "run_recipe", run)
    monkeypatch.setattr("experiments.training.run_files.read_finished", finished)
    for name in ("good", "bad"):
        (tmp_path / f"{name}.flags").write_text("--dataset=glyphs\n")
    words = [f"--recipes={tmp_path / 'good.flags'},{tmp_path / 'bad.flags'}"]
    return [*words, f"--output_dir={tmp_path / 'out'}"], started, tmp_path / "out"


def test_every_seed_of_every_recipe_runs_and_the_table_has_their_intervals(recipes, capsys):
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
    assert kept["scores"] == {"R@1": scores}  # MAP@R is not of all runs
    said = capsys.readouterr().out
    for name, values in scores.items():
        assert re.search(rf"\| {name} +\| {study.shown(mean_interval(values))} ", said)
    (difference,) = differences(scores)
    assert f"the best leads bad by {study.shown(difference.interval)} points" in said
    assert "larger than chance" in said
    assert (output / "study.md").read_text().strip() in said
    page = (output / "study.html").read_text()
    assert page.count("<svg") == 1
    assert "larger than chance" in page


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "recipes must name at least one recipe"),
        (["--recipes=glyphs.flags", "--seeds=1"], "seeds"),
        (["--recipes=glyphs.flags", "--seeds=0"], "seeds"),
        (["--recipes=nothing_*.flags"], "recipes has a pattern that no recipe matches"),
    ],
)
def test_bad_input(words, message, capsys):
    assert run_command(study.main, ["study", *words]) == 2
    assert message in capsys.readouterr().err
