"""Clipping, loss scaling, and a custom training loop: several devices must equal one device."""

import clipped_training
import device_programs
import keras
import numpy as np
import pytest
from device_programs import difference
from once import once

from keras_dml import optimizers

pytestmark = [pytest.mark.slow, pytest.mark.thorough]  # all wait for the same long programs


@once
def program(devices):
    """Return the output of `clipped_training.py` for 2 devices (and 1, and refusals) or for 4."""
    return device_programs.printed("clipped_training", devices)


def results(of):
    """Return the results on "1", "2", or "4" devices, or the "refusals"."""
    return program(4 if of == "4" else 2)[of]


RUNS = [
    f"{case} {clipping}"
    for case in clipped_training.CASES
    for clipping in clipped_training.clippings(case)
]


@pytest.mark.parametrize("devices", ["2", "4"])
@pytest.mark.parametrize("run", [run for run in RUNS if not run.startswith("stock")])
def test_the_weights_equal_one_device(run, devices):
    assert difference(results("1")["runs"][run], results(devices)["runs"][run]) < 1e-5


@pytest.mark.parametrize("run", [run for run in RUNS if run.split()[0] in ("ours", "keras_sgd")])
def test_the_clipping_thresholds_are_low_enough_to_matter(run):
    runs = results("1")["runs"]
    assert difference(runs[run], runs[f"{run.split()[0]} none"]) > 0.1


def test_clipping_before_the_sum_gives_other_weights():
    """Plain Keras clips each replica's part, so the comparison above can fail."""
    run = "stock global_clipnorm"
    assert difference(results("1")["runs"][run], results("2")["runs"][run]) > 0.01


@pytest.mark.parametrize("devices", ["1", "2", "4"])
def test_an_overflow_on_any_replica_skips_the_step_and_lowers_the_scale(devices):
    found = results(devices)["overflow"]
    assert found["after"] == found["before"]
    assert found["scale"] == 2.0**14


@pytest.mark.parametrize("devices", ["2", "4"])
def test_a_custom_loop_needs_no_scaling(devices):
    """The example in the guide to devices; its loss equals the loss of the global batch."""
    expected, found = results("1")["loop"], results(devices)["loop"]
    assert difference(expected["weights"], found["weights"]) < 1e-5
    assert found["loss"] == pytest.approx(expected["loss"], rel=1e-5)
    assert len(found["loss"]) == 5 and found["loss"][-1] < found["loss"][0]


@pytest.mark.parametrize("name", clipped_training.REFUSED)
def test_unsupported_cases_on_replicas_are_one_line(name):
    argument = "jit_compile" if "jit" in name else "gradient_accumulation_steps"
    value = True if "jit" in name else 2
    message = results("refusals")[name]
    assert message.startswith(f"ArgumentError: {argument} must be ")
    assert f"several replicas, but got {value}." in message and "\n" not in message


def test_a_loaded_optimizer_clips_and_accumulates_on_one_device():
    """With one replica, Keras' methods work."""
    for arguments in ({"global_clipnorm": 0.5}, {"gradient_accumulation_steps": 2}):
        found = []
        for made in (keras.optimizers.SGD, optimizers.SGD):
            optimizer = made(0.1, **arguments)
            optimizer = keras.saving.deserialize_keras_object(
                keras.saving.serialize_keras_object(optimizer)
            )
            weights = keras.Variable(np.arange(4.0), dtype="float32")
            for step in range(1, 5):
                optimizer.apply([keras.ops.ones(4) * step], [weights])
            found.append(weights.numpy())
        np.testing.assert_array_equal(*found)
        assert not np.array_equal(found[0], np.arange(4.0))
