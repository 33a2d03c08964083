"""Joint training: a loss, plus a weighted loss over pairs."""

import keras
import numpy as np
import pytest
from tiny_run import TINY, finished_run, history

from experiments.options import RunOptions, parse
from experiments.options.errors import UsageError
from experiments.training.objectives import objective_of
from keras_dml import losses


def options(*words):
    return parse(RunOptions, ["run", *TINY, *words])


def embedding():
    inputs = keras.Input((6,))
    return keras.Model(inputs, keras.layers.Dense(4, name="embedding")(inputs))


@pytest.mark.parametrize("first", ["ce", "contrastive"])
def test_the_loss_is_the_sum_of_both_with_the_weight(first):
    words = [
        f"--loss={first}",
        "--also=tcm",
        "--also_weight=0.5",
        "--also_flags=negative_margin=0.2",
    ]
    objective = objective_of(options(*words))
    model = objective.training_model(embedding(), 3)
    model.compile("sgd", **objective.compile_arguments(10))
    ids = np.array([0, 0, 1, 1, 2, 2])
    x = np.random.default_rng(0).normal(size=(6, 6)).astype("float32")
    outputs = model(x)
    found = model.evaluate(x, dict.fromkeys(objective.outputs(), ids), verbose=0, return_dict=True)
    one = losses.get(first)(ids, outputs["first"])
    other = losses.ThresholdConsistentMarginLoss(negative_margin=0.2)(ids, outputs["also"])
    assert found["loss"] == pytest.approx(float(one) + 0.5 * float(other), rel=1e-5)
    assert outputs["first"].shape[1] == (3 if first == "ce" else 4)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--loss=ce", "--also=arcface"], "also must be one of .*, but got arcface"),
        (["--loss=arcface", "--also=tcm"], "also must come with a loss over pairs or with ce"),
        (["--loss=contrastive", "--also=tcm", "--memory_size=9"], "also .*memory_size"),
        (
            ["--loss=ce", "--also=tcm", "--also_flags=scale=2"],
            "also_flags must be an argument of tcm",
        ),
    ],
)
def test_combinations_without_a_second_loss_are_refused(words, message):
    with pytest.raises(UsageError, match=message):
        objective_of(options(*words))


@pytest.mark.slow
def test_a_joint_run(photos, tmp_path):
    folder = finished_run(tmp_path / "run", photos, "--loss=ce", "--also=tcm")
    for row in history(folder):
        total = row["train/first_loss"] + row["train/also_loss"]
        assert row["train/loss"] == pytest.approx(total, rel=1e-3)
