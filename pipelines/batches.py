"""Needs TensorFlow (tf.data). Batches of images for training and evaluation.

A batch is a pure function of the sampler, the seed, and the step. A pipeline that starts at step s
therefore returns the same bits as one that starts at 0 and has reached step s. The table stays in
Python. Each step looks up its rows, so no graph contains the paths of a whole dataset.
"""

import contextlib
import warnings
from collections.abc import Callable, Sequence
from typing import cast

import numpy as np
import tensorflow as tf

from keras_dml._common.checks import check_bool, check_whole
from keras_dml._common.errors import ArgumentError, argument_error
from pipelines.checks import as_integers, check_callable
from pipelines.image_files import check_image
from pipelines.images.decode import Source
from pipelines.images.file_bytes import is_jpeg
from pipelines.images.file_checks import readable
from pipelines.images.tensorflow_transforms import transform_batch
from pipelines.images.transforms import EvaluationTransform, TrainTransform
from pipelines.max_pixels import max_pixels_of
from pipelines.python_calls import delivered, map_numpy, on_files
from pipelines.samplers import Sampler
from pipelines.steps import MOST_STEPS, Passes, Steps
from pipelines.table import ImageTable, check_table, plain_rows

_BATCHES_AHEAD = 2


def training_batches(
    table: ImageTable,
    sampler: Sampler,
    transform: Callable[[Source, tf.Tensor], tf.Tensor] | None = None,
    seed: int = 0,
    start_step: int | Callable[[], int] = 0,
    num_steps: int | None = None,
    input_context: tf.distribute.InputContext | None = None,
    steps_per_epoch: int | None = None,
) -> tf.data.Dataset:
    """Return a dataset of augmented batches, one per step.

    Slot i of step s is augmented with the i-th pair of numbers from
    `numpy.random.SeedSequence((seed, s))`.

    With a `tf.distribute` strategy, each input pipeline can load only its slice of each batch:
    `strategy.distribute_datasets_from_function(lambda context: training_batches(...,
    input_context=context))`. Together, the replicas get the same batches as a single device.

    Examples:
        >>> table = pipelines.ImageTable.from_arrays(np.zeros([6, 4], "float32"), np.arange(6) // 2)
        >>> batches = training_batches(table, pipelines.RandomSampler(6, batch_size=4), num_steps=1)
        >>> [len(labels) for rows, labels in batches]
        [4]

    Args:
        table: `ImageTable`.
        sampler: Function from a step to int64 rows `[batch_size]`, with an attribute `batch_size`.
        transform: Function (source, seed) -> float32 `[size, size, 3]`, see `TrainTransform`. None:
            the rows of the table's `arrays`, unchanged.
        seed: Seed of the augmentation, an integer of 0 or more.
        start_step: Number of the first batch. A function without arguments returns it at the
            beginning of each iteration, and needs `num_steps`.
        num_steps: Number of batches. None: infinite.
        input_context: `tf.distribute.InputContext` of a pipeline that feeds some of the replicas.
            None: one pipeline for one device.
        steps_per_epoch: Number of batches of one iteration, for `fit` without its argument
            `steps_per_epoch`. The next iteration continues with the next step. None: each
            iteration starts at `start_step`. Not with `num_steps`.

    Returns:
        tf.data.Dataset of (images float32 `[b, size, size, 3]`, labels int64 `[b]`), with
        b = `batch_size`. Without a transform, of (rows `[b, ...]`, labels). With an input context,
        b = `batch_size` / replicas, and each step is one element for each replica that this
        pipeline feeds. An unreadable image raises a TensorFlow error when the dataset reaches its
        batch.

    Raises:
        ValueError: `seed`, `start_step`, or `num_steps` is negative. Or `num_steps` and
            `steps_per_epoch` are both set. Or the batch size is not a
            multiple of the number of replicas, or this number not a multiple of the number of input
            pipelines. Or the sampler returns a wrong number of rows or rows out of range. After the
            first step, the sampler's error is a TensorFlow error with the same message.
    """
    check_table("table", table)
    if transform is None:
        rows = plain_rows(table)
        return feature_batches(
            [rows], table.labels, sampler, seed, start_step, num_steps, input_context,
            steps_per_epoch,
        )  # fmt: skip
    check_callable("transform", transform)
    steps = Steps(sampler, len(table), seed, start_step, num_steps)
    replicas, rows_per_replica, share = _share(steps.batch_size, input_context)

    def look_up(step: np.ndarray) -> tuple[np.ndarray, ...]:
        rows, seeds = (column[share] for column in steps.draw(int(step), 2))
        return *_sources(table, rows, transform), seeds.view(np.int64), table.labels[rows]

    passes = _passes(steps, steps_per_epoch, replicas)
    batches = _images(
        table, transform, _numbers(steps, passes), look_up, True, True, rows_per_replica, True
    )
    return _finish(batches, steps.count, replicas, passes)


