"""`SGD(velocity="torch")` against PyTorch's SGD under a changing rate."""

import json

import keras
import numpy as np
import pytest
from peers import torch_sgd as peer

from keras_dml import optimizers

pytestmark = pytest.mark.any_backend


def trained(optimizer, variables, steps):
    """Return the weights after each step."""
    reached = []
    for gradients in steps:
        gradients = [keras.ops.convert_to_tensor(g.astype("float32")) for g in gradients]
        optimizer.apply(gradients, variables)
        reached.append([keras.ops.convert_to_numpy(variable) for variable in variables])
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
    for i, name in enumerate(("kernel", "bias")):
        ours = np.stack([weights[i] for weights in reached])
        np.testing.assert_allclose(ours, golden[f"{case}/{name}"], rtol=1e-5, atol=1e-5)


def test_a_saved_optimizer_keeps_its_velocity_which_defaults_to_keras():
    optimizer = optimizers.SGD(0.1, momentum=0.9, velocity="torch")
    saved = keras.saving.serialize_keras_object(optimizer)
    assert keras.saving.deserialize_keras_object(json.loads(json.dumps(saved))).velocity == "torch"
    # Versions without this argument saved configurations without it.
    del saved["config"]["velocity"]
    assert keras.saving.deserialize_keras_object(saved).velocity == "keras"
    assert optimizers.SGD(0.1).velocity == "keras"
