"""What the options say of the devices: seed, determinism, precision, strategy."""

import os

import keras
import tensorflow as tf

from experiments.options import RunOptions
from experiments.options.errors import UsageError


def threads() -> int:
    """How many threads a kernel of TensorFlow may share, on which the sums of floats depend."""
    asked = tf.config.threading.get_intra_op_parallelism_threads()
    word = os.environ.get("TF_NUM_INTRAOP_THREADS", "")
    # As TensorFlow counts: the cores that this process may use.
    return asked or (int(word) if word.isdecimal() else 0) or len(os.sched_getaffinity(0))


def devices(options: RunOptions) -> tf.distribute.Strategy:
    """Seed, determinism, precision; returns the strategy. Comes before anything uses TensorFlow.

    Raises:
        UsageError: a batch that the devices cannot share equally.
    """
    if options.logical_devices > 1 and options.strategy != "mirrored":
        raise UsageError(
            "logical_devices needs --strategy=mirrored. "
            f"Received: logical_devices={options.logical_devices}"
        )
    keras.utils.set_random_seed(options.seed)
    if options.deterministic:
        tf.config.experimental.enable_op_determinism()
    gpus = tf.config.list_physical_devices("GPU")
    for gpu in gpus:
        tf.config.experimental.set_memory_growth(gpu, True)
    if options.logical_devices > 1:
        tf.config.set_logical_device_configuration(
            tf.config.list_physical_devices("CPU")[0],
            [tf.config.LogicalDeviceConfiguration()] * options.logical_devices,
        )
    half = "mixed_float16" if gpus else "mixed_bfloat16"
    keras.config.set_dtype_policy(half if options.mixed_precision else "float32")
    if options.strategy == "multi_worker":
        strategy = tf.distribute.MultiWorkerMirroredStrategy()
    elif options.strategy == "mirrored" or (options.strategy == "auto" and gpus):
        found = tf.config.list_logical_devices("GPU" if gpus else "CPU")
        strategy = tf.distribute.MirroredStrategy([device.name for device in found])
    else:
        return tf.distribute.get_strategy()
    if options.batch_size % strategy.num_replicas_in_sync:
        raise UsageError(
            f"batch_size must be a multiple of the {strategy.num_replicas_in_sync} devices. "
            f"Received: batch_size={options.batch_size}"
        )
    return strategy