def feature_batches(
    features: Sequence[np.ndarray],
    labels: np.ndarray,
    sampler: Sampler,
    seed: int = 0,
    start_step: int | Callable[[], int] = 0,
    num_steps: int | None = None,
    input_context: tf.distribute.InputContext | None = None,
    steps_per_epoch: int | None = None,
) -> tf.data.Dataset:
    """Return a dataset of batches of precomputed features of the images, one per step.

    If there are several views of an image, the i-th number from `numpy.random.SeedSequence((seed,
    s))` chooses the view for slot i of step s. A memory map stays on disk: each step reads only its
    rows.

    Args:
        features: One array `[n, ...]` for each view of the n images, with equal shapes and dtypes.
        labels: Integers `[n]`.
        sampler, seed, start_step, num_steps, input_context, steps_per_epoch: As for
            `training_batches`.

    Returns:
        tf.data.Dataset of (features `[b, ...]`, labels int64 `[b]`), as from `training_batches`.

    Raises:
        ValueError: As for `training_batches`. Also if there are no views, or the number of rows
            differs from the number of labels.

    Examples:

        batches = feature_batches([np.zeros((6, 8), "float32")], np.arange(6), sampler)
    """
    labels = as_integers("labels", labels, None)
    shapes = {view.shape for view in features}
    if len(shapes) != 1 or len(next(iter(shapes))) < 2 or len(features[0]) != len(labels):
        raise ArgumentError(
            f"features must be one array [{len(labels)}, ...] for each view, a row for each label, "
            f"but got shapes {sorted(shapes)}."
        )
    steps = Steps(sampler, len(labels), seed, start_step, num_steps)
    replicas, rows_per_replica, share = _share(steps.batch_size, input_context)
    views = np.uint64(len(features))

    def look_up(step: np.ndarray) -> tuple[np.ndarray, ...]:
        rows, numbers = (column[share] for column in steps.draw(int(step), 1))
        chosen = (numbers[:, 0] % views).astype(np.int64)
        batch = np.empty((len(rows), *features[0].shape[1:]), features[0].dtype)
        for view in np.unique(chosen):
            batch[chosen == view] = features[view][rows[chosen == view]]
        return batch, labels[rows]

    specs = [(tf.as_dtype(column.dtype), column.shape[1:]) for column in (features[0], labels)]
    passes = _passes(steps, steps_per_epoch, replicas)
    batches = map_numpy(_numbers(steps, passes), look_up, *specs)
    # One element for each replica.
    batches = batches.rebatch(rows_per_replica, drop_remainder=True)
    return _finish(batches, steps.count, replicas, passes)


def _passes(steps: Steps, steps_per_epoch: int | None, elements_per_step: int) -> Passes | None:
    """Return the passes over the elements of a pipeline, or None without `steps_per_epoch`."""
    if steps_per_epoch is None:
        return None
    if steps.count is not None:
        raise argument_error("num_steps", "None with steps_per_epoch", steps.count)
    steps_per_epoch = check_whole("steps_per_epoch", steps_per_epoch, least=1, most=MOST_STEPS)
    return Passes(steps_per_epoch, elements_per_step)


def _numbers(steps: Steps, passes: Passes | None) -> tf.data.Dataset:
    """Return the dataset of step numbers: of one pass if there are passes."""
    count = steps.count if passes is None else passes.steps
    if passes is None and not steps.moves:
        most = np.iinfo(np.int64).max
        return tf.data.Dataset.range(steps.start, most if count is None else steps.start + count)
    first = map_numpy(
        tf.data.Dataset.range(1),
        lambda _: (np.array([steps.start + (0 if passes is None else passes.begin())]),),
        (tf.int64, []),
    )
    return first.unbatch().flat_map(lambda step: tf.data.Dataset.range(step, step + count))


def _share(
    batch_size: int, input_context: tf.distribute.InputContext | None
) -> tuple[int, int, slice]:
    """Return how many replicas a pipeline feeds, the rows of each, and its part of each batch.

    Raises:
        ValueError: As for `training_batches`.
    """
    context = input_context or tf.distribute.InputContext()
    if batch_size % context.num_replicas_in_sync:
        raise ArgumentError(
            "sampler must have a batch_size that is a multiple of the "
            f"{context.num_replicas_in_sync} replicas, but got {batch_size}."
        )
    replicas = _replicas_fed(context)
    rows_per_replica = batch_size // context.num_replicas_in_sync
    share = replicas * rows_per_replica
    first = context.input_pipeline_id * share
    return replicas, rows_per_replica, slice(first, first + share)


