"""Set seed, determinism, precision, and strategy."""

import os
from typing import Any

import keras
import tensorflow as tf

from experiments.options import RunOptions
from experiments.options.errors import UsageError


def threads() -> int:
    """Return the number of threads of a kernel, on which sums of floats depend."""
    if keras.backend.backend() == "torch":
        import torch

        return torch.get_num_threads()
    asked = tf.config.threading.get_intra_op_parallelism_threads()
    word = os.environ.get("TF_NUM_INTRAOP_THREADS", "")
    # TensorFlow counts the cores that this process can use.
    return asked or (int(word) if word.isdecimal() else 0) or len(os.sched_getaffinity(0))


def devices(options: RunOptions) -> tf.distribute.Strategy:
    """Set seed, determinism, and precision, and return the strategy.

    Call it before the backend is used.

    On JAX, several devices are a `keras.distribution` for the whole process. On PyTorch there is
    one device. The strategy is then TensorFlow's default, because TensorFlow's pipelines feed
    every backend.

    Raises:
        UsageError: if the devices cannot share a batch equally, or the backend does not support the
            strategy.
    """
    backend = keras.backend.backend()
    if backend != "tensorflow":
        _check_backend(options, backend)
    keras.utils.set_random_seed(options.seed)
    if options.deterministic:
        tf.config.experimental.enable_op_determinism()
    if backend == "tensorflow":
        return _tensorflow(options)
    # TensorFlow's pipelines run on the CPU. Keep its memory off the GPU.
    tf.config.set_visible_devices([], "GPU")
    _PREPARE[backend](options)
    return tf.distribute.get_strategy()


def _check_backend(options: RunOptions, backend: str) -> None:
    several = {"jax": ("multi_worker",), "torch": ("multi_worker", "mirrored")}[backend]
    if options.strategy in several:
        raise UsageError(
            f"strategy must be {'one' if backend == 'torch' else 'one, auto, or mirrored'} with "
            f"KERAS_BACKEND={backend}, but got {options.strategy}."
        )


def _jax(options: RunOptions) -> None:
    import jax

    if options.logical_devices > 1:
        jax.config.update("jax_num_cpu_devices", options.logical_devices)
    _set_policy(options, "mixed_bfloat16")
    found = keras.distribution.list_devices()
    if options.strategy == "auto":
        on_cpu = jax.default_backend() == "cpu"
        found = [] if on_cpu else _dividing(found, options.batch_size)
    if options.strategy == "one" or not found:
        return
    _check_shared(options, len(found))
    keras.distribution.set_distribution(
        keras.distribution.DataParallel(devices=found, auto_shard_dataset=False)
    )


def _torch(options: RunOptions) -> None:
    import torch

    if options.deterministic:
        torch.use_deterministic_algorithms(True)
    _set_policy(options, "mixed_float16" if torch.cuda.is_available() else "mixed_bfloat16")


_PREPARE = {"jax": _jax, "torch": _torch}


def _tensorflow(options: RunOptions) -> tf.distribute.Strategy:
    gpus = tf.config.list_physical_devices("GPU")
    for gpu in gpus:
        tf.config.experimental.set_memory_growth(gpu, True)
    if options.logical_devices > 1:
        tf.config.set_logical_device_configuration(
            tf.config.list_physical_devices("CPU")[0],
            [tf.config.LogicalDeviceConfiguration()] * options.logical_devices,
        )
    _set_policy(options, "mixed_float16" if gpus else "mixed_bfloat16")
    if options.strategy == "multi_worker":
        strategy = tf.distribute.MultiWorkerMirroredStrategy()
    else:
        shared = _shared(options, gpus)
        if not shared:
            return tf.distribute.get_strategy()
        strategy = tf.distribute.MirroredStrategy([device.name for device in shared])
    _check_shared(options, strategy.num_replicas_in_sync)
    return strategy


def _shared(options: RunOptions, gpus: list[Any]) -> list[Any]:
    """Return the devices of a `MirroredStrategy`, or an empty list for one device."""
    if options.strategy == "mirrored":
        return tf.config.list_logical_devices("GPU" if gpus else "CPU")
    if options.strategy == "auto":
        return _dividing(tf.config.list_logical_devices("GPU"), options.batch_size)
    return []


def _dividing(gpus: list[Any], batch_size: int) -> list[Any]:
    """Return the largest number of GPUs that divides the batch, or none if it is 1."""
    if len(gpus) < 2:
        return []
    number = max(each for each in range(1, len(gpus) + 1) if batch_size % each == 0)
    print(
        f"training on {number} of {len(gpus)} GPUs, which share a batch of {batch_size} images "
        "(--strategy=one: one GPU)"
    )
    return gpus[:number] if number > 1 else []


def _set_policy(options: RunOptions, half: str) -> None:
    keras.config.set_dtype_policy(half if options.mixed_precision else "float32")


def _check_shared(options: RunOptions, devices: int) -> None:
    if options.batch_size % devices:
        raise UsageError(
            f"batch_size must be a multiple of the {devices} devices, but got {options.batch_size}."
        )
