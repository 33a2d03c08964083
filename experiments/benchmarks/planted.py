"""How much of what was planted among real images `experiments.audit` finds again."""

from __future__ import annotations

import csv
import json
import pathlib
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from PIL import Image, ImageOps

from experiments.options import RunError, UsageError
from experiments.options.child import child_command, child_environment
from keras_dml._files.atomic import replacing
from pipelines.split import Split

PHOTOS, PLANTED = "photos", "planted.json"
CHANGES = ("re-encoded", "resized", "cropped", "mirrored", "all four")
"""What happens to a copy: JPEG of quality 40, 60 % of the size, 6 % cut off at the top left and 3 %
at the bottom right, mirrored."""


def plant(
    split: Split,
    folder: pathlib.Path,
    seed: int = 0,
    wrong_labels: float = 0.05,
    copies: int = 50,
) -> dict[str, Any]:
    """Copy a dataset's photographs into a folder a class, some into a wrong one, some twice.

    Args:
        split: of image files; training and test images both.
        folder: new; gets `PHOTOS`, and last `PLANTED`.
        seed: of what is planted.
        wrong_labels: share of the images whose class becomes another one, drawn evenly.
        copies: of images with their right label, changed by `CHANGES` in turns.

    Returns:
        What `PLANTED` holds: `"labels"`, image -> the class that it is of; `"copies"`, image ->
        [the image that it is a copy of, its change]. Images by their paths from `PHOTOS`.

    Raises:
        UsageError: images that are no files; fewer classes than two, or images than copies.
    """
    paths, numbers, names = [], [], list[str]()
    for table in (split.train, split.test):
        if table.paths is None:
            raise UsageError("dataset must be of image files, not of pixels in memory")
        paths += table.paths.tolist()
        numbers.append(table.labels + (0 if split.same_classes else len(names)))
        if not (names and split.same_classes):
            names += [name.replace("/", "_") for name in table.class_names]
    classes = np.concatenate(numbers)
    generator = np.random.default_rng(seed)
    wrong = generator.permutation(len(paths))[: round(wrong_labels * len(paths))]
    right = np.setdiff1d(np.arange(len(paths)), wrong)
    if len(names) < 2 or len(right) < copies:
        raise UsageError(
            f"dataset must have 2 classes or more, and {copies} images or more. "
            f"Received: {len(names)} and {len(right)}"
        )
    given = classes.copy()
    given[wrong] = (classes[wrong] + generator.integers(1, len(names), len(wrong))) % len(names)
    files = []
    for number, (path, class_number) in enumerate(zip(paths, given)):
        files.append(f"{names[class_number]}/{number:06d}{pathlib.Path(path).suffix.lower()}")
        target = folder / PHOTOS / files[-1]
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, target)
    planted: dict[str, Any] = {"copies": {}}
    planted["labels"] = {files[row]: names[classes[row]] for row in wrong}
    for number, row in enumerate(generator.choice(right, copies, replace=False)):
        change = CHANGES[number % len(CHANGES)]
        name = f"{names[given[row]]}/{len(paths) + number:06d}.jpg"
        _write_copy(paths[row], folder / PHOTOS / name, change)
        planted["copies"][name] = [files[row], change]
    with replacing(folder / PLANTED) as unfinished:
        unfinished.write_text(json.dumps(planted, indent=1) + "\n")
    return planted


def _write_copy(source: str, target: pathlib.Path, change: str) -> None:
    every = change == CHANGES[-1]
    with Image.open(source) as opened:
        image = ImageOps.exif_transpose(opened).convert("RGB")
    width, height = image.size
    if every or change == "resized":
        width, height = max(1, round(0.6 * width)), max(1, round(0.6 * height))
        image = image.resize((width, height), Image.Resampling.BICUBIC)
    if every or change == "cropped":
        left, top = round(0.06 * width), round(0.06 * height)
        image = image.crop((left, top, width - left // 2, height - top // 2))
    if every or change == "mirrored":
        image = ImageOps.mirror(image)
    image.save(target, quality=40 if every or change == "re-encoded" else 90)


def score(planted: Mapping[str, Any], findings: Sequence[Mapping[str, str]]) -> Iterator[str]:
    """Lines that say how much of it was found, and how much else.

    Args:
        planted: as `plant` returns it.
        findings: the lines of `findings.csv`.
    """
    wrong, copies = planted["labels"], planted["copies"]
    suggested = {
        _short(line["image"]): line["suggested_class"]
        for line in findings
        if line["finding"] == "label error"
    }
    found = wrong.keys() & suggested.keys()
    right = sum(suggested[name] == wrong[name] for name in found)
    yield (
        f"wrong labels: {len(found)} of {len(wrong)} found, recall {_share(found, wrong)}; of "
        f"{len(suggested)} named, precision {_share(found, suggested)}; the right one suggested "
        f"for {right}"
    )
    pairs = {
        frozenset((_short(line["image"]), _short(line["other_image"])))
        for line in findings
        if line["group"]
    }
    sought = {frozenset((name, source)): change for name, (source, change) in copies.items()}
    known = {name for pair in sought for name in pair}
    others = [pair for pair in pairs - sought.keys() if not pair & known]
    yield (
        f"copies: {len(pairs & sought.keys())} of {len(sought)} found, recall "
        f"{_share(pairs & sought.keys(), sought)}; {len(pairs)} pairs named, {len(others)} of them "
        "among photographs that were there before"
    )
    for change in dict.fromkeys(sought.values()):
        of_change = [pair for pair, name in sought.items() if name == change]
        yield f"  {change}: {sum(pair in pairs for pair in of_change)} of {len(of_change)}"


def _share(part: Any, whole: Any) -> str:
    return f"{len(part) / len(whole):.3f}" if len(whole) else "–"


def _short(image: str) -> str:
    return "/".join(pathlib.PurePath(image).parts[-2:])


def measure(split: Split, folder: pathlib.Path, recipe: str) -> Iterator[str]:
    """Plant, train on it by a recipe, audit, and say what was found. Goes on where it stopped."""
    if not (folder / PLANTED).is_file():
        shutil.rmtree(folder / PHOTOS, ignore_errors=True)
        plant(split, folder)
    planted = json.loads((folder / PLANTED).read_text())
    run = folder / "run"
    data = ["--dataset=folder", f"--data_dir={folder / PHOTOS}"]
    _child("experiments.run", f"--flagfile={recipe}", *data, f"--output_dir={run}")
    _child("experiments.audit", f"--run={run}")
    with open(run / "audit" / "findings.csv", newline="", encoding="utf-8") as stream:
        yield from score(planted, list(csv.DictReader(stream)))
    yield f"page: {run / 'audit' / 'audit.html'}"


def _child(module: str, *words: str) -> None:
    done = subprocess.run(
        child_command(module, *words),
        env=child_environment(),
        stdout=subprocess.DEVNULL,
        check=False,
    )
    if done.returncode:
        raise RunError(f"{module} ended with code {done.returncode}; what it said is above")
