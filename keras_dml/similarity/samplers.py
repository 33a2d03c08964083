"""Batches with several examples of each class, for every backend.

All samplers are a `keras.utils.PyDataset` and return NumPy arrays. They draw from Python's
`random`, so `keras.utils.set_random_seed` makes them reproducible. `sampler[i]` draws a new batch
for any i.
"""

import collections
import io
import random
from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy as np

from keras_dml._common.checks import check_choice, check_whole
from keras_dml._common.errors import ArgumentError, argument_error
from keras_dml._common.exports import public_names
from keras_dml._common.extras import TensorFlow, needing
from keras_dml._common.regular_files import read_regular

tf = TensorFlow("TFDataSampler")
Arrays = tuple[Any, Any]


def _same(example: Any) -> Any:
    return example


class Sampler(keras.utils.PyDataset):
    """A source of batches of examples in memory. A subclass defines `get_examples`.

    Examples:
        >>> issubclass(MultiShotMemorySampler, Sampler)
        True

    Args:
        classes_per_batch: Classes in a batch.
        examples_per_class_per_batch: Examples of each class.
        num_augmentations_per_example: Passed to the augmenter.
        steps_per_epoch: Number of batches in an epoch.
        augmenter: Function `(x, y, num_augmentations_per_example, is_warmup) -> (x, y)`, or None.
        warmup: Number of first epochs for which `is_warmup` is True. −1: the first epoch.

    Attributes:
        batch_size: Examples in a batch before augmentation.
        epoch: Number of finished epochs.
        is_warmup: Whether the warmup continues.
        num_examples, example_shape: Number of examples, and the shape of one, after `set_examples`.
    """

    def __init__(
        self,
        classes_per_batch: int,
        examples_per_class_per_batch: int = 2,
        num_augmentations_per_example: int = 1,
        steps_per_epoch: int = 1000,
        augmenter: Callable[..., Arrays] | None = None,
        warmup: int = 0,
    ) -> None:
        super().__init__()
        self.classes_per_batch = check_whole("classes_per_batch", classes_per_batch, least=1)
        self.examples_per_class_per_batch = check_whole(
            "examples_per_class_per_batch", examples_per_class_per_batch, least=1
        )
        self.steps_per_epoch = check_whole("steps_per_epoch", steps_per_epoch, least=1)
        self.num_augmentations_per_example = num_augmentations_per_example
        self.batch_size = classes_per_batch * examples_per_class_per_batch
        self.augmenter, self.warmup = augmenter, warmup
        self.epoch, self.is_warmup = 0, bool(warmup)

    def __len__(self) -> int:
        return self.steps_per_epoch

    def __getitem__(self, batch_id: int) -> Arrays:
        return self.generate_batch(batch_id)

    def generate_batch(self, batch_id: int) -> Arrays:
        """Return a new batch `(x, y)`. The number has no effect."""
        return self.augmented(*self.get_examples())

    def get_examples(self) -> Arrays:
        """Return a new batch `(x, y)` without augmentation."""
        raise NotImplementedError

    def augmented(self, x: Any, y: Any) -> Arrays:
        """Return a batch after the augmenter."""
        if self.augmenter is None:
            return x, y
        return self.augmenter(x, y, self.num_augmentations_per_example, self.is_warmup)

    def on_epoch_end(self) -> None:
        """Count the epoch, and end the warmup when it is due."""
        self.epoch += 1
        self.is_warmup = self.is_warmup and self.epoch < self.warmup

    def set_examples(self, x: np.ndarray, y: np.ndarray, load_example_fn: Callable = _same) -> None:
        """Set the examples, the class ids, and a function of an example that is drawn."""
        self._x, self._y, self.load_example_fn = x, y, load_example_fn
        self.num_examples = len(x)
        self.example_shape = np.shape(load_example_fn(x[0]))

    def rows(self, rows: Any) -> Arrays:
        """Return examples by row numbers or a slice."""
        return np.array([self.load_example_fn(one) for one in self._x[rows]]), self._y[rows]

    def get_slice(self, begin: int = 0, size: int = -1) -> Arrays:
        """Return `size` examples from `begin` on. −1 returns all up to the end.

        In the original, −1 leaves out the last example.
        """
        return self.rows(slice(begin, None if size == -1 else begin + size))


