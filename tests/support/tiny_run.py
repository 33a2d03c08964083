"""Runs of a few seconds, in this process or in another one, and their outputs."""

import contextlib
import importlib
import json
import pathlib
import subprocess
import time

import keras
import numpy as np
import processes
import pytest
import tensorflow as tf

from experiments.options import RunOptions, parse, run_command
from experiments.training.run_folder import RunFolder
from keras_dml._files.manifest import Manifest

TINY = [
    "--dataset=folder",
    "--image_size=16",
    "--crop=fixed",
    "--backbone=small_convnet",
    "--weights=none",
    "--embedding_size=8",
    "--sampler=balanced",
    "--batch_size=8",
    "--images_per_class=2",
    "--optimizer=adam",
    "--learning_rate=0.001",
    "--epochs=2",
    "--recall_at=1,2",
]

# Three steps per epoch, so that RankMI stops between its two alternating updates.
TINY_EPOCHS = [
    *("--epochs=4", "--steps_per_epoch=3", "--eval_every=2"),
    *("--jitter=0.2,0.2,0.2,0.1", "--deterministic"),
]

# For several workers, without photos. 132 test images are not a multiple of the batch size, per
# worker or in total.
TINY_GLYPHS = [
    *("--dataset=glyphs", "--train_classes=20", "--test_classes=11"),
    *("--image_size=16", "--resize=18", "--crop=fixed", "--batch_size=24"),
    *("--backbone=small_convnet", "--filters=8", "--weights=none", "--frozen_batch_norm"),
    *("--embedding_size=8", "--loss=ce", "--eval_batch_size=7", "--recall_at=1,2"),
]


def run_options(*words):
    """Return the options of a run with these flags."""
    return parse(RunOptions, ["run", *words])


def small_encoder(length=6):
    """Return a small model from images of 16 pixels to embeddings."""
    keras.utils.set_random_seed(0)
    layers = [keras.layers.Rescaling(1 / 255), keras.layers.Conv2D(4, 3, strides=3)]
    layers += [keras.layers.Flatten(), keras.layers.Dense(length)]
    return keras.Sequential([keras.Input([16, 16, 3]), *layers])


def write_run(folder, model, *more):
    """Write the files of a run that other commands read: its best model, and its flags."""
    folder.mkdir()
    manifest = Manifest(folder)
    model.save(manifest.staged("best.keras"))
    manifest.commit(["best.keras"])
    (folder / "flags.txt").write_text("\n".join([*TINY, *more]) + "\n")


def final_weights(folder):
    with np.load(folder / "checkpoint.npz") as saved:
        return {name: saved[name] for name in saved.files if name.startswith("variable_")}


def history(folder):
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [{k: v for k, v in row.items() if k != "train/seconds"} for row in rows]


def command_of(name):
    """Return a function that runs a command in this process and returns its exit code."""
    main = importlib.import_module(f"experiments.{name}").main
    return lambda *arguments: run_command(main, [name, *map(str, arguments)])


command = command_of("run")


def finished_run(folder, photos, *more):
    """Run for a few seconds on these photos and return the run's folder."""
    assert command(*TINY, f"--data_dir={photos}", f"--output_dir={folder}", *more) == 0
    return folder


@contextlib.contextmanager
def stopping_after_a_checkpoint():
    """Within the block, a run stops after its first checkpoint."""
    save = RunFolder.save_checkpoint

    def save_and_stop(self, *given):
        save(self, *given)
        self.close()
        raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RunFolder, "save_checkpoint", save_and_stop)
        yield


def start(*words, **environment):
    """Start `python -m` with these words, with stderr in stdout."""
    return processes.start("-m", *words, stderr=subprocess.STDOUT, **environment)


def finish(process, code=0):
    """Return the output of a process, which must end with this exit code."""
    (output,) = processes.finish([process], code=code)
    return output


def kill_when(ready, process, folder):
    """Kill a run with SIGKILL as soon as `ready()` is true, before the run has its result."""
    deadline = time.monotonic() + 300
    while not ready() and time.monotonic() < deadline:
        assert process.poll() is None, process.communicate()[0]
        time.sleep(0.001)
    process.kill()
    process.communicate()
    assert not (folder / "result.json").exists(), "killed too late to show anything"


def assert_same_weights(expected, found):
    """Check that the checkpoints of two runs have the same weights, to the bit."""
    np.testing.assert_equal(final_weights(found), final_weights(expected))


def assert_same_runs(expected, found):
    """Check that two runs have the same weights, logs, and embeddings, to the bit."""
    assert_same_weights(expected, found)
    assert history(expected) == history(found)
    saved = [np.load(folder / "test_embeddings.npz")["embeddings"] for folder in (expected, found)]
    np.testing.assert_array_equal(*saved)


def assert_serves_its_embeddings(folder):
    """Check that a run's SavedModel returns the embeddings of its evaluation."""
    served = tf.saved_model.load(str(folder / "saved_model")).signatures["serving_default"]
    with np.load(folder / "test_embeddings.npz") as saved:
        encoded = [pathlib.Path(path).read_bytes() for path in saved["paths"]]
        ours = served(tf.constant(encoded))["embeddings"].numpy()
        np.testing.assert_allclose(ours, saved["embeddings"], atol=1e-4)
