"""The images of a run, and checks that they have not changed since it began."""

from __future__ import annotations

import hashlib
import logging
import os
import pathlib
from typing import Any

from experiments.evaluation.result import NATIVE_FILE, RAW_PIXELS_FILE, UNTRAINED_FILE
from experiments.options import RunOptions, UsageError, parse
from experiments.options.data import data, has_several_classes
from experiments.options.run_options import BadImageOptions, DataOptions
from experiments.options.texts import with_texts
from experiments.options.visible import visible
from experiments.training.run_files import (
    IMAGES,
    flag_file_of,
    has_checkpoint,
    kept_images,
)
from experiments.training.run_folder import RunFolder
from pipelines import ImageTable, Split
from pipelines.datasets.tfds import PREFIX

_LOGGER = logging.getLogger("experiments")

Record = dict[str, Any]
_TRAINING = "training"
_TRAINING_TEXTS = "training catalog"
_CATALOGS = ("catalog", _TRAINING_TEXTS)
# Options that select the images.
_WHICH = (*DataOptions.__annotations__.keys() - {"outside_paths"}, "skip_bad_images")
_SHOWN = 3


def record_of(split: Split) -> Record:
    """Return the content of `images.json`: the images of each side of the split.

    Files are listed by class and name, without their folders, which can move. Images in memory have
    the SHA-256 of their classes. Texts of test classes and of training classes have the SHA-256 of
    their classes and words.
    """
    sides = dict(split.tables)
    if split.training_catalog is not None and split.training_catalog.encoded is not None:
        sides[_TRAINING_TEXTS] = split.training_catalog
    return {side: _side(side, table) for side, table in sides.items()}


def _side(side: str, table: ImageTable) -> Record:
    found: Record = {"images": len(table)}
    if table.paths is None:
        digest = hashlib.sha256("\n".join(table.class_names).encode())
        digest.update(table.labels.tobytes())
        if side in _CATALOGS and table.encoded is not None:
            digest.update(b"\n".join(table.encoded))  # texts, which are small
        return {**found, "sha256": digest.hexdigest()}
    classes: dict[str, list[str]] = {}
    for path, label in zip(table.paths.tolist(), table.labels.tolist()):
        classes.setdefault(table.class_names[label], []).append(os.path.basename(path))
    return {**found, "classes": {name: sorted(classes[name]) for name in sorted(classes)}}


def settle_images(folder: RunFolder, image_record: Record) -> None:
    """Write the images of a new run, and compare the images of a resumed run.

    Args:
        folder: Open folder of the run.
        image_record: Images, from `record_of`.

    Raises:
        UsageError: The resumed run began with other images.
    """
    if not folder.writes:
        return
    before = kept_images(folder.path)
    if has_checkpoint(folder.path):
        changes, _ = _changes(before or {}, image_record)
        if changes:
            raise UsageError(
                "output_dir must be new, empty, or a run of the same images, but got "
                f"{str(folder.path)!r}: {changes}. Put them back, or set another --output_dir."
            )
        return
    if before != image_record:
        for name in (RAW_PIXELS_FILE, UNTRAINED_FILE, NATIVE_FILE):  # of the images that were there
            folder.file(name).unlink(missing_ok=True)
    folder.write_json(IMAGES, image_record)


def options_of_run(run: pathlib.Path) -> RunOptions:
    """Return the options of a run from its folder."""
    return parse(RunOptions, ["run", f"--flagfile={flag_file_of(run)}"])


def images_of_run(
    run: pathlib.Path, options: BadImageOptions, data_dir_moves: bool, refuses: bool
) -> Split:
    """Load the images of a run.

    Warns if the images have changed since the run.

    Args:
        run: Folder of the run.
        options: Options of the images. If they select other images than the run's, the images are
            not compared.
        data_dir_moves: Whether another `data_dir` contains the same images.
        refuses: Whether to refuse training images among the test images.

    Raises:
        UsageError: As `options.data.data`. Also if `options.data_dir` is not a folder, or if a test
            image can have been a training image.
    """
    of_run = options_of_run(run)
    _check_there(options)
    split, _ = data(options, several_classes=has_several_classes(of_run))
    if of_run.texts is not None:
        split = with_texts(split, of_run.texts)
    before = kept_images(run)
    if before is None or _asks_for_others(options, of_run, data_dir_moves):
        return split
    changes, may_show_trained = _changes(before, record_of(split))
    if not changes:
        return split
    said = f"{run} was made of other images: {changes}"
    if refuses and may_show_trained and not of_run.keeps_nothing_back:
        raise UsageError(
            f"{said}. Training images would be measured: put the images back, run again, or name "
            "the right folder, --data_dir=FOLDER"
        )
    _LOGGER.warning("%s. The results are for the present images. Run again to train on them", said)
    return split


def _check_there(options: BadImageOptions) -> None:
    folder = options.data_dir
    # tensorflow-datasets downloads missing files.
    if folder is None or os.path.exists(folder) or (options.dataset or "").startswith(PREFIX):
        return
    here = "" if os.path.isabs(folder) else f", which is not in {os.getcwd()}"
    raise UsageError(
        f"data_dir must be the folder or file of the run's images, but got {folder}{here}. "
        "--data_dir=FOLDER names its new place."
    )


def _asks_for_others(options: BadImageOptions, of_run: RunOptions, data_dir_moves: bool) -> bool:
    """Return whether the options select other images than the run's."""
    different = {name for name in _WHICH if getattr(options, name) != getattr(of_run, name)}
    here, there = options.data_dir, of_run.data_dir
    if data_dir_moves or (here and there and os.path.realpath(here) == os.path.realpath(there)):
        different.discard("data_dir")
    return bool(different)


def _changes(before: Record, now: Record) -> tuple[str, bool]:
    """Return the differences between two records in words, "" without a difference.

    Also return whether a test image can have been a training image, perhaps with another name.
    """
    trained = _names(before.get(_TRAINING, {}))
    lost = bool(trained - _names(now.get(_TRAINING, {})))
    lines, may_show_trained = [], False
    for side in dict.fromkeys([*before, *now]):
        then, there = before.get(side, {}), now.get(side, {})
        if then == there:
            continue
        new, missing = _names(there) - _names(then), _names(then) - _names(there)
        seen = set() if side == _TRAINING else new & trained
        may_show_trained |= bool(seen or (new and lost and side != _TRAINING))
        words = [f"{len(new):,} new ({_some(new)})"] if new else []
        words += [f"{len(seen):,} of them training images of the run"] if seen else []
        words += [f"{len(missing):,} missing ({_some(missing)})"] if missing else []
        if not words:
            words = [f"{then.get('images', 0):,} items then, {there.get('images', 0):,} others now"]
            may_show_trained |= side not in _CATALOGS
        lines.append(f"{side}: {', '.join(words)}")
    return "; ".join(lines), may_show_trained


def _names(side: Record) -> set[str]:
    classes = side.get("classes") or {}
    return {f"{name}/{file}" for name, files in classes.items() for file in files}


def _some(names: set[str]) -> str:
    shown = [visible(name) for name in sorted(names)[:_SHOWN]]
    return ", ".join(shown + ["…"] * (len(names) > _SHOWN))