class MultiShotMemorySampler(Sampler):
    """Batches of random classes with several random examples each, from arrays.

    Examples are drawn without replacement, and with replacement from a class that is too small,
    after one printed warning per class.

    Examples:
        >>> x, y = np.arange(12.0)[:, None], np.arange(12) // 3
        >>> batches = MultiShotMemorySampler(x, y, steps_per_epoch=5)
        >>> len(batches), batches[0][0].shape, len(np.unique(batches[0][1]))
        (5, (4, 1), 2)

    Args:
        x, y: Examples and their class ids.
        load_example_fn: Function of an example, applied when it is drawn. None: no change.
        classes_per_batch, examples_per_class_per_batch, steps_per_epoch: As in `Sampler`.
        class_list: The classes to use. None uses all.
        total_examples_per_class: Number of examples to draw with replacement from each class at
            the start. None uses all.
        augmenter, warmup: As in `Sampler`.

    Attributes:
        class_list: The classes, a list of ints.
        index_per_class: Class id to the rows of its examples in the shuffled data.

    Raises:
        ValueError: There are fewer classes than `classes_per_batch`.
    """

    default_load: Callable[[Any], Any] = staticmethod(_same)

    def __init__(
        self,
        x: Any,
        y: Any,
        load_example_fn: Callable[[Any], Any] | None = None,
        classes_per_batch: int = 2,
        examples_per_class_per_batch: int = 2,
        steps_per_epoch: int = 1000,
        class_list: Sequence[int] | None = None,
        total_examples_per_class: int | None = None,
        augmenter: Callable[..., Arrays] | None = None,
        warmup: int = -1,
    ) -> None:
        super().__init__(
            classes_per_batch, examples_per_class_per_batch, steps_per_epoch=steps_per_epoch,
            augmenter=augmenter, warmup=warmup,
        )  # fmt: skip
        all_classes = class_list is None or not len(class_list)
        chosen: Any = y if all_classes else class_list
        self.class_list = sorted({_class_id(one) for one in chosen})
        if classes_per_batch > len(self.class_list):
            wanted = f"at most the number of classes, {len(self.class_list)}"
            raise argument_error("classes_per_batch", wanted, classes_per_batch)
        examples = select_examples(x, y, self.class_list, total_examples_per_class)
        self.set_examples(*examples, load_example_fn or self.default_load)
        self.index_per_class = _rows_by_class(self._y)
        for one, rows in self.index_per_class.items():
            if len(rows) < examples_per_class_per_batch:
                print(f"WARNING: class {one} has only {len(rows)} examples, so examples repeat in "
                      "a batch.")  # fmt: skip

    def get_examples(self) -> Arrays:
        """Return a new batch `(x, y)` without augmentation."""
        rows = []
        wanted = self.examples_per_class_per_batch
        for one in random.sample(self.class_list, self.classes_per_batch):
            among = self.index_per_class[one]
            draw = random.sample if len(among) >= wanted else random.choices
            rows += draw(among, k=wanted)
        return self.rows(rows)


class SingleShotMemorySampler(Sampler):
    """Batches of random rows, in which each row is a class. Needs an augmenter for pairs.

    Examples:
        >>> def twice(x, y, num_augmentations_per_example, is_warmup):
        ...     return np.concatenate([x, x]), np.concatenate([y, y])
        >>> batches = SingleShotMemorySampler(np.ones((6, 3)), twice, examples_per_batch=4)
        >>> batches[0][0].shape
        (8, 3)

    Args:
        x: Examples.
        augmenter, num_augmentations_per_example, steps_per_epoch, warmup: As in `Sampler`.
        examples_per_batch: Rows in a batch before augmentation, drawn with replacement.
    """

    def __init__(
        self,
        x: Any,
        augmenter: Callable[..., Arrays],
        examples_per_batch: int,
        num_augmentations_per_example: int = 2,
        steps_per_epoch: int = 1000,
        warmup: int = -1,
    ) -> None:
        super().__init__(
            examples_per_batch, 1, num_augmentations_per_example, steps_per_epoch, augmenter, warmup
        )
        self.set_examples(np.asarray(x), np.arange(len(x)))

    def get_examples(self) -> Arrays:
        """Return a new batch `(x, y)` without augmentation."""
        return self.rows(random.choices(range(self.num_examples), k=self.batch_size))

    def get_slice(self, begin: int = 0, size: int = -1) -> Arrays:
        """Return `size` augmented examples from `begin` on. −1 returns all up to the end."""
        return self.augmented(*super().get_slice(begin, size))


