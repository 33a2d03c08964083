"""What the flags describe of devices and data: strategy, tables, transforms, sampler."""

import dataclasses
import re
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import pipelines
from experiments.options import flags
from experiments.training.arguments import Options
from experiments.training.run_folder import State
from pipelines import (
    BalancedSampler,
    EvaluationTransform,
    ImageTable,
    RandomSampler,
    Split,
    TrainTransform,
)


def devices(options: Options) -> tf.distribute.Strategy:
    """Seed, determinism, precision; returns the strategy. Comes before anything uses TensorFlow.

    Raises:
        ValueError: a batch that the devices cannot share equally.
    """
    if options.logical_devices > 1 and options.strategy != "mirrored":
        raise ValueError(
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
        raise ValueError(
            f"batch_size must be a multiple of the {strategy.num_replicas_in_sync} devices. "
            f"Received: batch_size={options.batch_size}"
        )
    return strategy


def load(options: Options) -> Split:
    """The dataset that the flags name, with all of its images."""
    if options.dataset is None:
        raise ValueError(
            f"dataset must be one of {', '.join(pipelines.DATASETS)} "
            "(or give a recipe: --flagfile=glyphs.flags). Received: no dataset"
        )
    return pipelines.load_dataset(
        options.dataset,
        data_dir=options.data_dir,
        train_classes=options.train_classes,
        test_classes=options.test_classes,
        crop_to_box=options.crop_to_box,
    )


def data(options: Options, left_out: Sequence[str] | None = None) -> tuple[Split, list[str]]:
    """The training and the test table, and the lines that tell which bad images were left out.

    Args:
        options: of the dataset.
        left_out: these lines, where they are known: a run that is continued leaves out what it left
            out at its start. None: with `skip_bad_images` every image is looked at.
    """
    split = load(options)
    if not options.skip_bad_images or split.train.arrays is not None:
        _refuse_other_files(split)
        return split, []
    lines = _bad_images(split) if left_out is None else list(left_out)
    names = [line.rsplit("\t", 1)[0] for line in lines]
    left = {side: _without(side, table, names) for side, table in split.tables.items()}
    if not split.same_classes:
        trained = np.unique(left["training"].labels)
        tested = np.unique(
            np.concatenate([left[side].labels for side in left if side != "training"])
        )
        left = {
            side: table.select_classes(trained if side == "training" else tested)
            for side, table in left.items()
        }
    return dataclasses.replace(
        split, train=left["training"], test=left["test"], gallery=left.get("gallery")
    ), lines


def _refuse_other_files(split: Split) -> None:
    # By their first bytes alone: it takes seconds, and spares a training that a text file named
    # .jpg would end at the first evaluation. A damaged image is found when it is decoded.
    for side, table in split.tables.items():
        bad = pipelines.find_bad_images(table, decode=False)
        if bad:
            raise ValueError(not_an_image(side, table, bad))


def not_an_image(side: str, table: ImageTable, bad: Sequence[tuple[int, str, str]]) -> str:
    """The message that names the first of the bad images and says what to do."""
    row, _, reason = bad[0]
    more = f" ({len(bad) - 1} more like it)" if len(bad) > 1 else ""
    name = image_names(side, table)[row]
    return (
        f"not an image that can be read: {name} ({reason}){more}. "
        "--skip_bad_images leaves such files out"
    )


def _bad_images(split: Split) -> list[str]:
    lines = []
    for side, table in split.tables.items():
        for row, _, reason in pipelines.find_bad_images(table):
            name = image_names(side, table)[row]
            lines.append(f"{name}\t{reason}")
            print(f"left out: {name} ({reason})")
    return lines


def image_names(side: str, table: ImageTable) -> np.ndarray:
    """What a table's images are called: by their paths, or those in memory by their rows."""
    if table.paths is not None:
        return table.paths
    return np.array([f"{side} image {row}" for row in range(len(table))])


def _without(side: str, table: ImageTable, left_out: Sequence[str]) -> ImageTable:
    kept = np.flatnonzero(~np.isin(image_names(side, table), left_out))
    if not len(kept):
        raise ValueError(f"data_dir has no {side} image that can be read ({len(table)} left out)")
    return table.select(kept)


def describe(
    data: Split, model: keras.Model, steps_per_epoch: int, options: Options, state: State
) -> str:
    """One line of what is about to happen."""
    train, test = data.train, data.test
    tested = "the same" if data.same_classes else f"{test.num_classes:,} others"
    if data.gallery:
        tested += f" in a gallery of {len(data.gallery):,}"
    text = (
        f"{len(train):,} images of {train.num_classes:,} classes to train, "
        f"{len(test):,} of {tested} to test; "
        f"{model.count_params():,} parameters; "
        f"{options.epochs} epochs of {steps_per_epoch} steps"
    )
    return f"{text}; continued after epoch {state.epoch}" if state.epoch else text


def transforms(options: Options) -> tuple[TrainTransform, EvaluationTransform]:
    """The training and the evaluation transform."""
    resize = _resize(options.resize)
    try:
        train = pipelines.TrainTransform(
            image_size=options.image_size,
            resize=resize,
            crop=options.crop,
            area=_numbers("crop_area", options.crop_area, 2),
            aspect=_numbers("crop_aspect", options.crop_aspect, 2),
            flip=options.flip,
            jitter=_numbers("jitter", options.jitter, 4),
        )
    except ValueError as error:
        # The library's names of these arguments, which are flags of other names here.
        raise ValueError(re.sub(r"\b(area|aspect)( must|=)", r"crop_\1\2", str(error))) from error
    return train, pipelines.EvaluationTransform(image_size=options.image_size, resize=resize)


def sampler(options: Options, table: ImageTable) -> RandomSampler | BalancedSampler:
    """Batch number to row numbers of the training table."""
    if options.sampler == "random":
        return pipelines.RandomSampler(len(table), options.batch_size, seed=options.seed)
    if options.batch_size % options.images_per_class:
        raise ValueError(
            f"batch_size must be a multiple of images_per_class={options.images_per_class}. "
            f"Received: batch_size={options.batch_size}"
        )
    classes = options.batch_size // options.images_per_class
    if classes > table.num_classes:
        raise ValueError(
            f"batch_size={options.batch_size} over images_per_class={options.images_per_class} are "
            f"{classes} classes a batch, but only {table.num_classes} classes train: lower "
            "--batch_size or raise --images_per_class or --train_classes"
        )
    return pipelines.BalancedSampler(
        table.labels,
        classes_per_batch=classes,
        images_per_class=options.images_per_class,
        seed=options.seed,
    )


def recall_at(options: Options, num_test: int, num_gallery: int | None = None) -> list[int]:
    """The K of recall at K, sorted; without the flag, those that the test images allow.

    Args:
        options: of the evaluation.
        num_test: how many images are looked for.
        num_gallery: in how many others; None: in each other.
    """
    most = num_gallery or num_test - 1
    if most < 1:
        raise ValueError(
            f"test needs at least 2 images to find one by the other. Received: {num_test}"
        )
    ks = set(flags.whole_numbers("recall_at", options.recall_at))
    if not options["recall_at"].present:
        ks = {k for k in ks if k <= most}
    items = "images of the gallery" if num_gallery else "other test images"
    if ks and not 1 <= min(ks) <= max(ks) <= most:
        raise ValueError(
            f"recall_at must be between 1 and {most}, the {items}. "
            f"Received: recall_at={','.join(options.recall_at)}"
        )
    return sorted(ks | {1})


def _resize(text: str | None) -> int | tuple[int, int] | None:
    if text is None:
        return None
    sides = text.lower().split("x")
    if len(sides) > 2 or not all(side.isdigit() for side in sides):
        raise ValueError(
            f"resize must be N or HxW, such as 256 or 256x256. Received: resize={text}"
        )
    return int(text) if len(sides) == 1 else (int(sides[0]), int(sides[1]))


def _numbers(name: str, words: Sequence[str], how_many: int) -> tuple[Any, ...]:
    try:
        numbers = tuple(float(word) for word in words)
    except ValueError:
        numbers = ()
    if len(numbers) != how_many:
        raise ValueError(
            f"{name} must be {how_many} numbers with commas between them. "
            f"Received: {name}={','.join(words)}"
        )
    return numbers
