"""The data that the options describe: tables, transforms, and sampler. Needs TensorFlow."""

from __future__ import annotations

import dataclasses
import errno
import json
import os
import shlex
from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias, cast

import numpy as np

import pipelines
from experiments.options.conversions import numbers, whole_numbers
from experiments.options.errors import RunError, UsageError
from experiments.options.loss_flags import RELATION, naming_flags
from experiments.options.run_options import (
    AugmentationOptions,
    BadImageOptions,
    DataOptions,
    ImageSizeOptions,
    RelationOptions,
    SamplingOptions,
    ScoringOptions,
)
from experiments.options.visible import visible
from keras_dml import relations
from keras_dml.models.backbones import NO_WEIGHTS, native_image_size
from pipelines.datasets.download import ARCHIVES
from pipelines.datasets.files import MissingDataError
from pipelines.hard_classes import HardClassSampler
from pipelines.samplers import SAMPLERS, BalancedSampler, RandomSampler
from pipelines.split import Split

_Pair: TypeAlias = tuple[float, float]
_Four: TypeAlias = tuple[float, float, float, float]
# Least share of an image that the crop of the evaluation shows without a warning.
_LEAST_SEEN = 2 / 3
# Largest share of files that a run skips without --skip_bad_images, and the lines that it prints.
_MOST_BAD, _LINES = 0.05, 10
# Messages of a read from a disk or mount that is gone.
_GONE = ("EIO", "ESTALE", "ENOTCONN", "ENODEV", "ENXIO", "EHOSTDOWN", "ETIMEDOUT")
_LOST = {os.strerror(getattr(errno, name)) for name in _GONE}


def has_several_classes(options: DataOptions) -> bool:
    """Return whether an image can have several classes: with texts, or a relation of tags.

    Options of a command without training have neither texts nor a relation.
    """
    return (
        getattr(options, "texts", None) is not None
        or getattr(options, "relation", None) == "shares_label"
    )


def load(options: DataOptions, several_classes: bool = False) -> Split:
    """Load the dataset that the flags name, or a fold of its training classes.

    Args:
        options: The options.
        several_classes: Whether an image can have several classes, although the options do not say
            so.
    """
    if options.dataset is None:
        raise UsageError(
            f"dataset must be one of {', '.join(pipelines.DATASETS)}, but got none. A recipe sets "
            "it, too, such as --flagfile=glyphs.flags."
        )
    try:
        split = pipelines.load_dataset(
            options.dataset,
            data_dir=options.data_dir,
            train_classes=options.train_classes,
            test_classes=options.test_classes,
            crop_to_box=options.crop_to_box,
            split=options.class_split,
            split_seed=options.split_seed,
            outside_paths=options.outside_paths,
            several_classes=several_classes or has_several_classes(options),
        )
    except MissingDataError as error:
        if options.dataset not in ARCHIVES:
            raise
        folder = shlex.quote(options.data_dir or "data")
        raise UsageError(
            f"{error} To download it: keras-dml prepare --dataset={options.dataset} "
            f"--data_dir={folder}"
        ) from error
    if options.fold is None:
        return split
    # Here, so that no later code has the test images.
    return pipelines.training_fold(split, *map(int, options.fold.split("/")))


def data(
    options: BadImageOptions,
    known_bad: Sequence[str] | None = None,
    several_classes: bool = False,
) -> tuple[Split, list[str]]:
    """Load the tables, and list the bad images that are left out.

    With `--skip_bad_images`, every image is decoded first. Otherwise only the first bytes of the
    files are read, and `folder` can have 5 % of bad files.

    Args:
        options: The options.
        known_bad: List of an earlier call for the same files. None to look for bad images.
        several_classes: As for `load`.

    Raises:
        UsageError: The dataset is not set, files are not images, or a side has no images.
        ArgumentError: As `pipelines.load_dataset`.
    """
    split = load(options, several_classes)
    if np.bincount(split.train.labels).max() < 2:
        raise UsageError(
            "dataset must have at least 2 images of a class, but got 1 for each of the "
            f"{len(split.train):,} training classes. Put all images of a class into one folder."
        )
    if split.train.arrays is not None:
        return split, []
    tables = all_tables(split)
    reasons = _bad_images(tables, options) if known_bad is None else dict(map(_of_line, known_bad))
    lines: list[str] = []
    left: dict[str, pipelines.ImageTable] = {}
    for side, table in tables.items():
        names = image_names(side, table).tolist()
        good = [name not in reasons for name in names]
        if not any(good):
            raise UsageError(
                f"data_dir has no {side} image that can be read ({len(table)} left out)"
            )
        lines += [bad_image_line(name, reasons[name]) for name in names if name in reasons]
        left[side] = table.select(np.flatnonzero(good))
    if not lines:
        return split, []
    for line in lines[:_LINES]:
        name, reason = line.rsplit("\t", 1)
        print(f"left out: {name} ({reason})")
    if len(lines) > _LINES:
        print(f"left out: {len(lines) - _LINES:,} more images")
    if not split.same_classes:
        trained = np.unique(left["training"].labels)
        tested = np.unique(
            np.concatenate([left[side].labels for side in left if "training" not in side])
        )
        left = {
            side: table.select_classes(trained if "training" in side else tested)
            for side, table in left.items()
        }
    return dataclasses.replace(
        split,
        train=left["training"],
        test=left["test"],
        gallery=left.get("gallery"),
        catalog=left.get("catalog"),
        training_catalog=left.get("training catalog"),
    ), lines


