"""A run that resumes, also after `kill -9`, equals a whole run; runs on JAX and PyTorch."""

import importlib.util
import json

import keras
import numpy as np
import pytest
import tiers
from tiny_run import (
    TINY,
    TINY_EPOCHS,
    assert_same_runs,
    assert_serves_its_embeddings,
    command,
    final_weights,
    finish,
    kill_when,
    stopping_after_a_checkpoint,
)
from tiny_run import start as start_process
from tiny_transformer import tiny_transformer

from keras_dml import models

ARGUMENTS = [*TINY, *TINY_EPOCHS]
LOSSES = {
    "ce": [
        *("--loss=ce", "--dropout=0.5", "--optimizer=sgd"),
        *("--momentum=0.9", "--nesterov", "--velocity=torch"),
    ],
    "rankmi": ["--loss=rankmi", "--optimizer=adam"],
    "pce": ["--loss=pce", "--classifier", "--classifier_factor=10"],
    "alternating": ["--loss=ce", "--label_smoothing=0", "--objective=alternating"],
    # The memory starts in step 3 of 12 and overwrites its oldest rows from step 5.
    "supcon": ["--loss=supcon", "--memory_size=20", "--memory_start_step=2"],
    # The checkpoint contains the nearest classes.
    "hard_classes": ["--loss=supcon", "--sampler=hard_classes", "--hardness=1"],
}

# With a tiny transformer as the backbone.
FINE_TUNED = {
    "head_epochs": ["--loss=ce", "--head_epochs=1", "--ema=0.7", "--optimizer=adamw"],
    "lora": ["--loss=multi_similarity", "--lora_rank=2", "--ema=0.5", "--weight_decay=0.1"],
    "layers": ["--loss=ce", "--layer_decay=0.5", "--rematerialize", "--global_clipnorm=0.5"],
    "statistics": ["--loss=rankmi", "--head_epochs=1", "--ema=0.5", "--optimizer=rmsprop"],
}
LOSSES |= FINE_TUNED


def words_of(loss, photos, folder):
    return [*ARGUMENTS, *LOSSES[loss], f"--data_dir={photos}", f"--output_dir={folder}"]


def start(backend, *words):
    if importlib.util.find_spec(backend) is None:
        pytest.skip(f"{backend} is not installed")
    return start_process(*words, KERAS_BACKEND=backend)


OTHERS = [(backend, loss) for backend in ("jax", "torch") for loss in ("ce", "rankmi")]


@pytest.mark.slow
@tiers.parametrize(
    ("backend", "loss"),
    [("tensorflow", "ce"), ("tensorflow", "hard_classes"), *OTHERS],
    [("tensorflow", "hard_classes")],  # the checkpoint with the most parts
    pytest.mark.thorough,
)
def test_a_killed_run_resumes_identically_and_tensorflow_reads_it(backend, loss, photos, tmp_path):
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    # In a process, too, because this one turns off TensorFlow's graph optimizer.
    other = start(backend, "experiments.run", *words_of(loss, photos, whole))
    checkpoint = killed / "checkpoint.npz"

    def ready():
        if not checkpoint.is_file():
            return False
        with np.load(checkpoint) as saved:
            return int(saved["state_epoch"]) >= 3

    words = ["experiments.run", *words_of(loss, photos, killed)]
    kill_when(ready, start(backend, *words), killed)
    assert "continued after epoch" in finish(start(backend, *words))
    finish(other)
    assert_same_runs(whole, killed)
    if backend != "tensorflow":  # TensorFlow finds the same scores
        finish(start("tensorflow", "experiments.evaluate", f"--run={whole}"))
        result, found = (
            json.loads((whole / name).read_text())["scores"]
            for name in ("result.json", "evaluation/evaluation.json")
        )
        recalls = {name: share for name, share in result.items() if name.startswith("recall")}
        assert recalls and recalls == pytest.approx({name: found[name] for name in recalls})


@tiers.thorough
@pytest.mark.parametrize("loss", LOSSES)
def test_a_stopped_run_resumes_identically(loss, photos, tmp_path, monkeypatch):
    if loss in FINE_TUNED:
        monkeypatch.setattr(models, "build_backbone", lambda *_: tiny_transformer(seed=3))
    whole, stopped = tmp_path / "whole", tmp_path / "stopped"
    assert command(*words_of(loss, photos, whole)) == 0
    with stopping_after_a_checkpoint():
        assert command(*words_of(loss, photos, stopped)) == 130
    assert command(*words_of(loss, photos, stopped)) == 0
    assert_same_runs(whole, stopped)
    if loss in FINE_TUNED:
        assert_serves_its_embeddings(stopped)
        last = keras.saving.load_model(stopped / "last.keras", compile=False)
        assert not models.has_lora(last)
        if "--ema" in str(LOSSES[loss]):
            # The evaluated weights are averages. The checkpoint has the raw weights.
            kernel = last.get_layer("projection").kernel.numpy()
            raw = [each for each in final_weights(stopped).values() if each.shape == kernel.shape]
            assert not np.array_equal(raw[0], kernel)


@tiers.thorough
def test_unsupported_strategies_are_refused_in_one_line(photos, tmp_path):
    command = ["experiments.run", *ARGUMENTS, "--loss=ce", f"--data_dir={photos}"]
    command += [f"--output_dir={tmp_path / 'run'}"]
    for backend, strategy in (("torch", "mirrored"), ("jax", "multi_worker")):
        said = finish(start(backend, *command, f"--strategy={strategy}"), code=2)
        assert said.startswith("error: ") and said.count("\n") == 1


@tiers.thorough
@pytest.mark.parametrize("backend", ["jax", "torch"])
def test_a_run_is_exported_to_every_format(backend, photos, tmp_path):
    """The export has the same `KERAS_BACKEND`. Formats without their package are skipped."""
    folder = tmp_path / "run"
    command = ["experiments.run", *TINY, "--loss=contrastive", f"--data_dir={photos}"]
    finish(start(backend, *command, f"--output_dir={folder}"))
    packages = {"saved_model": "tensorflow", "onnx": "tf2onnx", "openvino": "openvino"}
    packages["litert"] = "ai_edge_litert"
    for name, package in packages.items():
        if importlib.util.find_spec(package) is None:
            continue
        finish(start(backend, "experiments.export", f"--run={folder}", f"--format={name}"))
        facts = json.loads((folder / "exports" / name / "export.json").read_text())
        assert facts["difference"] < 1e-4 * facts["length"]
        assert facts["recalls"] == pytest.approx(facts["keras_recalls"])
