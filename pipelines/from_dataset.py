"""Needs TensorFlow (tf.data). A labelled tf.data.Dataset that somebody has, as a table."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import tensorflow as tf

from keras_dml._common.checks import shown
from keras_dml._common.errors import ArgumentError, ArgumentTypeError
from pipelines.batches import training_batches
from pipelines.samplers import BalancedSampler
from pipelines.table import ImageTable


def table_from_dataset(dataset: tf.data.Dataset) -> ImageTable:
    """The elements of a labelled dataset that ends, read once and held in memory.

    n rows of 224 × 224 × 3 floats take 0.6 MB each. For image files that are too many for that,
    `ImageTable.from_paths(dataset.file_paths, labels)` reads each when a batch needs it.

    Args:
        dataset: of (x, label), one by one or in batches, as `keras.utils
            .image_dataset_from_directory(..., label_mode="int")` gives it: x numbers of one shape,
            labels integers, strings, or floats that are whole numbers, `[]`, or in batches `[b]` or
            `[b, 1]`.

    Returns:
        `ImageTable` whose `arrays` are the x, floats unless they are uint8 images, and whose
        classes are the labels in sorted order.

    Raises:
        TypeError: no dataset, or elements that are something else than (x, label).
        ValueError: a dataset without end or without elements, x of several shapes, labels one-hot.

    Examples:

        given = tf.data.Dataset.from_tensor_slices((np.eye(6, dtype="float32"), [0, 0, 1, 1, 2, 2]))
        table = table_from_dataset(given.batch(4))
    """
    if not isinstance(dataset, tf.data.Dataset):
        raise ArgumentTypeError(
            f"dataset must be a tf.data.Dataset. Received: dataset={shown(dataset)}"
        )
    if int(dataset.cardinality()) == tf.data.INFINITE_CARDINALITY:
        raise ArgumentError("dataset must end. Received: a dataset without end, repeat()")
    wanted = "dataset must give (x, label), one by one or in batches"
    spec = dataset.element_spec
    if not (isinstance(spec, tuple) and len(spec) == 2) or not all(
        isinstance(each, tf.TensorSpec) for each in spec
    ):
        raise ArgumentTypeError(f"{wanted}. Received: elements of {shown(spec)}")
    in_batches = bool(spec[1].shape.rank)
    rows: list[np.ndarray] = []
    labels: list[Any] = []
    for x, label in dataset.as_numpy_iterator():
        for row, one in _rows(x, label) if in_batches else [(x, label)]:
            rows.append(row)
            labels.append(_label(one))
    if not rows:
        raise ArgumentError(f"{wanted}. Received: a dataset without elements")
    shapes = sorted({np.shape(row) for row in rows})
    if len(shapes) > 1:
        raise ArgumentError(
            f"dataset must give x of one shape: resize or pad them. Received: {len(shapes)} "
            f"shapes, {shapes[0]} and {shapes[-1]} among them"
        )
    arrays = np.stack(rows)
    images = arrays.dtype == np.uint8 and arrays.ndim == 4 and arrays.shape[-1] in (1, 3)
    if arrays.dtype.kind in "iub" and not images:
        arrays = arrays.astype(np.float32)
    names = getattr(dataset, "class_names", None)
    table = ImageTable.from_arrays(arrays[:, None] if arrays.ndim == 1 else arrays, labels)
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
    """Class-balanced batches of a labelled dataset that somebody has; see `BalancedSampler`.

    The dataset is read once, into memory (`table_from_dataset`): what it draws anew each time,
    random crops for instance, is drawn once; put layers that augment into the model, or map them
    over what this returns.

    Args:
        dataset: of (x, label), one by one or in batches, that ends.
        classes_per_batch: P.
        images_per_class: m.
        seed: integer that names the sequence of batches.
        num_steps: how many batches; None: no end, so `fit` needs `steps_per_epoch`.

    Returns:
        tf.data.Dataset of (x `[P·m, ...]`, labels int64 `[P·m]`: the classes' numbers in sorted
        order), with attributes `class_names` and `steps_per_epoch`, n // (P·m).

    Raises:
        TypeError, ValueError: as `table_from_dataset`, `BalancedSampler` and `training_batches`.

    Examples:

        given = tf.data.Dataset.from_tensor_slices((np.eye(6, dtype="float32"), list("aabbcc")))
        batches = balanced(given, classes_per_batch=2, images_per_class=2)
        steps_per_epoch = batches.steps_per_epoch  # for `fit(batches, ...)`
    """
    table = table_from_dataset(dataset)
    sampler = BalancedSampler(table.labels, classes_per_batch, images_per_class, seed)
    batches = training_batches(table, sampler, seed=seed, num_steps=num_steps)
    batches.class_names, batches.steps_per_epoch = table.class_names, sampler.steps_per_epoch
    return batches


def _rows(x: np.ndarray, labels: np.ndarray) -> Iterator[tuple[np.ndarray, Any]]:
    if np.ndim(x) == 0 or len(x) != len(labels):
        raise ArgumentError(
            "dataset must give a label for each x of a batch. "
            f"Received: a batch of shapes {np.shape(x)} and {labels.shape}"
        )
    if labels.ndim == 2 and labels.shape[1] == 1:
        labels = labels[:, 0]
    if labels.ndim != 1:
        raise ArgumentError(
            "dataset must give one class id for each x, not one-hot rows: label_mode='int', or map "
            f"tf.argmax over them. Received: labels of shape {labels.shape}"
        )
    return zip(x, labels)


def _label(label: Any) -> int | str:
    """A class id as Python's own."""
    value = label.item() if isinstance(label, np.generic | np.ndarray) else label
    if isinstance(value, bytes):
        return value.decode("utf-8", "backslashreplace")  # two classes stay two
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, int | str):
        return int(value) if isinstance(value, bool) else value
    raise ArgumentTypeError(
        f"dataset must give labels that are whole numbers or strings. Received: {shown(value)}"
    )