def load_image(path: str, target_size: tuple[int, int] | None = None) -> np.ndarray:
    """Read an image as RGB, float32 in 0 to 1. Needs Pillow.

    Examples:
        >>> keras.utils.save_img("one.png", np.full((4, 6, 3), 255.0), scale=False)
        >>> load_image("one.png", target_size=(2, 3)).shape
        (2, 3, 3)

    Args:
        path: An image file.
        target_size: Height and width for a resize with a Lanczos filter, or None.

    Raises:
        OSError: The file is missing, a pipe or device, or larger than 256 MB.
    """
    with needing("commands", "load_image"):
        from PIL import Image
    with Image.open(io.BytesIO(read_regular(path))) as file:
        image = file.convert("RGB")
        if target_size:
            image = image.resize(target_size[::-1], Image.Resampling.LANCZOS)
        return np.asarray(image, "float32") / 255.0


class MultiShotFileSampler(MultiShotMemorySampler):
    """A `MultiShotMemorySampler` over paths of images, read when they are drawn.

    Examples:
        >>> for number in range(4):
        ...     keras.utils.save_img(f"{number}.png", np.full((4, 4, 3), number), scale=False)
        >>> paths = np.array([f"{number}.png" for number in range(4)])
        >>> MultiShotFileSampler(paths, np.array([0, 0, 1, 1]))[0][0].shape
        (4, 4, 4, 3)

    Args:
        x, y: Paths and class ids.
        load_example_fn: Function of a path. None: `load_image`.
        args, kwargs: As in `MultiShotMemorySampler`.
    """

    default_load = staticmethod(load_image)


class TFDatasetMultiShotMemorySampler(MultiShotMemorySampler):
    """A `MultiShotMemorySampler` over CIFAR-10, CIFAR-100, MNIST, or Fashion-MNIST.

    The data come from `keras.datasets`. For another dataset, load its arrays and use
    `MultiShotMemorySampler`.

    Examples:
        >>> issubclass(TFDatasetMultiShotMemorySampler, MultiShotMemorySampler)
        True

    Args:
        dataset_name: `"cifar10"`, `"cifar100"`, `"mnist"`, or `"fashion_mnist"`.
        classes_per_batch: Classes in a batch.
        x_key: Must be `"image"`.
        y_key: `"label"`, or `"coarse_label"` for CIFAR-100.
        splits: `"train"`, `"test"`, or both.
        preprocess_fn: Function `(image, label) -> (image, label)`, applied once.
        kwargs: As in `MultiShotMemorySampler`.

    Raises:
        ValueError: The dataset, a split, or a key is unknown.
    """

    def __init__(
        self,
        dataset_name: str,
        classes_per_batch: int,
        x_key: str = "image",
        y_key: str = "label",
        splits: str | Sequence[str] = ("train", "test"),
        *,
        preprocess_fn: Callable[[Any, Any], Arrays] | None = None,
        **kwargs: Any,
    ) -> None:
        known = ("cifar10", "cifar100", "mnist", "fashion_mnist")
        if dataset_name not in known:
            wanted = f"one of {', '.join(known)}"
            advice = "For another dataset, load its arrays and use MultiShotMemorySampler."
            raise argument_error("dataset_name", wanted, dataset_name, advice=advice)
        check_choice("x_key", x_key, ("image",))
        y_keys = ("label", "coarse_label") if dataset_name == "cifar100" else ("label",)
        check_choice("y_key", y_key, y_keys)
        options = {"label_mode": "coarse"} if y_key == "coarse_label" else {}
        loaded = getattr(keras.datasets, dataset_name).load_data(**options)
        of_split = dict(zip(("train", "test"), loaded))
        parts = [
            of_split[check_choice("splits", split, ("train", "test"))]
            for split in ([splits] if isinstance(splits, str) else splits)
        ]
        x, y = (np.concatenate(arrays) for arrays in zip(*parts))
        y = y.reshape(-1)
        if preprocess_fn is not None:
            pairs = [preprocess_fn(*pair) for pair in zip(x, y)]
            x, y = (np.array(values) for values in zip(*pairs))
        super().__init__(x, y, classes_per_batch=classes_per_batch, **kwargs)