def all_tables(split: Split) -> dict[str, pipelines.ImageTable]:
    """Return the tables of a split by name, and the catalog of the training classes."""
    catalog = split.training_catalog
    return split.tables | ({} if catalog is None else {"training catalog": catalog})


def not_an_image(
    side: str, table: pipelines.ImageTable, bad: Sequence[tuple[int, object, str]]
) -> str:
    """Return the message about the first bad image, with advice."""
    row, _, reason = bad[0]
    more = f" ({len(bad) - 1} more like it)" if len(bad) > 1 else ""
    name = image_names(side, table)[row]
    of_size = reason.endswith((" pixels", " MB"))
    raised = ", a higher --max_pixels takes them" if of_size else ""
    return (
        f"not an image that can be read: {name} ({reason}){more}. "
        f"--skip_bad_images leaves such files out{raised}"
    )


def check_still_there(bad: Sequence[tuple[int, str, str]], advice: str = "") -> None:
    """Raise `RunError` if images cannot be read because their disk or mount is gone.

    Args:
        bad: Result of `find_bad_images`.
        advice: What to do when the disk is back.
    """
    from pipelines.images import bad_images  # imports TensorFlow

    for _, name, reason in bad:
        if reason in _LOST or (
            reason == bad_images.NO_SUCH_FILE
            and (advice or not os.path.isdir(os.path.dirname(name)))
        ):
            text = f"{name} can no longer be read ({reason}): is its disk or mount gone?"
            raise RunError(f"{text} When it is back {advice}" if advice else text)


def _bad_images(
    tables: Mapping[str, pipelines.ImageTable], options: BadImageOptions
) -> dict[str, str]:
    """Return the reasons of the images to leave out, by name.

    Raises:
        UsageError: There are bad images, and `--skip_bad_images` has to allow it.
    """
    decode = options.skip_bad_images
    bad = {
        side: pipelines.find_bad_images(table, decode=decode, max_pixels=options.max_pixels)
        for side, table in tables.items()
    }
    most = _MOST_BAD * sum(map(len, tables.values())) if options.dataset == "folder" else 0
    reasons: dict[str, str] = {}
    for side, found in bad.items():
        if not decode and sum(map(len, bad.values())) > most and found:
            raise UsageError(not_an_image(side, tables[side], found))
        check_still_there(found)
        names = image_names(side, tables[side]).tolist()
        reasons |= {names[row]: reason for row, _, reason in found}
    return reasons


def bad_image_line(name: str, reason: str) -> str:
    """Return `name<tab>reason` for a list of bad images.

    A name with control characters, with bytes that are not UTF-8, or with a quote at its start
    becomes a JSON string.
    """
    is_plain = name.isprintable() and not name.startswith('"')
    shown = name if is_plain else json.dumps(name)
    return f"{shown}\t{visible(' '.join(reason.split()))}"


def _of_line(line: str) -> tuple[str, str]:
    """Return the name and the reason of a line of `bad_image_line`."""
    name, reason = line.rsplit("\t", 1)
    return json.loads(name) if name.startswith('"') else name, reason


def classes_in_words(table: pipelines.ImageTable, shown: Callable[[str], str] = visible) -> str:
    """Return the first three classes of a table and the last one, each as `shown` returns it."""
    names = [shown(name) for name in table.class_names]
    return ", ".join(names if len(names) <= 5 else [*names[:3], "…", names[-1]])


def image_names(side: str, table: pipelines.ImageTable) -> np.ndarray:
    """Return the paths of a table's images, or names with row numbers for images in memory."""
    if table.paths is not None:
        return table.paths
    return np.array([f"{side} image {row}" for row in range(len(table))])


def training_transform(options: AugmentationOptions) -> pipelines.TrainTransform:
    """Create the transform of training images."""
    with naming_flags({"area": "crop_area", "aspect": "crop_aspect"}):
        return pipelines.TrainTransform(
            image_size=options.training_size or options.image_size,
            resize=_resize(options.resize),
            crop=options.crop,
            crop_from=options.crop_from,
            area=cast(_Pair, numbers("crop_area", options.crop_area, 2)),
            aspect=cast(_Pair, numbers("crop_aspect", options.crop_aspect, 2)),
            flip=options.flip,
            jitter=cast(_Four, numbers("jitter", options.jitter, 4)),
            max_pixels=options.max_pixels,
        )