def evaluation_batches(
    table: ImageTable,
    transform: Callable[..., tf.Tensor] | None = None,
    batch_size: int = 64,
    input_context: tf.distribute.InputContext | None = None,
    seeds: np.ndarray | None = None,
    labels: bool = False,
) -> tf.data.Dataset:
    """Return a dataset of all images of the table, each once, in row order.

    Several replicas take turns with `batch_size` rows each. All replicas need the same number of
    rows, so the last turn divides the remaining rows and repeats the last row where one is missing.
    The rows of all replicas in order, cut off after `len(table)`, are all images exactly once.

    Examples:
        >>> table = pipelines.ImageTable.from_arrays(np.zeros([4, 8, 8, 3], "uint8"), np.arange(4))
        >>> batches = evaluation_batches(table, pipelines.EvaluationTransform(8), batch_size=2)
        >>> [len(images) for images in batches]
        [2, 2]

    Args:
        table: `ImageTable`.
        transform: Function source -> float32 `[size, size, 3]`, see `EvaluationTransform`. With
            `seeds`, function (source, seed) -> the same, see `TrainTransform`. None: the rows of
            the table's `arrays`, unchanged.
        batch_size: Images in a batch on each replica. The last batch can be smaller.
        input_context: As for `training_batches`.
        seeds: int64 `[len(table), 2]`, seeds of the augmentation of each image. None: no
            augmentation.
        labels: If True, return (images, labels), for `validation_data` of `fit` and for
            `RetrievalEvaluation`.

    Returns:
        tf.data.Dataset of images float32 `[b, size, size, 3]` (without a transform, rows `[b,
        ...]`). With `labels`, of (images, labels int64 `[b]`).

    Raises:
        ValueError: `batch_size` is below 1, the number of replicas is not a multiple of the number
            of input pipelines, or `seeds` has another shape.
    """
    batch_size = check_whole("batch_size", batch_size, least=1, most=MOST_STEPS)
    check_table("table", table)
    labels = check_bool("labels", labels)
    if transform is None:
        plain_rows(table)
        if seeds is not None:
            raise argument_error("seeds", "None without a transform", seeds)
    else:
        check_callable("transform", transform)
    if seeds is not None:
        seeds = as_integers("seeds", seeds, len(table), 2)
    context = input_context or tf.distribute.InputContext()
    replicas = context.num_replicas_in_sync
    fed = _replicas_fed(context)

    full_turns, rest = divmod(len(table), batch_size * replicas)
    end = full_turns + (rest > 0)

    def rows_in(turn: int) -> int:
        """Return the number of rows per replica."""
        return batch_size if turn < full_turns else -(-rest // replicas)

    def look_up(element: np.ndarray) -> tuple[np.ndarray, ...]:
        turn, replica = divmod(int(element), fed)
        size, slot = rows_in(turn), context.input_pipeline_id * fed + replica
        rows = turn * batch_size * replicas + slot * size + np.arange(size)
        rows = np.minimum(rows, len(table) - 1)
        return (
            *_sources(table, rows, transform),
            *(() if seeds is None else (seeds[rows],)),
            *((table.labels[rows],) if labels else ()),
        )

    def turns(first: int, until: int) -> tf.data.Dataset:
        elements, size = tf.data.Dataset.range(first * fed, until * fed), rows_in(first)
        return _images(table, transform, elements, look_up, seeds is not None, labels, size, False)

    if rest and fed > 1:  # a single pipeline would join the smaller batches of the last turn
        batches = turns(0, full_turns).concatenate(turns(full_turns, end))
    else:
        batches = turns(0, end)
    return _finish(batches, end, fed)


def _replicas_fed(context: tf.distribute.InputContext) -> int:
    """Return the number of replicas that each input pipeline feeds."""
    replicas, pipelines = context.num_replicas_in_sync, context.num_input_pipelines
    if replicas % pipelines:
        raise ArgumentError(
            "input_context must have the same number of replicas for each input pipeline, but got "
            f"{replicas} replicas and {pipelines} input pipelines."
        )
    return replicas // pipelines


def _sources(
    table: ImageTable, rows: np.ndarray, transform: Callable[..., tf.Tensor] | None
) -> tuple[np.ndarray, ...]:
    """Return the path, bytes, or pixels of each row, and its box if the table has boxes.

    Raises:
        OSError: A path names a folder, pipe, or device, or a file that is too large.
    """
    boxes = () if table.boxes is None else (table.boxes[rows],)
    if table.paths is not None:
        for path in table.paths[rows].tolist():
            with contextlib.suppress(FileNotFoundError):  # TensorFlow also reads addresses
                check_image(path, max_pixels_of(transform))
        # TensorFlow only accepts NumPy strings as objects.
        return table.paths[rows].astype(object), *boxes
    images = table.arrays if table.encoded is None else table.encoded
    return cast(np.ndarray, images)[rows], *boxes


def _images(
    table: ImageTable,
    transform: Callable[..., tf.Tensor] | None,
    elements: tf.data.Dataset,
    look_up: Callable[..., tuple[np.ndarray, ...]],
    seeds: bool,
    labels: bool,
    batch_size: int,
    drop_remainder: bool,
) -> tf.data.Dataset:
    """Return batches of transformed images, or of images and labels.

    Args:
        table: `ImageTable`.
        transform: Function of a source, and of a seed if `seeds`. None: the source is the image.
        elements: Dataset of numbers.
        look_up: Function from a number to the columns of its rows: `_sources`, the seeds if
            `seeds`, and the labels if `labels`.
        seeds, labels: Whether there are seeds and labels.
        batch_size, drop_remainder: As in `tf.data.Dataset.batch`.
    """
    max_pixels = max_pixels_of(transform)
    specs: list[tuple[tf.DType, Sequence[int]]] = [(tf.string, [])]
    if table.arrays is not None:
        specs = [(tf.as_dtype(table.arrays.dtype), table.arrays.shape[1:])]
    if table.boxes is not None:
        specs.append((tf.int64, [4]))
    sources, with_seeds = len(specs), len(specs) + seeds
    specs += [(tf.int64, [2])] * seeds + [(tf.int64, [])] * labels
    rows = map_numpy(elements, look_up, *specs)

    def load(*parts: tf.Tensor) -> tf.Tensor | tuple[tf.Tensor, tf.Tensor]:
        read = _read(table, max_pixels, *parts[:sources])
        image = read if transform is None else transform(read, *parts[sources:with_seeds])
        return (image, *parts[with_seeds:]) if labels else image

    def load_batch(*parts: tf.Tensor) -> tf.Tensor | tuple[tf.Tensor, tf.Tensor]:
        images = transform_batch(cast(TrainTransform, transform), *parts[:with_seeds])
        return (images, *parts[with_seeds:]) if labels else images

    if _takes_batches(table, transform):
        batches = rows.map(load_batch, num_parallel_calls=tf.data.AUTOTUNE)
        return batches.rebatch(batch_size, drop_remainder)
    images = rows.unbatch().map(load, num_parallel_calls=tf.data.AUTOTUNE)
    return images.batch(batch_size, drop_remainder)


def _takes_batches(table: ImageTable, transform: Callable[..., tf.Tensor] | None) -> bool:
    """Return whether `transform_batch` takes whole batches of the table's pixels."""
    if table.arrays is None or table.arrays.dtype != np.uint8 or table.boxes is not None:
        return False
    # A subclass can override the transform of a single image.
    if type(transform) is TrainTransform:
        return transform.crop != "area" and not any(transform.jitter)
    return type(transform) is EvaluationTransform


def _read(table: ImageTable, max_pixels: int, image: tf.Tensor, *box: tf.Tensor) -> Source:
    read = image if table.paths is None else tf.io.read_file(image)
    encoded = read
    if table.arrays is None:
        # A JPEG is decoded by the pixel. The check of its scans would take as long.
        encoded = tf.cond(is_jpeg(read), lambda: read, lambda: on_files(readable)(read, max_pixels))
    return (encoded, *box) if box else encoded


def _finish(
    batches: tf.data.Dataset,
    steps: int | None,
    elements_per_step: int,
    passes: Passes | None = None,
) -> tf.data.Dataset:
    """Set the number of batches, which the pipeline does not know, and the options."""
    # Keras' `fit` has shuffle=True by default and warns that a dataset ignores it. The sampler
    # shuffles already.
    warnings.filterwarnings("ignore", message="`shuffle=True` was passed.*tf.data.Dataset")
    options = tf.data.Options()
    options.deterministic = True
    # If the dataset is distributed, each worker takes its share of each batch, not of the files.
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.DATA
    cardinality = tf.data.INFINITE_CARDINALITY if steps is None else steps * elements_per_step
    if passes is not None:
        cardinality = passes.steps * elements_per_step
    batches = batches.apply(tf.data.experimental.assert_cardinality(cardinality))
    batches = batches.prefetch(_BATCHES_AHEAD * elements_per_step)
    # Batches that wait in the buffers of an abandoned pass do not count.
    batches = batches if passes is None else delivered(batches, passes.deliver)
    return batches.with_options(options)
