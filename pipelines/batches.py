"""Needs TensorFlow (tf.data). Batches of images for training and for evaluation.

A batch is a pure function of the sampler, the seed and the batch's number, so a pipeline begun at
step s gives what one begun at 0 gives from its batch s on, bit for bit. The table stays in Python:
each step asks for its own rows, so no graph holds the paths of a whole dataset.
"""

import warnings
from collections.abc import Callable, Sequence
from typing import Protocol, cast

import numpy as np
import tensorflow as tf

from keras_dml._common.checks import as_array, check_bool, check_whole, shown
from keras_dml._common.errors import ArgumentError, ArgumentTypeError
from pipelines.checks import check_callable
from pipelines.images.decode import Source
from pipelines.python_calls import map_numpy
from pipelines.table import ImageTable, check_table

_BATCHES_AHEAD = 2
# So that a first step and a number of steps are an int64 together.
_MOST_STEPS = 2**62


class Sampler(Protocol):
    """A pure function from a step to int64 rows [batch_size]; see `pipelines.samplers`."""

    @property
    def batch_size(self) -> int:
        """How many rows each step has."""
        ...

    def __call__(self, step: int) -> np.ndarray:
        """The rows of a step."""
        ...


def training_batches(
    table: ImageTable,
    sampler: Sampler,
    transform: Callable[[Source, tf.Tensor], tf.Tensor] | None = None,
    seed: int = 0,
    start_step: int = 0,
    num_steps: int | None = None,
    input_context: tf.distribute.InputContext | None = None,
) -> tf.data.Dataset:
    """Augmented batches, one a step.

    The image in slot i of step s is transformed with the i-th pair of numbers that
    `numpy.random.SeedSequence((seed, s))` generates.

    Under a `tf.distribute` strategy each input pipeline can load its own slice of the batches
    alone, `strategy.distribute_datasets_from_function(lambda context: training_batches(...,
    input_context=context))`: the replicas together get the batches that one device would.

    Examples:
        >>> table = pipelines.ImageTable.from_arrays(np.zeros([6, 4], "float32"), np.arange(6) // 2)
        >>> batches = training_batches(table, pipelines.RandomSampler(6, batch_size=4), num_steps=1)
        >>> [len(labels) for rows, labels in batches]
        [4]

    Args:
        table: `ImageTable`.
        sampler: step -> int64 rows [batch_size], with attribute `batch_size`.
        transform: (source, seed) -> float32 [size, size, 3]; see `TrainTransform`. None: the
            rows of the table's `arrays` as they are.
        seed: int, not negative, of the augmentation.
        start_step: number of the first batch.
        num_steps: how many batches; None: no end.
        input_context: `tf.distribute.InputContext`, of a pipeline that feeds some of the replicas;
            None: one pipeline that feeds one device.

    Returns:
        tf.data.Dataset of (images float32 [b, size, size, 3], labels int64 [b]), b = batch_size;
        of (rows [b, ...], labels) without a transform.
        With an input context b = batch_size / replicas, and one element follows the other for
        each replica that this pipeline feeds. An image that cannot be read raises an error of
        TensorFlow's when its batch is asked for.

    Raises:
        ValueError: `seed`, `start_step` or `num_steps` is negative, the batch size is no multiple
            of the number of replicas, or that none of the number of input pipelines; the sampler
            gives other than `batch_size` rows, or of other images. What it gives in a later step
            than the first is an error of TensorFlow's with this message.
    """
    seed = check_whole("seed", seed, least=0)
    start_step = check_whole("start_step", start_step, least=0, most=_MOST_STEPS)
    if num_steps is not None:
        num_steps = check_whole("num_steps", num_steps, least=0, most=_MOST_STEPS)
    check_table("table", table)
    _check_sampler(sampler, start_step, num_steps, len(table))
    if transform is None:
        rows = _plain_rows(table)
        return feature_batches(
            [rows], table.labels, sampler, seed, start_step, num_steps, input_context
        )
    check_callable("transform", transform)

    fed, own = _share_of(input_context, sampler.batch_size)
    per_replica = (own.stop - own.start) // fed

    def look_up(step: np.ndarray) -> tuple[np.ndarray, ...]:
        rows = _rows_of(sampler, int(step), len(table))
        drawn = np.random.SeedSequence((seed, int(step))).generate_state(2 * len(rows), np.uint64)
        seeds = drawn.view(np.int64).reshape(-1, 2)[own]
        rows = rows[own]
        return *_sources(table, rows), table.labels[rows], seeds

    def load(*parts: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        *source, label, seed = parts
        return transform(_read(table, *source), seed), label

    end_step = np.iinfo(np.int64).max if num_steps is None else start_step + num_steps
    steps = tf.data.Dataset.range(start_step, end_step)
    specs = (*_source_specs(table), (tf.int64, []), (tf.int64, [2]))
    rows_of_steps = map_numpy(steps, look_up, *specs)
    images = rows_of_steps.unbatch().map(load, num_parallel_calls=tf.data.AUTOTUNE)
    batches = images.batch(per_replica, drop_remainder=True)
    return _finish(batches, num_steps, fed)


def feature_batches(
    features: Sequence[np.ndarray],
    labels: np.ndarray,
    sampler: Sampler,
    seed: int = 0,
    start_step: int = 0,
    num_steps: int | None = None,
    input_context: tf.distribute.InputContext | None = None,
) -> tf.data.Dataset:
    """Batches of what a frozen net gave for the images, one a step, in place of the images.

    Of the views of the image in slot i of step s that one is taken which the i-th number tells that
    `numpy.random.SeedSequence((seed, s))` generates. A memory map stays on disk: a step reads its
    own rows.

    Args:
        features: arrays `[n, ...]` of the n images, one for each view, all of one shape and dtype.
        labels: integers `[n]`.
        sampler, seed, start_step, num_steps, input_context: as for `training_batches`.

    Returns:
        tf.data.Dataset of (features `[b, ...]`, labels int64 `[b]`) as from `training_batches`.

    Raises:
        ValueError: as `training_batches`; features of another number of images than there are
            labels, or of no view.

    Examples:

        batches = feature_batches([np.zeros((6, 8), "float32")], np.arange(6), sampler)
    """
    seed = check_whole("seed", seed, least=0)
    start_step = check_whole("start_step", start_step, least=0, most=_MOST_STEPS)
    if num_steps is not None:
        num_steps = check_whole("num_steps", num_steps, least=0, most=_MOST_STEPS)
    labels = as_array("labels", labels)
    if labels.ndim != 1 or labels.dtype.kind not in "iu":
        raise ArgumentError(
            "labels must be a vector of integers. "
            f"Received: labels of shape {labels.shape} and dtype {labels.dtype}"
        )
    shapes = {view.shape for view in features}
    if len(shapes) != 1 or len(next(iter(shapes))) < 2 or len(features[0]) != len(labels):
        raise ArgumentError(
            f"features must be one array [{len(labels)}, ...] a view, a row for each label. "
            f"Received: arrays of shapes {sorted(shapes)}"
        )
    _check_sampler(sampler, start_step, num_steps, len(labels))
    fed, own = _share_of(input_context, sampler.batch_size)
    views = np.uint64(len(features))

    def look_up(step: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        rows = _rows_of(sampler, int(step), len(labels))
        drawn = np.random.SeedSequence((seed, int(step))).generate_state(len(rows), np.uint64)
        chosen = (drawn % views).astype(np.int64)[own]
        rows = rows[own]
        batch = np.empty((len(rows), *features[0].shape[1:]), features[0].dtype)
        for view in np.unique(chosen):
            batch[chosen == view] = features[view][rows[chosen == view]]
        return _of_replicas(batch, fed), _of_replicas(labels[rows], fed)

    end_step = np.iinfo(np.int64).max if num_steps is None else start_step + num_steps
    share = (own.stop - own.start) // fed
    specs = [
        (tf.as_dtype(features[0].dtype), [share, *features[0].shape[1:]]),
        (tf.as_dtype(labels.dtype), [share]),
    ]
    batches = map_numpy(tf.data.Dataset.range(start_step, end_step), look_up, *specs)
    return _finish(batches.unbatch(), num_steps, fed)


def _plain_rows(table: ImageTable) -> np.ndarray:
    """The rows of a table that can be batched as they are.

    Raises:
        ValueError: images that must be decoded or cut out first.
    """
    if table.arrays is None or table.boxes is not None:
        raise ArgumentError(
            "transform must be given for images that are decoded or cut down to boxes, such as "
            f"EvaluationTransform(image_size=224). Received: transform=None for {table!r}"
        )
    return table.arrays


def _check_sampler(
    sampler: Sampler, start_step: int, num_steps: int | None, num_images: int
) -> None:
    """That it can be called, says its `batch_size` and gives the first step's rows.

    Raises:
        ArgumentError: it does not.
    """
    if not callable(sampler) or not hasattr(sampler, "batch_size"):
        raise ArgumentTypeError(
            "sampler must be a function from a step to rows, with an attribute batch_size. "
            f"Received: sampler={shown(sampler)}"
        )
    check_whole("sampler.batch_size", sampler.batch_size, least=1)
    if num_steps != 0:
        _rows_of(sampler, start_step, num_images)


def _rows_of(sampler: Sampler, step: int, num_images: int) -> np.ndarray:
    """The rows of a step, of somebody's own sampler too: one that gives more, fewer or others than
    it should would make batches of other images without a word.

    Raises:
        ArgumentError: no row numbers of `num_images` images `[batch_size]`.
    """
    rows = as_array("sampler", sampler(step))
    received = None
    if rows.shape != (sampler.batch_size,) or rows.dtype.kind not in "iu":
        received = f"an array of shape {rows.shape} and dtype {rows.dtype}"
    elif (wrong := (rows < 0) | (rows >= num_images)).any():
        received = f"row {rows[wrong][0]}"
    if received is None:
        return rows
    raise ArgumentError(
        f"sampler must give row numbers [{sampler.batch_size}], its batch_size, from 0 to "
        f"{num_images - 1}: of the images that are here. Received: {received} at step {step}"
    )


def _of_replicas(rows: np.ndarray, fed: int) -> np.ndarray:
    """The rows of one step, `[fed * b, ...]`, as those of each replica, `[fed, b, ...]`."""
    return rows.reshape(fed, len(rows) // fed, *rows.shape[1:])


def evaluation_batches(
    table: ImageTable,
    transform: Callable[..., tf.Tensor] | None = None,
    batch_size: int = 64,
    input_context: tf.distribute.InputContext | None = None,
    seeds: np.ndarray | None = None,
    labels: bool = False,
) -> tf.data.Dataset:
    """Every image of the table once, in row order.

    Several replicas take turns, `batch_size` rows each. All need equally many, so the last turn
    has as many as there are rows left for each, and repeats the last row where one is lacking: the
    replicas' rows one after the other, cut off after `len(table)`, are every image once.

    Examples:
        >>> table = pipelines.ImageTable.from_arrays(np.zeros([4, 8, 8, 3], "uint8"), np.arange(4))
        >>> batches = evaluation_batches(table, pipelines.EvaluationTransform(8), batch_size=2)
        >>> [len(images) for images in batches]
        [2, 2]

    Args:
        table: `ImageTable`.
        transform: source -> float32 [size, size, 3]; see `EvaluationTransform`. With `seeds`
            (source, seed) -> the same; see `TrainTransform`. None: the rows of the table's `arrays`
            as they are.
        batch_size: images a batch, on each replica; the last batch may have fewer.
        input_context: as for `training_batches`.
        seeds: int64 `[len(table), 2]`, of each image's augmentation; None: there is none.
        labels: give the class numbers with the images, as `validation_data` of `fit` and
            `RetrievalEvaluation` take them.

    Returns:
        tf.data.Dataset of images float32 [b, size, size, 3] (without a transform rows [b, ...]),
        with `labels` of (images, labels int64 [b]).

    Raises:
        ValueError: `batch_size` is below 1, the number of replicas is no multiple of the number
            of input pipelines, or there is not a seed for each image.
    """
    batch_size = check_whole("batch_size", batch_size, least=1, most=_MOST_STEPS)
    check_table("table", table)
    labels = check_bool("labels", labels)
    if transform is None:
        _plain_rows(table)
        if seeds is not None:
            raise ArgumentError("seeds must be None without a transform. Received: transform=None")
    else:
        check_callable("transform", transform)
    if seeds is not None:
        seeds = as_array("seeds", seeds)
        if seeds.shape != (len(table), 2) or seeds.dtype.kind not in "iu":
            raise ArgumentError(
                f"seeds must be integers of the shape [{len(table)}, 2], a pair for each image. "
                f"Received: seeds of shape {seeds.shape} and dtype {seeds.dtype}"
            )
    seed_specs = () if seeds is None else ((tf.int64, [2]),)
    context = input_context or tf.distribute.InputContext()
    replicas = context.num_replicas_in_sync
    fed = _replicas_fed(context)

    def load(*parts: tf.Tensor) -> tf.Tensor | tuple[tf.Tensor, tf.Tensor]:
        parts, label = (parts[:-1], parts[-1:]) if labels else (parts, ())
        source, seed = (parts, ()) if seeds is None else (parts[:-1], parts[-1:])
        read = _read(table, *source)
        image = read if transform is None else transform(read, *seed)
        return (image, *label) if labels else image

    def turns(first_row: int, number: int, size: int) -> tf.data.Dataset:
        """Batches of `number` turns from `first_row` on, in which each replica has `size` rows."""

        def look_up(element: np.ndarray) -> tuple[np.ndarray, ...]:
            turn, replica = divmod(int(element), fed)
            slot = turn * replicas + context.input_pipeline_id * fed + replica
            rows = np.minimum(first_row + slot * size + np.arange(size), len(table) - 1)
            drawn = () if seeds is None else (seeds[rows],)
            return *_sources(table, rows), *drawn, *((table.labels[rows],) if labels else ())

        elements = tf.data.Dataset.range(number * fed)
        specs = (*_source_specs(table), *seed_specs, *(((tf.int64, ()),) if labels else ()))
        rows_of_elements = map_numpy(elements, look_up, *specs)
        images = rows_of_elements.unbatch().map(load, num_parallel_calls=tf.data.AUTOTUNE)
        return images.batch(size)

    full_turns, rest = divmod(len(table), batch_size * replicas)
    batches = turns(0, full_turns, batch_size)
    if rest:
        batches = batches.concatenate(turns(len(table) - rest, 1, -(-rest // replicas)))
    return _finish(batches, full_turns + (rest > 0), fed)


def _share_of(
    input_context: tf.distribute.InputContext | None, batch_size: int
) -> tuple[int, slice]:
    """How many replicas an input pipeline feeds, and which rows of a batch are theirs together."""
    context = input_context or tf.distribute.InputContext()
    replicas = context.num_replicas_in_sync
    if batch_size % replicas:
        raise ArgumentError(
            f"the sampler's batch_size must be a multiple of the {replicas} replicas. "
            f"Received: batch_size={batch_size}"
        )
    fed = _replicas_fed(context)
    share = batch_size // context.num_input_pipelines
    first = context.input_pipeline_id * share
    return fed, slice(first, first + share)


def _replicas_fed(context: tf.distribute.InputContext) -> int:
    """How many replicas this input pipeline feeds: all pipelines feed equally many."""
    replicas, pipelines = context.num_replicas_in_sync, context.num_input_pipelines
    if replicas % pipelines:
        raise ArgumentError(
            "input_context must have replicas that its input pipelines can share equally. "
            f"Received: {replicas} replicas and {pipelines} input pipelines"
        )
    return replicas // pipelines


def _sources(table: ImageTable, rows: np.ndarray) -> tuple[np.ndarray, ...]:
    """What is known of each row's image: path, bytes or pixels, and the box if there are boxes."""
    boxes = () if table.boxes is None else (table.boxes[rows],)
    if table.paths is not None:
        # TensorFlow takes strings from NumPy as objects.
        return table.paths[rows].astype(object), *boxes
    images = table.arrays if table.encoded is None else table.encoded
    return cast(np.ndarray, images)[rows], *boxes


def _source_specs(table: ImageTable) -> tuple[tuple[tf.DType, Sequence[int]], ...]:
    boxes = () if table.boxes is None else ((tf.int64, [4]),)
    if table.arrays is None:
        return (tf.string, []), *boxes
    return (tf.as_dtype(table.arrays.dtype), list(table.arrays.shape[1:])), *boxes


def _read(table: ImageTable, image: tf.Tensor, *box: tf.Tensor) -> Source:
    encoded = image if table.paths is None else tf.io.read_file(image)
    return (encoded, *box) if box else encoded


def _finish(batches: tf.data.Dataset, steps: int | None, elements_per_step: int) -> tf.data.Dataset:
    """Say how many batches there are (the pipeline cannot tell), and how they are delivered."""
    # `fit` says so of every dataset, since its `shuffle` is true unless one says otherwise. These
    # batches are drawn by a sampler; nothing is left to shuffle, and nobody to be warned.
    warnings.filterwarnings("ignore", message="`shuffle=True` was passed.*tf.data.Dataset")
    options = tf.data.Options()
    options.deterministic = True
    # Distributed as it is, each of several workers takes its share of every batch: there are no
    # files to divide.
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.DATA
    cardinality = tf.data.INFINITE_CARDINALITY if steps is None else steps * elements_per_step
    batches = batches.apply(tf.data.experimental.assert_cardinality(cardinality))
    return batches.prefetch(_BATCHES_AHEAD * elements_per_step).with_options(options)