def TFDataSampler(
    ds: Any,
    classes_per_batch: int = 2,
    examples_per_class_per_batch: int = 2,
    class_list: Sequence[int] | None = None,
    total_examples_per_class: int | None = None,
    augmenter: Callable[..., Any] | None = None,
    load_fn: Callable[..., Any] | None = None,
    warmup: int = 0,
    label_output: int | str | None = None,
) -> Any:
    """Return an endless `tf.data.Dataset` of batches with several examples per class.

    Needs TensorFlow. `pipelines.balanced` does the same with a seed.

    Examples:
        >>> import tensorflow as tf
        >>> ds = tf.data.Dataset.from_tensor_slices((np.arange(12.0), np.arange(12) // 3))
        >>> x, y = next(iter(TFDataSampler(ds)))
        >>> x.shape[0], len(np.unique(y))
        (4, 2)

    Args:
        ds: A dataset of examples `(x, y)` with a known size.
        classes_per_batch, examples_per_class_per_batch: As in `Sampler`.
        class_list: The classes to use. None uses all.
        total_examples_per_class: Number of first examples of each class. None uses all.
        augmenter: Function of an example, applied after the first `warmup` examples.
        load_fn: Function of an example.
        warmup: Number of examples without augmentation.
        label_output: Key of the class id in y. None: y is the class id.

    Raises:
        ValueError: The size of the dataset is infinite or unknown.
    """
    size = int(ds.cardinality())
    if size < 0:
        raise ArgumentError("ds must have a known, finite size. Set it with assert_cardinality.")

    def label(x: Any, y: Any, *rest: Any) -> Any:
        return tf.cast(y if label_output is None else y[label_output], tf.int64)

    if class_list is not None:
        known = tf.constant(sorted({int(one) for one in class_list}), tf.int64)
        ds = ds.filter(lambda *example: tf.reduce_any(tf.equal(label(*example), known)))
    whole_classes = ds.group_by_window(
        label, lambda _, examples: examples.batch(size), window_size=size
    )
    of_class = [tf.data.Dataset.from_tensor_slices(examples) for examples in whole_classes]
    if total_examples_per_class is not None:
        of_class = [examples.take(total_examples_per_class) for examples in of_class]
    repeats = examples_per_class_per_batch
    order = tf.data.Dataset.range(len(of_class)).shuffle(len(of_class))
    order = order.flat_map(lambda one: tf.data.Dataset.from_tensors(one).repeat(repeats)).repeat()
    examples = tf.data.Dataset.choose_from_datasets([each.repeat() for each in of_class], order)
    if load_fn is not None:
        examples = examples.map(load_fn)
    if augmenter is not None:
        examples = examples.take(warmup).concatenate(examples.skip(warmup).map(augmenter))
    return examples.batch(classes_per_batch * repeats).prefetch(tf.data.AUTOTUNE)


def select_examples(
    x: Any,
    y: Any,
    class_list: Sequence[int] | None = None,
    num_examples_per_class: int | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """Return shuffled examples and class ids.

    Examples:
        >>> x, y = select_examples(np.ones((6, 2)), [0, 0, 1, 1, 2, 2], [0, 1], 3)
        >>> x.shape, sorted(y.tolist())
        ((6, 2), [0, 0, 0, 1, 1, 1])

    Args:
        x, y: Examples and their class ids.
        class_list: The classes to use. None uses all.
        num_examples_per_class: Number of examples to draw from each class, with replacement. None
            returns each example once.

    Raises:
        ValueError: A class has no examples.
    """
    by_class = _rows_by_class(y)
    wanted = by_class if class_list is None else {_class_id(one) for one in class_list}
    rows: list[int] = []
    for one in wanted:
        among = by_class.get(one, [])
        if not among:
            raise argument_error("class_list", "classes of y", one)
        rows += random.choices(among, k=num_examples_per_class) if num_examples_per_class else among
    random.shuffle(rows)
    return np.array([x[row] for row in rows]), np.array([y[row] for row in rows])


def _class_id(label: Any) -> int:
    return int(np.ravel(label)[0])


def _rows_by_class(y: Any) -> dict[int, list[int]]:
    rows: dict[int, list[int]] = collections.defaultdict(list)
    for row, label in enumerate(y):
        rows[_class_id(label)].append(row)
    return dict(rows)


__all__ = public_names(__name__)
