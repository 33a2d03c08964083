"""`experiments.run`: recipes, invalid input, and resuming."""

import json
import pathlib
import re

import numpy as np
import pytest
import tiers
from processes import run_python
from tiny_run import TINY, assert_serves_its_embeddings, command

from experiments.options import RunOptions, parse
from keras_dml import metrics


@pytest.mark.slow
def test_files_of_a_finished_run(finished):
    history = [json.loads(line) for line in (finished / "metrics.jsonl").read_text().splitlines()]
    assert [(row["epoch"], row["step"]) for row in history] == [(1, 2), (2, 4)]
    for row in history:
        for metric in ("cosine", "l2"):
            assert 0 <= row[f"test/recall@1/{metric}"] <= row[f"test/recall@2/{metric}"] <= 1
        assert row["train/tightness"] + row["train/contrastive"] == pytest.approx(
            row["train/loss"], rel=1e-4
        )
    result = json.loads((finished / "result.json").read_text())
    assert result["recall"]["embedding, cosine"]["1"] == history[-1]["test/recall@1/cosine"]
    assert (result["best_epoch"], result["keep"]) == (2, "last")
    assert "\nkept from epoch 2, the last\n" in f"{result['table']}\n"
    assert "raw pixels, cosine" in result["recall"]
    with np.load(finished / "test_embeddings.npz") as saved:
        scores = metrics.evaluate(saved["embeddings"], saved["labels"], [1, 2])
    assert result["scores"] == {**result["scores"], **scores}
    assert {"map@r/l2", "r_precision/cosine", "nmi", "ami", "jensen_shannon"} < set(scores)
    for shown in (result["table"], (finished / "report.html").read_text()):
        assert "MAP@R" in shown
        for name in ("map@r/cosine", "r_precision/l2", "nmi", "ami"):
            assert f"{100 * scores[name]:.1f}" in shown
        assert f"{scores['jensen_shannon']:.3f} nats" in shown
    report = (finished / "report.html").read_text()
    assert "<html" in report and "before, raw pixels: matching 0." in report
    (events,) = (finished / "tensorboard").glob("events*")
    assert b"train/loss" in events.read_bytes()
    assert {"best.keras", "last.keras", "checkpoint.npz"} <= {p.name for p in finished.iterdir()}
    assert not list(finished.glob(".writing*")) + list(finished.glob(".*npy*"))


def labels_of(lines):
    """Return the first cells of a table's rows, and the texts before a colon."""
    return [re.split(r" {2,}|: |(?<=kept from epoch) ", line)[0] for line in lines if line]


@pytest.mark.slow
@pytest.mark.parametrize("page", ["README.md", "docs/pages/start.md"])
def test_the_first_run_prints_the_lines_on_the_page(page, finished):
    result = json.loads((finished / "result.json").read_text())
    lines = result["table"].splitlines()
    printed = [line for line in lines if line not in result["conclusions"]]
    text = (pathlib.Path(__file__).parents[2] / page).read_text()
    (shown,) = re.findall(r"^```(?:text)?\n(R@K, %.*?)^```$", text, re.DOTALL | re.MULTILINE)
    expected = [*labels_of(printed), "report", "serving"]
    assert labels_of(shown.splitlines()) == expected and "kept from epoch" in expected


@pytest.mark.slow
def test_a_finished_run_does_nothing(finished, photos, capsys):
    assert_serves_its_embeddings(finished)
    before = {path: path.stat().st_mtime_ns for path in finished.rglob("*")}
    for words in (
        [*TINY, f"--data_dir={photos}", "--raw_pixels"],
        [f"--flagfile={finished}/flags.txt"],
    ):
        assert command(*words, f"--output_dir={finished}") == 0
        out = capsys.readouterr().out
        assert "is finished" in out and "embedding, cosine" in out
    assert {path: path.stat().st_mtime_ns for path in finished.rglob("*")} == before


def test_flag_files_include_others_and_later_or_local_files_win(tmp_path, monkeypatch):
    def parsed(*words):
        return parse(RunOptions, ["run", *words])

    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.flags").write_text("--flagfile=glyphs.flags\n# faster\n--epochs=2\n")
    (tmp_path / "over.flags").write_text("--epochs=5\n--seed=9\n")
    options = parsed("--flagfile=mine.flags")
    assert (options.epochs, options.batch_size, options.name) == (2, 120, "mine")
    options = parsed("--batch_size=60", "--flagfile=mine.flags", "--flagfile=over.flags")
    assert (options.epochs, options.seed, options.batch_size, options.name) == (5, 9, 60, "over")
    (tmp_path / "glyphs.flags").write_text("--dataset=glyphs\n--epochs=77\n")
    assert parsed("--flagfile=glyphs.flags").epochs == 77


@pytest.mark.slow
def test_nan_stops_the_run_at_its_step_before_a_checkpoint(photos, tmp_path, capsys):
    folder = tmp_path / "run"
    arguments = [*TINY, f"--data_dir={photos}", f"--output_dir={folder}", "--optimizer=sgd"]
    assert command(*arguments, "--learning_rate=1e30", "--schedule=constant", "--loss=ce") == 1
    err = capsys.readouterr().err
    assert "is not finite at step 2 (epoch 1)" in err
    assert "Traceback" not in err
    assert not (folder / "checkpoint.npz").exists()
    assert not (folder / "result.json").exists()
    assert "is not finite at step 2" in (folder / "diverged.txt").read_text()


@tiers.thorough
@pytest.mark.parametrize(
    "more",
    [
        ["--strategy=mirrored", "--logical_devices=2"],
        ["--mixed_precision"],
        ["--jit_compile"],
        ["--backbone=mobilenetv2", "--image_size=32", "--optimizer=sgd", "--pretrained_factor=0.1",
         "--momentum=0.9", "--nesterov", "--weight_decay=0.001", "--feature_batch_norm"],
    ],
    ids=["mirrored", "mixed_precision", "jit_compile", "mobilenet"],
)  # fmt: skip
def test_strategy_precision_and_compilation(more, photos, tmp_path):
    """Each run has a separate process, because the flags change TensorFlow's global state."""
    arguments = [*TINY, f"--data_dir={photos}", f"--output_dir={tmp_path / 'run'}", *more]
    run_python("-m", "experiments.run", *arguments)
    assert_serves_its_embeddings(tmp_path / "run")
