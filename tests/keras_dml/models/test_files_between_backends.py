"""Files of compiled models continue training on every backend, whichever backend saved them."""

import importlib.util
import json

import keras
import numpy as np
import pytest
import tiers
from backend_files import KINDS, OPTIMIZERS, around, compiled
from processes import finish, start

from keras_dml import losses, models

BACKENDS = [
    name for name in ("tensorflow", "jax", "torch") if importlib.util.find_spec(name) is not None
]
TORCH = "keras.src.backend.torch.optimizers.torch_adam"


@pytest.mark.any_backend
@pytest.mark.parametrize("kind", KINDS)
def test_the_configuration_names_public_optimizers_and_keeps_auto(kind):
    config = compiled(kind, "adam").get_compile_config()
    assert config["jit_compile"] == "auto"
    for name in ("optimizer", *(["statistics_optimizer"] if kind == "rankmi" else [])):
        assert config[name]["module"] == "keras.optimizers"
        assert config[name]["class_name"] == "Adam"
    json.dumps(config)


@pytest.mark.any_backend
@pytest.mark.parametrize("kind", KINDS)
def test_files_of_earlier_releases_from_pytorch_load(kind):
    model = compiled(kind, "adam")
    config = model.get_compile_config()
    for name in ("optimizer", "statistics_optimizer"):
        if name in config:
            config[name] |= {"module": TORCH, "registered_name": "Adam"}
    model.compile_from_config(config)
    assert isinstance(model.optimizer, keras.optimizers.Adam)
    assert model.get_compile_config()["optimizer"]["module"] == "keras.optimizers"


def test_a_set_jit_compile_is_kept():
    model = around(models.DistributedModel)
    model.compile("adam", losses.NTXentLoss(), jit_compile=True)
    assert model.get_compile_config()["jit_compile"] is True


def continued(folder, cases):
    """Train on all backends, then continue each file on all backends."""
    for _ in range(2):
        # JAX compiles each program for a few steps.
        environment = {"JAX_DISABLE_MOST_OPTIMIZATIONS": "1"}
        words = ["-m", "tests.support.backend_files", folder, *cases]
        outs = finish([start(*words, KERAS_BACKEND=name, **environment) for name in BACKENDS], 3000)
    return {name: json.loads(out.splitlines()[-1]) for name, out in zip(BACKENDS, outs)}


def check(folder, cases):
    found = continued(folder, cases)
    for case in cases:
        for writer in BACKENDS:
            expected = found[writer][case][writer]
            for reader in BACKENDS:
                message = f"{case}: {writer} to {reader}"
                np.testing.assert_allclose(
                    found[reader][case][writer], expected, rtol=2e-3, atol=2e-4, err_msg=message
                )


@pytest.mark.any_backend
@pytest.mark.skipif(
    keras.backend.backend() != "torch" or len(BACKENDS) < 3,
    reason="needs all backends, in the gate's environment with PyTorch",
)
def test_training_continues_between_every_pair_of_backends(tmp_path):
    of_kinds = [f"{kind}:adam" for kind in KINDS]
    check(tmp_path, [*of_kinds, "distributed:sgd", "distributed:scaled", "distributed:ours"])


@tiers.thorough
@pytest.mark.any_backend
def test_every_kind_and_optimizer_continues_between_every_pair_of_backends(tmp_path):
    check(tmp_path, [f"{kind}:{optimizer}" for kind in KINDS for optimizer in OPTIMIZERS])
