"""`experiments.compare`: comparison of recipes."""

import json
import re
import shutil
import subprocess

import numpy as np
import pytest
import tiny_run
from retrieval_sets import clusters
from tiny_run import TINY, command_of

import keras_dml
from experiments import compare
from experiments.options import child_process
from experiments.options.held_folder import held
from keras_dml._files.manifest import Manifest

command = command_of("compare")


@pytest.mark.slow
def test_table_page_and_best_recipe_of_finished_runs(photos, finished, tmp_path, capfd):
    output, recipes = tmp_path / "out", [tmp_path / "tiny.flags", tmp_path / "contrastive.flags"]
    recipes[0].write_text("\n".join([*TINY, f"--data_dir={photos}"]))
    recipes[1].write_text(f"--flagfile={recipes[0]}\n--loss=contrastive\n")
    shutil.copytree(finished, output / "tiny")
    words = [f"--flagfile={recipes[1]}", "--raw_pixels"]
    assert tiny_run.command(*words, f"--output_dir={output / 'contrastive'}") == 0
    before = {path: path.stat().st_mtime_ns for path in output.rglob("*.keras")}
    names = ",".join(map(str, recipes))
    assert command(f"--recipes={names}", f"--output_dir={output}", "--raw_pixels") == 0
    printed = capfd.readouterr().out
    assert before == {path: path.stat().st_mtime_ns for path in output.rglob("*.keras")} != {}
    recalls = {}
    for name in ("tiny", "contrastive"):
        result = json.loads((output / name / "result.json").read_text())
        recalls[name] = result["recall"]["embedding, cosine"]["1"]
        row = next(line for line in printed.splitlines() if line.startswith(f"| {name}"))
        assert f" {100 * recalls[name]:.1f} " in row
        assert f" {100 * result['scores']['map@r/cosine']:.1f} " in row
    assert "paper" not in printed
    assert f"best: {max(recalls, key=recalls.get)}, cosine" in printed
    assert (output / "comparison.md").read_text().strip() in printed
    page = (output / "comparison.html").read_text()
    for name in recalls:
        assert f'<a href="{name}/report.html">{name}</a>' in page
        assert page.count(f"</span>{name}</figcaption>") == 4  # one row per query


@pytest.fixture
def runs(tmp_path):
    """A function that writes a finished run whose classes have this width."""

    def write(name, width, classes=12, images="the same"):
        folder = tmp_path / name
        folder.mkdir()
        manifest = Manifest(folder)
        z, labels = clusters(classes, 6, 8, scale=width)
        np.savez(folder / "test_embeddings.npz", embeddings=z, labels=labels)
        scores = keras_dml.metrics.evaluate(z, labels, [1])
        cosine = {key: scores[f"{key}/cosine"] for key in ("recall@1", "map@r")}
        result = {"rows": {"embedding, cosine": cosine}, "best_epoch": 1, "seconds": 2.0}
        files = {
            "result.json": {**result, "train_seconds": 1.0},
            "metrics.jsonl": {"epoch": 1, "step": 1},
            "images.json": {"test": {"images": len(labels), "sha256": images}},
        }
        for file, value in files.items():
            manifest.staged(file).write_text(json.dumps(value) + "\n")
        manifest.commit(files)
        (folder / "flags.txt").write_text("--dataset=glyphs\n")
        return folder, cosine

    return write


