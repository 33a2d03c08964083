"""Head epochs, LoRA, and weight averages: training, resuming, and exporting."""

import keras
import numpy as np
import pytest
from tiny_run import (
    TINY,
    assert_same_weights,
    assert_serves_its_embeddings,
    command,
    final_weights,
    history,
    stopping_after_a_checkpoint,
)
from tiny_transformer import tiny_transformer

from experiments.options import RunOptions, UsageError, data, parse
from experiments.training import encoders
from experiments.training.fit import Trainability
from experiments.training.optimizer import backbone_optimizer, optimizer, scheduled
from keras_dml import models, optimizers

RUN = [*TINY, "--epochs=3", "--deterministic"]


def options(*words):
    return parse(RunOptions, ["run", *words])


NO_BLOCKS = [
    (["--lora_rank=2"], "lora_layers must be layers of small_convnet"),
    (["--rematerialize"], "backbone must be a transformer"),
    (["--levels=,"], "levels must be different layers of the backbone"),
    (["--levels=stage9_conv2_relu"], "levels must be different layers of the backbone"),
]


@pytest.mark.parametrize(("flags", "message"), NO_BLOCKS)
def test_flags_that_a_convolutional_net_does_not_support(flags, message):
    small = ["--backbone=small_convnet", "--filters=4", "--weights=none", "--image_size=16"]
    with pytest.raises(ValueError, match=message):
        encoders.embedding_model(options(*small, *flags))


def test_flags_configure_every_optimizer_and_schedule():
    for name, made in optimizers.OPTIMIZERS.items():
        found = optimizer(
            options(f"--optimizer={name}", "--weight_decay=0.1", "--global_clipnorm=2"), 0.1
        )
        assert type(found) is made
        decays = {"coupled": found.coupled_weight_decay, "decoupled": found.decoupled_weight_decay}
        expected = "decoupled" if name == "adamw" else "coupled"
        assert decays.pop(expected) == 0.1
        assert [*decays.values()] == [0.0]
        assert found.global_clipnorm == 2
    for name in optimizers.SCHEDULES:
        rate = scheduled(options(f"--schedule={name}", *STEP.get(name, [])), 0.5, 10)
        assert callable(rate) == (name != "constant")


STEP = {"step": ["--decay_steps=4", "--decay_factor=0.5"]}


def test_the_step_schedule():
    rate = scheduled(options("--schedule=step", *STEP["step"]), 0.8, 10)
    assert [float(rate(i)) for i in (0, 3, 4, 7, 8)] == pytest.approx([0.8, 0.8, 0.4, 0.4, 0.2])
    with pytest.raises(UsageError, match="decay_steps must be set for schedule=step"):
        scheduled(options("--schedule=step"), 0.8, 10)
    with pytest.raises(UsageError, match="schedule must be step with --decay_steps"):
        scheduled(options("--decay_steps=3"), 0.8, 10)


def test_layer_decay_is_multiplied_by_pretrained_factor():
    flags = ["--layer_decay=0.5", "--pretrained_factor=0.1", "--ema=0.9"]
    made = backbone_optimizer(options(*flags), [tiny_transformer()], 0.1)
    found = sorted(set(made.learning_rate_multipliers.values()))
    assert found == pytest.approx([0.0125, 0.025, 0.05, 0.1])
    assert made.use_ema and made.ema_momentum == 0.9


@pytest.mark.parametrize("words", ["--layer_decay=0", "--ema=1"])
def test_values_that_would_prevent_training_are_refused(words):
    name, value = words.removeprefix("--").split("=")
    with pytest.raises(ValueError, match=rf"^{name} must be .*{value}\.0"):
        backbone_optimizer(options(words), [tiny_transformer()], 0.1)


def test_trainability_is_restored_after_head_epochs():
    backbone = tiny_transformer()
    models.enable_lora(backbone, 2)
    backbone.get_layer("patches").trainable = True
    expected = [v.path for v in backbone.trainable_variables]
    kept = Trainability(backbone)
    kept.freeze()
    assert backbone.trainable_variables == []
    kept.restore()
    assert [v.path for v in backbone.trainable_variables] == expected


