"""Runs on KerasHub presets and a Keras file: training, resuming, exporting, and serving."""

import keras
import numpy as np
import pytest
from hub_presets import preset
from processes import run_python
from tiny_run import (
    TINY,
    assert_same_weights,
    assert_serves_its_embeddings,
    command,
    command_of,
    final_weights,
    history,
    stopping_after_a_checkpoint,
)

from keras_dml import models

pytestmark = pytest.mark.slow
WORDS = [word for word in TINY if word.split("=")[0] not in ("--backbone", "--weights")]
WORDS += [
    "--optimizer=sgd",
    "--pretrained_factor=0.5",
    "--learning_rate=0.01",
    "--steps_per_epoch=2",
    "--deterministic",
]
KINDS = ("dinov2", "dinov3", "vit", "siglip", "file")


def backbone_of(kind, root):
    """Save a tiny random backbone in `root`. Return its flag."""
    if kind == "file":
        inputs = keras.Input((None, None, 3))
        x = keras.layers.Rescaling(1 / 255)(inputs)
        x = keras.layers.Conv2D(8, 3, strides=2, name="projection")(x)
        keras.Model(inputs, keras.layers.BatchNormalization()(x)).save(root / "mine.keras")
        return f"--backbone={root / 'mine.keras'}"
    pytest.importorskip("keras_hub", reason="KerasHub is in the extra hub")
    preset(kind, root / kind)
    return f"--backbone=hub:{root / kind}"


@pytest.mark.thorough
@pytest.mark.parametrize("kind", KINDS)
def test_training_resuming_exporting_and_serving(kind, photos, tmp_path, capfd):
    words = [*WORDS, f"--data_dir={photos}", backbone_of(kind, tmp_path)]
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    assert command(*words, f"--output_dir={whole}") == 0
    with stopping_after_a_checkpoint():
        assert command(*words, f"--output_dir={killed}") == 130
    assert command(*words, f"--output_dir={killed}") == 0
    assert "continued after epoch 1" in capfd.readouterr().out
    assert_same_weights(whole, killed)
    assert history(whole) == history(killed) and len(history(whole)) == 2

    assert_serves_its_embeddings(whole)
    assert models.load_keras_file(whole / "best.keras").output_shape == (None, 8)
    assert command_of("evaluate")(f"--run={whole}") == 0
    assert "weights: its own" in (whole / "report.html").read_text()


TUNED = [
    ["--lora_rank=2"],
    ["--head_epochs=1", "--epochs=2"],
    ["--freeze_backbone", "--cache_features", "--cached_views=2"],
    ["--rematerialize", "--layer_decay=0.7"],
    ["--ema=0.5", "--global_clipnorm=0.1"],
]


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("kind", "more"), [*((kind, []) for kind in KINDS), *(("vit", more) for more in TUNED)]
)
def test_two_devices_train_the_same_as_one(kind, more, photos, tmp_path):
    words = [word for word in WORDS if word.split("=")[0] not in {x.split("=")[0] for x in more}]
    words += [f"--data_dir={photos}", backbone_of(kind, tmp_path), "--epochs=1", *more]
    if "--rematerialize" in more:  # layer_decay replaces pretrained_factor
        words.remove("--pretrained_factor=0.5")
    found = []
    for devices in ([], ["--strategy=mirrored", "--logical_devices=2"]):
        folder = tmp_path / f"on {len(devices) or 1}"
        run_python("-m", "experiments.run", *words, *devices, f"--output_dir={folder}")
        found.append(final_weights(folder))
    assert found[0].keys() == found[1].keys()
    for name, values in found[0].items():
        np.testing.assert_allclose(values, found[1][name], rtol=1e-4, atol=1e-5, err_msg=name)