def test_finished_runs_are_compared_on_their_classes(runs, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(compare, "_same_queries", lambda *_: None)
    (wide, before), (narrow, after) = runs("wide", 0.3), runs("narrow", 3.0)
    output = f"--output_dir={tmp_path / 'out'}"
    assert command(wide, narrow, output) == 0
    said = capsys.readouterr().out
    found = re.search(r"narrow is better in MAP@R by ([\d.]+) points, ([\d.]+) to ([\d.]+)\.", said)
    points, low, high = map(float, found.groups())
    assert points == pytest.approx(100 * (after["map@r"] - before["map@r"]), abs=0.051)
    assert 0 < low < points < high
    assert f"+{points} ({low} to {high})" in (tmp_path / "out" / "comparison.md").read_text()
    page = (tmp_path / "out" / "comparison.html").read_text()
    assert found[0] in page and '<a href="../wide/report.html"' not in page  # it has no report
    assert command(narrow, wide, output) == 0
    assert found[0] in capsys.readouterr().out
    again, _ = runs("again", 0.3)
    assert command(wide, again, output) == 0
    text = "wide and again cannot be told apart in MAP@R: the difference is 0.0 points, 0.0 to 0.0."
    assert text in capsys.readouterr().out


def test_runs_that_do_not_compare_are_named(runs, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(compare, "_same_queries", lambda *_: None)
    output = f"--output_dir={tmp_path / 'out'}"
    mine, _ = runs("mine", 1.0)
    others = [runs("elsewhere", 1.0, images="others")[0], runs("fewer", 1.0, classes=4)[0]]
    for other in others:
        assert command(mine, other, output) == 0
        sentence = f"The test images of mine and {other.name} differ"
        assert sentence in capsys.readouterr().out
    for words, said in (
        ([mine], "two runs or more"),
        ([mine, mine], "two runs or more"),
        ([mine, tmp_path], "must be the folder of a run"),
        ([mine, others[0], "--epochs=3"], "epochs has no effect on finished runs"),
        ([mine, others[0], "--flagfile=glyphs.flags"], "flagfile has no effect on finished runs"),
    ):
        assert command(*words, output) == 2
        assert said in capsys.readouterr().err
    (mine / "test_embeddings.npz").unlink()
    assert command(mine, others[0], output) == 2
    assert "test_embeddings.npz is missing. Put it back" in capsys.readouterr().err


def test_a_second_comparison_of_one_folder_says_so(tmp_path, capsys):
    with held(tmp_path / "out", "output_dir"):
        assert command("--recipes=cub.flags", f"--output_dir={tmp_path / 'out'}") == 2
    assert "in use by another running process" in capsys.readouterr().err


@pytest.mark.parametrize(("ended", "code"), [(2, 2), (1, 1), (-9, 1)])
def test_the_comparison_has_the_exit_code_of_a_failed_run(
    ended, code, tmp_path, monkeypatch, capsys
):
    done = subprocess.CompletedProcess((), ended)
    monkeypatch.setattr(child_process.subprocess, "run", lambda *words, **more: done)
    assert command("--recipes=cub.flags", f"--output_dir={tmp_path}") == code
    assert f"cub ended with code {ended}" in capsys.readouterr().err


def test_printed_scores_and_the_untrained_backbone_are_next_to_ours(tmp_path, monkeypatch, capsys):
    (tmp_path / "mine.flags").write_text(
        "# Paper, cosine: R@1 0.5, R@10 0.8, R@100 0.9.\n# Paper, l2: R@1 0.676.\n"
        "# Paper: NMI 0.7.\n--dataset=glyphs\n"
    )
    result = {
        "rows": {
            "embedding, cosine": {"recall@1": 0.75, "recall@10": 0.9, "map@r": 0.5},
            "embedding, l2": {"recall@1": 0.5},
            "photo to catalog, cosine": {"recall@1": 0.5},
            "raw pixels, cosine": {"recall@1": 0.8},
        },
        "scores": {"nmi": 0.625},
        "train_seconds": 1.0,
        "seconds": 2.0,
    }
    untrained = {
        "cosine": {"recall@1": 0.974, "map@r": 0.457},
        "l2": {"recall@1": 0.96, "map@r": 0.4},
        "photo to catalog, cosine": {"recall@1": 0.479},
    }
    result["baselines"] = {"untrained backbone": untrained}
    read = "experiments.training.run_files.read_finished"
    monkeypatch.setattr(read, lambda folder, whole: (result, [{"epoch": 1, "train/loss": 1.0}]))
    monkeypatch.setattr(compare, "run_recipe", lambda recipe, folder, forwarded: folder.mkdir())
    monkeypatch.setattr(compare, "_same_queries", lambda *_: None)
    (tmp_path / "out").mkdir()
    recipes = f"--recipes={tmp_path / 'mine.flags'},glyphs.flags"
    tracker = "--log_to=mlflow:http://me:secret@host"
    assert command(recipes, f"--output_dir={tmp_path / 'out'}", tracker) == 0
    table = (tmp_path / "out" / "comparison.md").read_text()
    printed = capsys.readouterr().out
    assert table.strip() in printed
    best = "best: mine, cosine R@1 75.0 %\nR@1 75.0 % is below raw pixels (80.0 %).\n"
    assert best in printed
    cells = [[cell.strip() for cell in line.split("|")[1:-1]] for line in table.splitlines()]
    head, _, ours, other, baseline, *_ = cells
    shown = dict(zip(head, ours))
    assert (shown["R@1, paper, cosine"], shown["R@1, paper, l2"]) == ("50.0", "67.6")
    assert (shown["R@10, cosine"], shown["R@10, paper, cosine"]) == ("90.0", "80.0")
    assert (shown["NMI"], shown["NMI, paper"]) == ("62.5", "70.0")
    assert "R@100, paper, cosine" not in shown
    assert dict(zip(head, other))["R@1, paper, cosine"] == "–"
    found = dict(zip(head, baseline))
    assert baseline[0] == "untrained backbone"
    assert [found[name] for name in ("R@1, cosine", "R@1, l2")] == ["97.4", "96.0"]
    assert "45.7" in baseline and "47.9" in baseline
    page = (tmp_path / "out" / "comparison.html").read_text()
    assert "untrained backbone 97.4" in page  # in the figure
    assert "--log_to=mlflow:http://…@host" in page and "secret" not in page


def test_values_that_a_run_lacks_are_left_out(tmp_path, monkeypatch):
    result = {
        "rows": {"embedding, cosine": {"recall@1": 0.5, "map@r": 0.25}},
        "scores": None,
        "accuracy": None,
        "baselines": {"untrained backbone": {"cosine": {"recall@1": None, "map@r": 0.125}}},
        "train_seconds": 1.0,
        "seconds": 2.0,
    }
    read = "experiments.training.run_files.read_finished"
    monkeypatch.setattr(read, lambda folder, whole: (result, [{"epoch": 1, "train/loss": 1.0}]))
    monkeypatch.setattr(compare, "run_recipe", lambda recipe, folder, forwarded: folder.mkdir())
    monkeypatch.setattr(compare, "_same_queries", lambda *_: None)
    (tmp_path / "out").mkdir()
    assert command("--recipes=glyphs.flags", f"--output_dir={tmp_path / 'out'}") == 0
    table = (tmp_path / "out" / "comparison.md").read_text()
    assert "accuracy" not in table
    cells = [[cell.strip() for cell in line.split("|")[1:-1]] for line in table.splitlines()]
    baseline = dict(zip(cells[0], cells[-1]))
    assert (baseline["R@1, cosine"], baseline["MAP@R, cosine"]) == ("–", "12.5")
