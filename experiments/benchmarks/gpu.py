"""Losses and training steps on JAX's first device, each in a process of its own."""

import json
import os
import sys
from collections.abc import Callable, Sequence
from typing import Any

# Before JAX looks for devices: else it takes three quarters of the memory, and the peer has none.
os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")

import jax
import keras
import numpy as np

from experiments.benchmarks.measured import IMAGES_PER_CLASS, made_batch, peer_step
from experiments.benchmarks.timing import SECONDS, Step, milliseconds, milliseconds_in_turns
from experiments.options.child import end_with_parent
from keras_dml import losses, models

EMBEDDING_SIZE = 128


def loss_rows(name: str, dimensions: int, sizes: Sequence[int]) -> None:
    """Print a JSON object for each size, rising: n, ms, floor, mb, off, peer, peer_mb.

    `mb` and `peer_mb` are null where the device does not say, `peer` where there is none; `off`,
    for the first size, is the gradient's relative difference from one in float64 on the CPU.
    """
    device, torch_device = jax.devices()[0], _torch_device()
    for size in sizes:
        labels, embeddings = made_batch(size, dimensions)
        before = _bytes(device, "bytes_in_use")
        z = jax.device_put(embeddings, device)
        step = jax.jit(_value_and_gradient(losses.get(name), labels))
        row: dict[str, Any] = {"n": size, "device": device.device_kind}
        jax.block_until_ready(step(z))
        peak = _bytes(device, "peak_bytes_in_use")
        row["mb"] = None if peak is None or before is None else (peak - before) / 2**20
        steps = {"ms": _ready(step, z), "floor": _ready(_floor, z)}
        row.update(milliseconds_in_turns(steps, 2 * SECONDS))
        row["off"] = _error(name, labels, step(z)[1]) if size == sizes[0] else None
        row["peer"] = row["peer_mb"] = None
        if peer := peer_step(name, labels, embeddings, torch_device):
            row["peer"] = milliseconds(peer)
            row["peer_mb"] = _peak_of_torch()
        print(json.dumps(row), flush=True)


def training_row(backbone: str, image_size: int, batch_size: int, name: str) -> None:
    """Print a JSON object: milliseconds of a step in bfloat16, and of one without a loss."""
    keras.config.set_dtype_policy("mixed_bfloat16")
    shape = (batch_size, image_size, image_size, 3)
    images = np.random.default_rng(0).integers(0, 256, shape, np.uint8).astype("float32")
    data = jax.device_put((images, np.arange(batch_size) // IMAGES_PER_CLASS))

    def step(loss: Any) -> Callable[[], float]:
        keras.utils.set_random_seed(0)
        trunk = models.build_backbone(backbone, image_size, None)
        model = models.embedding_model(trunk, EMBEDDING_SIZE)
        model.compile(keras.optimizers.SGD(1e-4), loss)
        return lambda: float(model.train_on_batch(*data))

    steps = {
        "without": step(lambda _, z: keras.ops.sum(z, axis=-1)),
        "ms": step(losses.get(name)),
    }
    row = milliseconds_in_turns(steps, 5 * SECONDS)
    print(json.dumps(row | {"device": jax.devices()[0].device_kind}))


def _ready(function: Callable[..., Any], *arguments: Any) -> Step:
    return lambda: jax.block_until_ready(function(*arguments))


@jax.jit
def _floor(x: Any) -> Any:
    with jax.default_matmul_precision("highest"):
        return x @ x.T @ x


def _value_and_gradient(loss: keras.losses.Loss, labels: np.ndarray) -> Callable[..., Any]:
    return jax.value_and_grad(lambda z: loss(labels, z))


def _error(name: str, labels: np.ndarray, gradient: Any) -> float:
    found = np.asarray(gradient, "float64")
    _, embeddings = made_batch(*found.shape)
    with jax.enable_x64(True), jax.default_device(jax.devices("cpu")[0]):
        step = _value_and_gradient(losses.get(name, dtype="float64"), labels)
        exact = np.asarray(step(jax.numpy.asarray(embeddings, "float64"))[1])
    if exact.dtype != np.float64:
        raise TypeError(f"the yardstick is {exact.dtype}")
    return float(np.linalg.norm(found - exact) / np.linalg.norm(exact))


def _bytes(device: Any, name: str) -> int | None:
    return (device.memory_stats() or {}).get(name)


def _torch_device() -> str:
    try:
        import torch
    except ImportError:
        return "cpu"
    return "cuda" if torch.cuda.is_available() else "cpu"


def _peak_of_torch() -> float | None:
    import torch

    return torch.cuda.max_memory_allocated() / 2**20 if torch.cuda.is_available() else None


if __name__ == "__main__":
    end_with_parent()
    what, first, *others = sys.argv[1:]
    if what == "loss":
        loss_rows(first, int(others[0]), [int(size) for size in others[1:]])
    else:
        training_row(first, int(others[0]), int(others[1]), others[2])
