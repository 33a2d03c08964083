"""Needs TensorFlow (tf.data). Batches of images for training and for evaluation.

A batch is a pure function of the sampler, the seed and the batch's number, so a pipeline begun at
step s gives what one begun at 0 gives from its batch s on, bit for bit. The table stays in Python:
each step asks for its own rows, so no graph holds the paths of a whole dataset.
"""

import numpy as np
import tensorflow as tf

from pipelines.process_end import refused_at_the_end

_BATCHES_AHEAD = 2


def training_batches(table, sampler, transform, seed=0, start_step=0, num_steps=None):
    """Augmented batches, one a step.

    The image in slot i of step s is transformed with the i-th pair of numbers that
    `numpy.random.SeedSequence((seed, s))` generates.

    Args:
        table: `ImageTable`.
        sampler: step -> int64 rows [batch_size], with attribute `batch_size`.
        transform: (source, seed) -> float32 [size, size, 3]; see `TrainTransform`.
        seed: int, not negative, of the augmentation.
        start_step: number of the first batch.
        num_steps: how many batches; None: no end.

    Returns:
        tf.data.Dataset of (images float32 [batch_size, size, size, 3], labels int64 [batch_size]).
        An image that cannot be read raises an error of TensorFlow's when its batch is asked for.

    Raises:
        ValueError: `seed`, `start_step` or `num_steps` is negative.
    """
    for name, value in (("seed", seed), ("start_step", start_step), ("num_steps", num_steps or 0)):
        if value < 0:
            raise ValueError(f"{name} must not be negative. Received: {name}={value}")

    def look_up(step):
        rows = sampler(int(step))
        seeds = np.random.SeedSequence((seed, int(step))).generate_state(2 * len(rows), np.uint64)
        return _sources(table, rows), table.labels[rows], seeds.view(np.int64).reshape(-1, 2)

    def load(source, label, seed):
        return transform(_read(table, source), seed), label

    end_step = np.iinfo(np.int64).max if num_steps is None else start_step + num_steps
    rows_of_steps = tf.data.Dataset.range(start_step, end_step).map(
        lambda step: _run_numpy(look_up, step, _source_spec(table), (tf.int64, []), (tf.int64, [2]))
    )
    images = rows_of_steps.unbatch().map(load, num_parallel_calls=tf.data.AUTOTUNE)
    batches = images.batch(sampler.batch_size, drop_remainder=True)
    return _finish(batches, tf.data.INFINITE_CARDINALITY if num_steps is None else num_steps)


def evaluation_batches(table, transform, batch_size=64):
    """Every image of the table once, in row order.

    Args:
        table: `ImageTable`.
        transform: source -> float32 [size, size, 3]; see `EvaluationTransform`.
        batch_size: images a batch; the last batch may have fewer.

    Returns:
        tf.data.Dataset of images float32 [b, size, size, 3].

    Raises:
        ValueError: `batch_size` is below 1.
    """
    if batch_size < 1:
        raise ValueError(f"batch_size must be at least 1. Received: batch_size={batch_size}")

    def look_up(step):
        rows = np.arange(step * batch_size, min((step + 1) * batch_size, len(table)))
        return _sources(table, rows)

    num_batches = -(-len(table) // batch_size)
    rows_of_steps = tf.data.Dataset.range(num_batches).map(
        lambda step: _run_numpy(look_up, step, _source_spec(table))[0]
    )
    images = rows_of_steps.unbatch().map(
        lambda source: transform(_read(table, source)), num_parallel_calls=tf.data.AUTOTUNE
    )
    return _finish(images.batch(batch_size), num_batches)


def _sources(table, rows):
    if table.paths is not None:
        # TensorFlow takes strings from NumPy as objects.
        return table.paths[rows].astype(object)
    return table.arrays[rows] if table.encoded is None else table.encoded[rows]


def _source_spec(table):
    if table.arrays is None:
        return tf.string, []
    return tf.uint8, list(table.arrays.shape[1:])


def _run_numpy(function, step, *specs):
    """Call a NumPy function of the step; each spec is the (dtype, shape) of one row of a result."""
    results = tf.numpy_function(
        refused_at_the_end(function), [step], [dtype for dtype, _ in specs], stateful=False
    )
    return tuple(
        tf.ensure_shape(result, [None, *shape]) for result, (_, shape) in zip(results, specs)
    )


def _read(table, source):
    return source if table.paths is None else tf.io.read_file(source)


def _finish(batches, cardinality):
    """Say how many batches there are (the pipeline cannot tell), and how they are delivered."""
    options = tf.data.Options()
    options.deterministic = True
    # Several workers each take their share of every batch: there are no files to divide.
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.DATA
    batches = batches.apply(tf.data.experimental.assert_cardinality(cardinality))
    return batches.prefetch(_BATCHES_AHEAD).with_options(options)
