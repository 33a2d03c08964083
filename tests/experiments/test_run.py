"""`experiments.run`: recipes, invalid input, and resuming."""

import importlib.util
import json
import shutil
import subprocess
import sys

import keras
import numpy as np
import pytest
from processes import run_python
from tiny_run import TINY, assert_serves_its_embeddings, command, finished_run, history

from experiments import audit, evaluate
from experiments.options import run_command
from experiments.training import fit
from keras_dml import metrics, models


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
    assert result["table"].endswith("\nkept from epoch 2, the last")
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
    assert b"train/first batch, augmented" in events.read_bytes()
    assert {"best.keras", "last.keras", "checkpoint.npz"} <= {p.name for p in finished.iterdir()}
    assert not list(finished.glob(".writing*")) + list(finished.glob(".*npy*"))


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("scann") is None, reason="ScaNN is not installed")
def test_a_run_by_scann_shows_certificates(photos, tmp_path, capsys):
    folder = finished_run(tmp_path / "run", photos, "--neighbors=scann")
    certificate = "Exact on "
    assert certificate in capsys.readouterr().out
    row = history(folder)[-1]
    low, exact, high = (
        row[f"test/recall@1/cosine/{name}"] for name in ("exact_low", "exact", "exact_high")
    )
    assert low <= exact == row["test/recall@1/cosine"] <= high
    result = json.loads((folder / "result.json").read_text())
    assert result["certificates"]["recall@1/cosine/exact"] == exact
    assert certificate in result["table"] and certificate in (folder / "report.html").read_text()


def test_the_flags_file_repeats_the_run(finished, tmp_path, capsys):
    flags_file = finished / "flags.txt"
    assert "--embedding_size=8" in flags_file.read_text()
    assert command(f"--flagfile={flags_file}", f"--output_dir={finished}") == 0
    assert "is finished" in capsys.readouterr().out


def test_a_finished_run_does_nothing(finished, photos, capsys):
    before = {path: path.stat().st_mtime_ns for path in finished.rglob("*")}
    finished_run(finished, photos, "--raw_pixels")
    out = capsys.readouterr().out
    assert "is finished" in out
    assert "embedding, cosine" in out
    assert {path: path.stat().st_mtime_ns for path in finished.rglob("*")} == before


def test_the_saved_model_returns_the_embeddings_of_the_evaluation(finished, photos):
    assert_serves_its_embeddings(finished)
    with np.load(finished / "test_embeddings.npz") as saved:
        assert len(saved["labels"]) == len(saved["paths"]) == 20


@pytest.mark.thorough
@pytest.mark.slow
def test_an_unreadable_image_is_named_and_can_be_skipped(photos, tmp_path, capsys):
    broken = shutil.copytree(photos, tmp_path / "photos")
    bad = broken / "class1" / "bad.jpg"
    folder = tmp_path / "run"
    arguments = [*TINY, f"--data_dir={broken}", f"--output_dir={folder}"]
    bad.write_text("not a picture")
    assert command(*arguments) == 2
    err = capsys.readouterr().err
    assert str(bad) in err
    assert "--skip_bad_images" in err
    assert not folder.exists()

    # A cut JPEG is found when it is decoded, in the first evaluation or earlier.
    bad.write_bytes((broken / "class1" / "1.jpg").read_bytes()[:200])
    assert command(*arguments, "--epochs=6") == 2
    assert str(bad) in capsys.readouterr().err

    # The suggested flag works in the same folder, because the folder has no checkpoint.
    (folder / "checkpoint.npz").unlink(missing_ok=True)
    assert command(*arguments, "--skip_bad_images") == 0
    assert str(bad) in (folder / "bad_images.txt").read_text()
    assert str(bad) in capsys.readouterr().out


@pytest.mark.thorough
@pytest.mark.slow
def test_a_run_on_a_fold_needs_no_test_image(photos, tmp_path, capsys):
    data = shutil.copytree(photos, tmp_path / "photos")
    for number in range(5, 10):  # the test classes
        for file in (data / f"class{number}").iterdir():
            file.write_text("not a picture")
    more = ("--epochs=1", "--batch_size=4")
    folder = finished_run(tmp_path / "run", data, *more, "--fold=2/2")
    said = capsys.readouterr().out
    assert "12 images of 3 classes to train, 8 of 2 others to test" in said
    assert "fold 2/2 of the training classes: the test classes stay unseen" in said
    assert "to train: class0, class1, class2\nto test: class3, class4" in said
    report = (folder / "report.html").read_text()
    assert "Fold</dt><dd>2/2 of the training classes" in report
    assert "<dt>Validation</dt><dd>8 images of 2 other classes" in report
    assert "R@1 on the validation images" in report and "on the test images" not in report
    assert "Fold: 2/2" in (folder / "model_card.md").read_text()
    finished_run(folder, data, *more, "--fold=2/2")
    assert "is finished" in capsys.readouterr().out
    assert command(*TINY, f"--data_dir={data}", f"--output_dir={folder}", *more) == 2
    assert "(there --fold=2/2)" in capsys.readouterr().err
    for module in (evaluate, audit):
        name = module.__name__.rpartition(".")[2]
        assert run_command(module.main, [name, f"--run={folder}"]) == 0
    evaluation = json.loads((folder / "evaluation" / "evaluation.json").read_text())
    assert (evaluation["queries"], evaluation["fold"]) == (8, "2/2")
    result = json.loads((folder / "result.json").read_text())
    assert evaluation["scores"] == pytest.approx(result["scores"], rel=1e-4)


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


@pytest.mark.thorough
@pytest.mark.slow
def test_a_run_first_prints_the_arguments_of_its_loss(photos, tmp_path, capsys):
    more = ["--loss=triplet", "--margin=0.3", "--triplets=hard", "--epochs=1"]
    finished_run(tmp_path / "run", photos, *more)
    assert capsys.readouterr().out.startswith("to loss triplet: margin=0.3, triplets=hard\n")


@pytest.mark.thorough
@pytest.mark.slow
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


def test_a_closed_pipe_is_not_an_error():
    program = (
        "import sys; from experiments.options.command_line import run_command\n"
        "def main(argv): raise BrokenPipeError\n"
        "sys.exit(run_command(main))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_model_that_cannot_be_exported_is_refused_before_training(
    photos,
    tmp_path,
    monkeypatch,
    capsys,
):
    def embedding_model(options):
        backbone = models.small_convnet(options.image_size, filters=(4,))
        inputs = keras.Input(backbone.input_shape[1:])
        whole = keras.Model(inputs, backbone(inputs))
        backbone.name = "_backbone"
        return backbone, models.embedding_model(whole, 4)

    monkeypatch.setattr(fit, "embedding_model", embedding_model)
    folder = tmp_path / "run"
    assert command(*TINY, "--loss=snca", f"--data_dir={photos}", f"--output_dir={folder}") == 2
    assert "rename '_backbone'" in capsys.readouterr().err
    assert not folder.exists()