# Tests of whole runs.


@pytest.fixture
def transformer(monkeypatch):
    """Replace the backbone by a tiny transformer with seeded weights."""
    monkeypatch.setattr(models, "build_backbone", lambda *_: tiny_transformer(seed=3))


CASES = {
    "head_epochs": ["--loss=ce", "--head_epochs=1", "--ema=0.7", "--optimizer=adamw"],
    "lora": ["--loss=multi_similarity", "--lora_rank=2", "--ema=0.5", "--weight_decay=0.1"],
    "layers": ["--loss=ce", "--layer_decay=0.5", "--rematerialize", "--global_clipnorm=0.5"],
    "rankmi": ["--loss=rankmi", "--head_epochs=1", "--ema=0.5", "--optimizer=rmsprop"],
}


@pytest.mark.thorough
@pytest.mark.slow
@pytest.mark.usefixtures("transformer")
@pytest.mark.parametrize("case", CASES)
def test_a_run_stopped_after_each_epoch_ends_the_same(case, photos, tmp_path):
    flags = [*RUN, "--learning_rate=0.01", f"--data_dir={photos}", *CASES[case]]
    assert command(*flags, f"--output_dir={tmp_path / 'whole'}") == 0
    stopped = tmp_path / "stopped"
    with stopping_after_a_checkpoint():
        for _ in range(3):
            assert command(*flags, f"--output_dir={stopped}") == 130
    assert command(*flags, f"--output_dir={stopped}") == 0
    assert history(stopped) == history(tmp_path / "whole")
    assert_same_weights(tmp_path / "whole", stopped)
    last, again = (
        keras.saving.load_model(folder / "last.keras", compile=False).get_weights()
        for folder in (tmp_path / "whole", stopped)
    )
    for a, b in zip(last, again):
        np.testing.assert_array_equal(a, b)
    trained = keras.saving.load_model(stopped / "last.keras", compile=False)
    before, after = (
        model.get_layer("patches").kernel.numpy() for model in (tiny_transformer(seed=3), trained)
    )
    assert np.array_equal(before, after) == (case == "lora")
    _check_exported(stopped, case)


def _check_exported(folder, case):
    """Check that the SavedModel returns the evaluation's embeddings and has no LoRA weights."""
    assert_serves_its_embeddings(folder)
    assert not models.has_lora(keras.saving.load_model(folder / "best.keras", compile=False))
    if "--ema" in str(CASES.get(case)):
        # The evaluated weights are averages. The checkpoint has the raw weights.
        raw = [array for array in final_weights(folder).values() if array.shape == (8, 8)]
        (kernel,) = (
            layer.kernel.numpy()
            for layer in keras.saving.load_model(folder / "last.keras", compile=False).layers
            if layer.name == "projection"
        )
        assert raw
        assert not np.array_equal(raw[0], kernel)


@pytest.mark.slow
def test_training_images_can_be_smaller_than_test_images(photos, tmp_path):
    flags = [*RUN, "--loss=ce", f"--data_dir={photos}", "--training_size=12"]
    assert data.training_transform(options(*flags)).image_size == 12
    assert command(*flags, f"--output_dir={tmp_path}") == 0
    best = keras.saving.load_model(tmp_path / "best.keras", compile=False)
    assert best.input_shape == (None, 16, 16, 3)
    _check_exported(tmp_path, None)


@pytest.mark.usefixtures("transformer")
def test_a_training_size_that_the_backbone_does_not_accept(photos, tmp_path, capsys):
    flags = [*RUN, f"--data_dir={photos}", f"--output_dir={tmp_path}", "--training_size=12"]
    assert command(*flags) == 2
    assert "training_size must be image_size=16 for backbone small" in capsys.readouterr().err