def evaluation_transform(options: ImageSizeOptions) -> pipelines.EvaluationTransform:
    """Create the transform of evaluated images."""
    return pipelines.EvaluationTransform(
        options.image_size, _resize(options.resize), options.max_pixels
    )


def crop_line(options: ImageSizeOptions) -> str:
    """Return a warning if the crop of the evaluation removes more than a third of an image."""
    resize, size = _resize(options.resize), options.image_size
    height, width = resize if isinstance(resize, tuple) else (resize or size,) * 2
    seen = size * size / (height * width)
    if seen >= _LEAST_SEEN:
        return ""
    return (
        f"the evaluation sees the central {seen:.0%} of a "
        f"{'photograph' if isinstance(resize, tuple) else 'square photograph'}: "
        f"image_size={size} crops resize={options.resize}. A smaller --resize shows more"
    )


def native_size_line(backbone: str, weights: str, image_size: int) -> str:
    """Return a note if a backbone gets images of another size than its weights; empty if not."""
    native = native_image_size(backbone)
    if weights == NO_WEIGHTS or native in (None, image_size):
        return ""
    return (
        f"image_size={image_size}, but the public weights of {backbone} were trained with "
        f"{native} pixels. Without training, --image_size={native} is usually better"
    )


def sampler(
    options: SamplingOptions, table: pipelines.ImageTable, seed: int
) -> RandomSampler | BalancedSampler | HardClassSampler:
    """Create the sampler of the training table.

    Raises:
        UsageError, ArgumentError: The sampler does not take a flag, or cannot fill a batch.
    """
    make = SAMPLERS[options.sampler]
    return make(table.labels, options.batch_size, seed=seed, **options.sampler_arguments)


def relation(options: RelationOptions) -> relations.Relation | None:
    """Create the relation of the labels, or None for class ids.

    Raises:
        UsageError: A flag of a relation is set that the relation does not take.
        ArgumentError: An argument of the relation is out of range.
    """
    name = options.relation
    if name is None:
        for argument, value in options.of_relations.items():
            raise UsageError(
                f"{RELATION}{argument} must be unset without --relation=NAME, but got {value}."
            )
        return None
    taken = options.relation_arguments
    tags = {"encoding": "ids"} if name == "shares_label" else {}
    with naming_flags({each: f"{RELATION}{each}" for each in taken}):
        return relations.RELATIONS[name](**taken, **tags)


def paths_of_classes(classes: pipelines.ImageTable | None) -> np.ndarray:
    """Return the labels (coarse class, class) of each class, int64 `[K, 2]`, all different.

    Raises:
        UsageError: The dataset has no coarse classes.
    """
    if classes is None or classes.coarse_ids is None:
        raise UsageError(
            "dataset must have coarse classes with --relation, but got none. groceries, sop, and a "
            "folder of nested class folders (category/product/image.jpg) have them."
        )
    coarse = np.unique(classes.coarse_ids, return_inverse=True)[1]
    return np.stack([coarse, coarse.max() + 1 + np.arange(classes.num_classes)], axis=1)


def recall_at(options: ScoringOptions, queries: int, gallery: int | None = None) -> list[int]:
    """Return the values of K for recall at K, sorted. Too large defaults are left out.

    Args:
        options: The options.
        queries: Number of queries.
        gallery: Number of images in the gallery. None if the queries search each other.

    Raises:
        UsageError: There are too few images, or a K is not between 1 and the number of candidates.
    """
    most = queries - 1 if gallery is None else gallery
    if gallery == 0:
        raise UsageError("The gallery must have at least 1 image, but got 0.")
    if most < 1:
        raise UsageError(
            f"The queries must have at least 2 images, to find one by the other, but got {queries}."
        )
    ks = set(whole_numbers("recall_at", options.recall_at))
    if "recall_at" not in options.given:
        ks = {k for k in ks if k <= most}
    items = "other test images" if gallery is None else "images of the gallery"
    if ks and not 1 <= min(ks) <= max(ks) <= most:
        raise UsageError(
            f"recall_at must be from 1 to {most}, the number of {items}, but got "
            f"{','.join(options.recall_at)}."
        )
    return sorted(ks | {1})


def _resize(text: str | None) -> int | tuple[int, int] | None:
    if text is None:
        return None
    sides = text.lower().split("x")
    if len(sides) > 2 or not all(side.isdecimal() for side in sides):
        raise UsageError(f"resize must be N or HxW, such as 256 or 256x256, but got {text}.")
    return int(text) if len(sides) == 1 else (int(sides[0]), int(sides[1]))
