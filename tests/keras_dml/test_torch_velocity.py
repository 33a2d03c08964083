"""`SGD(velocity="torch")` against PyTorch's SGD and a NumPy loop, under a changing rate."""

import json

import keras
import numpy as np
import pytest
from device_programs import difference
from peers import torch_sgd as peer

from keras_dml import optimizers

pytestmark = pytest.mark.any_backend


def apply(optimizer, variables, gradients):
    optimizer.apply(
        [keras.ops.convert_to_tensor(g.astype("float32")) for g in gradients], variables
    )


def trained(optimizer, variables, steps):
    """Return the weights after each step."""
    reached = []
    for gradients in steps:
        apply(optimizer, variables, gradients)
        reached.append([keras.ops.convert_to_numpy(variable) for variable in variables])
    return reached


def torch_loop(w, gradients, rates, momentum, nesterov=False, decay=0.0):
    """Return weights after each step of `v ← μ v + g`, `w ← w − rate · (g + μ v)`, in float64."""
    velocity, reached = np.zeros_like(w), []
    for g, rate in zip(gradients, rates, strict=True):
        g = g + decay * w
        velocity = momentum * velocity + g
        w = w - rate * (g + momentum * velocity if nesterov else velocity)
        reached.append(w)
    return reached


@pytest.fixture(scope="module")
def golden():
    with np.load(peer.FILE) as arrays:
        return dict(arrays)


@pytest.mark.parametrize("case", peer.CASES)
def test_the_weights_match_pytorch_with_warm_up_decay_and_a_factor(case, golden):
    layer = keras.layers.Dense(4)
    layer.build((None, 3))
    layer.set_weights([golden["kernel"], golden["bias"]])
    optimizer = optimizers.SGD(
        optimizers.WarmCosine(peer.RATE, peer.STEPS, peer.WARMUP),
        **peer.CASES[case],
        velocity="torch",
        coupled_weight_decay=peer.DECAY,
        learning_rate_multipliers={layer.bias.path: peer.BIAS_FACTOR},
    )
    steps = zip(golden["kernel_gradients"], golden["bias_gradients"])
    reached = trained(optimizer, [layer.kernel, layer.bias], steps)
    rates = [peer.RATE * peer.share(step) for step in range(peer.STEPS)]
    written_out = {
        "kernel": torch_loop(
            golden["kernel"], golden["kernel_gradients"], rates, **peer.CASES[case],
            decay=peer.DECAY,
        ),
        "bias": torch_loop(
            golden["bias"], golden["bias_gradients"], np.multiply(rates, peer.BIAS_FACTOR),
            **peer.CASES[case],
        ),
    }  # fmt: skip
    for i, name in enumerate(("kernel", "bias")):
        expected = golden[f"{case}/{name}"]
        np.testing.assert_allclose(written_out[name], expected, rtol=1e-12, atol=1e-12)
        ours = np.stack([weights[i] for weights in reached])
        np.testing.assert_allclose(ours, expected, rtol=1e-5, atol=1e-5)


def test_both_velocities_are_equal_at_a_constant_rate(golden):
    reached = {}
    for velocity in optimizers.VELOCITIES:
        variable = keras.Variable(golden["kernel"].astype("float32"))
        optimizer = optimizers.SGD(0.05, momentum=0.9, nesterov=True, velocity=velocity)
        reached[velocity] = trained(optimizer, [variable], golden["kernel_gradients"][:, None])
    np.testing.assert_allclose(reached["torch"], reached["keras"], rtol=1e-5, atol=1e-5)


def test_a_saved_optimizer_keeps_its_velocity_which_defaults_to_keras():
    optimizer = optimizers.SGD(0.1, momentum=0.9, velocity="torch")
    saved = keras.saving.serialize_keras_object(optimizer)
    assert keras.saving.deserialize_keras_object(json.loads(json.dumps(saved))).velocity == "torch"
    # Versions without this argument saved configurations without it.
    del saved["config"]["velocity"]
    assert keras.saving.deserialize_keras_object(saved).velocity == "keras"
    assert optimizers.SGD(0.1).velocity == "keras"


def test_a_resumed_training_takes_the_same_steps(tmp_path):
    """The velocity is restored from the file, and the schedule continues."""
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(8, 3)).astype("float32"), rng.normal(size=(8, 4)).astype("float32")
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(4)])
    schedule = optimizers.WarmCosine(0.1, 12, 6)
    model.compile(optimizers.SGD(schedule, momentum=0.9, nesterov=True, velocity="torch"), "mse")
    fit = {"batch_size": 8, "epochs": 4, "shuffle": False, "verbose": 0}
    model.fit(x, y, **fit)
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    assert loaded.optimizer.velocity == "torch"
    for each in (model, loaded):
        each.fit(x, y, **fit)
    assert difference(model.get_weights(), loaded.get_weights()) < 1e-6


@pytest.mark.skipif(not hasattr(keras.optimizers, "MultiOptimizer"), reason="needs Keras 3.15")
def test_each_optimizer_in_a_multi_optimizer_keeps_its_velocity(golden):
    layer = keras.layers.Dense(4)
    layer.build((None, 3))
    layer.set_weights([golden["kernel"], golden["bias"]])
    schedule = optimizers.WarmCosine(0.05, peer.STEPS, 15)
    by_name = {
        "kernel": optimizers.SGD(schedule, momentum=0.9, nesterov=True, velocity="torch"),
        "bias": optimizers.SGD(schedule, momentum=0.9, nesterov=True),
    }
    several = keras.optimizers.MultiOptimizer(lambda variable: by_name[variable.name])
    steps = zip(golden["kernel_gradients"], golden["bias_gradients"])
    kernel, bias = trained(several, layer.trainable_variables, steps)[-1]
    rates = [0.05 * peer.share(step) for step in range(peer.STEPS)]
    expected = {
        name: torch_loop(golden[name], golden[f"{name}_gradients"], rates, 0.9, True)[-1]
        for name in by_name
    }
    np.testing.assert_allclose(kernel, expected["kernel"], rtol=1e-5, atol=1e-5)
    assert np.abs(bias - expected["bias"]).min() > 1e-3
