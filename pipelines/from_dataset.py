"""Needs TensorFlow (tf.data). Tables and balanced batches from a labeled tf.data.Dataset."""

import tempfile
from collections.abc import Iterator
from typing import Any

import numpy as np
import tensorflow as tf

from keras_dml._common.checks import argument_error, shown
from keras_dml._common.errors import ArgumentError, ArgumentTypeError
from pipelines.batches import training_batches
from pipelines.samplers import BalancedSampler
from pipelines.table import ImageTable


def table_from_dataset(dataset: tf.data.Dataset) -> ImageTable:
    """Read a finite labeled dataset once into a table.

    The table holds every x unchanged in a temporary file, not in memory: 0.6 MB for an image of
    224 × 224 × 3 floats. A batch reads its rows from the file. Python deletes the file together
    with the table. `TMPDIR` sets its folder. `ImageTable.from_paths(paths, labels)` needs no such
    file, because it reads and decodes an image when a batch needs it.

    Args:
        dataset: Dataset of (x, label) or of batches of them, for example from
            `keras.utils.image_dataset_from_directory(..., label_mode="int")`. All x must have one
            shape. Labels are integers, strings, or whole floats, of shape `[]`, or `[b]` or `[b,
            1]` in batches.

    Returns:
        `ImageTable` whose `arrays` contain x, as uint8 for images and as floats otherwise, and
        whose classes are the labels in sorted order.

    Raises:
        TypeError: The argument is not a dataset, its elements are not (x, label), or a label is
            neither whole nor a string.
        ValueError: The dataset is infinite or empty, shapes of x differ, or labels are one-hot.
        OSError: The disk of the temporary file is full.

    Examples:

        given = tf.data.Dataset.from_tensor_slices((np.eye(6, dtype="float32"), [0, 0, 1, 1, 2, 2]))
        table = table_from_dataset(given.batch(4))
    """
    if not isinstance(dataset, tf.data.Dataset):
        raise argument_error("dataset", "a tf.data.Dataset", dataset, ArgumentTypeError)
    if int(dataset.cardinality()) == tf.data.INFINITE_CARDINALITY:
        raise ArgumentError("dataset must be finite, but got an infinite one. Remove repeat().")
    wanted = "dataset must contain (x, label), or batches of them, but got"
    spec = dataset.element_spec
    if not (isinstance(spec, tuple) and len(spec) == 2) or not all(
        isinstance(each, tf.TensorSpec) for each in spec
    ):
        raise ArgumentTypeError(f"{wanted} elements of {shown(spec)}.")
    if spec[0].dtype == tf.string:
        raise ArgumentTypeError(f"{wanted} strings as x, which must be numbers.")
    in_batches = bool(spec[1].shape.rank)
    labels: list[Any] = []
    first = None
    with tempfile.TemporaryFile() as file:
        for x, label in dataset.as_numpy_iterator():
            for row, one in _rows(x, label) if in_batches else [(x, label)]:
                row = _as_image_or_floats(np.atleast_1d(row))
                first = row if first is None else first
                if row.shape != first.shape:
                    raise ArgumentError(
                        f"dataset must contain x of one shape, but got {first.shape} and "
                        f"{row.shape}. Resize or pad x."
                    )
                row.tofile(file)
                labels.append(one)
        if first is None:
            raise ArgumentError(f"{wanted} an empty dataset.")
        if not first.size:
            raise ArgumentError(f"{wanted} x of shape {first.shape}, without numbers.")
        file.flush()
        arrays = np.memmap(file, first.dtype, "r", shape=(len(labels), *first.shape))
    names = getattr(dataset, "class_names", None)
    table = ImageTable.from_arrays(arrays, labels)
    if names is None or set(table.class_names) != set(map(str, range(len(names)))):
        return table
    return ImageTable(table.labels, tuple(map(str, names)), arrays=table.arrays)


def balanced(
    dataset: tf.data.Dataset,
    classes_per_batch: int,
    images_per_class: int,
    seed: int = 0,
    num_steps: int | None = None,
) -> tf.data.Dataset:
    """Return class-balanced batches of a labeled dataset. See `BalancedSampler`.

    The dataset is read only once, into a temporary file that holds every x (see
    `table_from_dataset`). Memory holds only the next batches. Random crops in the dataset are
    therefore the same in each epoch. To augment, use layers in the model, or map them over the
    returned dataset.

    Args:
        dataset: Finite dataset of (x, label), or of batches of them.
        classes_per_batch: P.
        images_per_class: m.
        seed: Seed of the sequence of batches.
        num_steps: Number of batches. None: `steps_per_epoch` batches in each iteration, of which
            the next one continues with the next step.

    Returns:
        tf.data.Dataset of (x `[P·m, ...]`, labels int64 `[P·m]`: class numbers in sorted order),
        with the attributes `class_names` and `steps_per_epoch`, n // (P·m) (at least 1).

    Raises:
        TypeError, ValueError: As for `table_from_dataset`, `BalancedSampler`, and
            `training_batches`.

    Examples:

        given = tf.data.Dataset.from_tensor_slices((np.eye(6, dtype="float32"), list("aabbcc")))
        batches = balanced(given, classes_per_batch=2, images_per_class=2)
        steps_per_epoch = batches.steps_per_epoch  # batches of an epoch of `fit(batches)`
    """
    table = table_from_dataset(dataset)
    sampler = BalancedSampler(table.labels, classes_per_batch, images_per_class, seed)
    steps = sampler.steps_per_epoch if num_steps is None else None
    batches = training_batches(
        table, sampler, seed=seed, num_steps=num_steps, steps_per_epoch=steps
    )
    batches.class_names, batches.steps_per_epoch = table.class_names, sampler.steps_per_epoch
    return batches


def _as_image_or_floats(row: np.ndarray) -> np.ndarray:
    """Return pixels as uint8 and other numbers as floats."""
    image = row.dtype == np.uint8 and row.ndim == 3 and row.shape[-1] in (1, 3)
    return row.astype(np.float32) if row.dtype.kind in "iub" and not image else row


def _rows(x: np.ndarray, labels: np.ndarray) -> Iterator[tuple[np.ndarray, Any]]:
    if np.ndim(x) == 0 or len(x) != len(labels):
        raise ArgumentError(
            "dataset must contain a label for each x of a batch, but got shapes "
            f"{np.shape(x)} and {labels.shape}."
        )
    if labels.ndim == 2 and labels.shape[1] == 1:
        labels = labels[:, 0]
    if labels.ndim != 1:
        raise ArgumentError(
            "dataset must contain one class id for each x, but got labels of shape "
            f"{labels.shape}. For one-hot labels, use label_mode='int' or map tf.argmax."
        )
    return zip(x, labels)
