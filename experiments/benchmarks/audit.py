"""Benchmark of `experiments.audit` on a dataset with planted label errors and copies."""

import csv
import dataclasses
import json
import pathlib
import shutil
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from PIL import Image, ImageOps

from experiments.options import UsageError, option
from experiments.options.child import run_module
from experiments.options.run_options import DataOptions
from keras_dml._files.atomic import replacing

if TYPE_CHECKING:
    from pipelines.split import Split

PHOTOS, PLANTED = "photos", "planted.json"
CHANGES = ("re-encoded", "resized", "cropped", "mirrored", "all four")
"""Changes of a copy. Re-encoded: JPEG of quality 40. Resized: 60 % of the size. Cropped: without
6 % at the top and left, and 3 % at the bottom and right."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class AuditOptions(DataOptions):
    """Options of `benchmark audit`.

    Attributes:
        training: Recipe of the training.
        output_dir: Output folder.
    """

    group = "Measured"

    command = "experiments.benchmark audit"
    intro = """Measure the findings of experiments.audit on planted errors.

  python -m experiments.benchmark audit --dataset=groceries --data_dir=FOLDER

Copies the photographs of a dataset, moves 5 % of them to a wrong class, and adds 50 changed copies
(re-encoded, resized, cropped, mirrored, all four). Then trains on the result by a recipe, audits
the run, and compares the findings with the planted errors. The same command resumes.
"""

    training: str = option("cached_groceries.flags")
    output_dir: str = option("runs/planted")


def measure(options: AuditOptions) -> Iterator[str]:
    """Plant, train, and audit, and yield the lines of the comparison."""
    from experiments.options import data

    folder = pathlib.Path(options.output_dir)
    if not (folder / PLANTED).is_file():
        split = data.load(options)
        shutil.rmtree(folder / PHOTOS, ignore_errors=True)
        plant(split, folder)
    run = folder / "run"
    recipe = [f"--flagfile={options.training}", "--dataset=folder"]
    words = [*recipe, f"--data_dir={folder / PHOTOS}", f"--output_dir={run}"]
    run_module("experiments.run", *words, name="the training")
    run_module("experiments.audit", f"--run={run}", name="the audit")
    with open(run / "audit" / "findings.csv", newline="", encoding="utf-8") as stream:
        findings = list(csv.DictReader(stream))
    yield from score(json.loads((folder / PLANTED).read_text()), findings)
    yield f"page: {run / 'audit' / 'audit.html'}"


def plant(
    split: "Split",
    folder: pathlib.Path,
    seed: int = 0,
    wrong_labels: float = 0.05,
    copies: int = 50,
) -> dict[str, Any]:
    """Copy the photographs of a dataset into one folder per class, with planted errors.

    Args:
        split: Training and test images, all of them files.
        folder: Output folder. Gets `PHOTOS`, and at the end `PLANTED`.
        seed: Seed of the errors.
        wrong_labels: Fraction of the images that move to another class.
        copies: Number of images with the right class that get a copy, changed by `CHANGES` in turn.

    Returns:
        The content of `PLANTED`: `"labels"` maps an image to its right class, and `"copies"` maps
        a copy to its image and its change. Images have their paths within `PHOTOS`.

    Raises:
        UsageError: The images are not files, or there are too few classes or images.
    """
    paths, numbers, names = [], [], list[str]()
    for table in (split.train, split.test):
        if table.paths is None:
            raise UsageError("dataset must have image files, but got pixels in memory.")
        paths += table.paths.tolist()
        numbers.append(table.labels + (0 if split.same_classes else len(names)))
        if not (names and split.same_classes):
            names += [name.replace("/", "_") for name in table.class_names]
    classes = np.concatenate(numbers)
    rng = np.random.default_rng(seed)
    wrong = rng.permutation(len(paths))[: round(wrong_labels * len(paths))]
    right = np.setdiff1d(np.arange(len(paths)), wrong)
    if len(names) < 2 or len(right) < copies:
        raise UsageError(
            f"dataset must have at least 2 classes and {copies} images, "
            f"but got {len(names)} and {len(right)}."
        )
    folders = classes.copy()
    folders[wrong] = (classes[wrong] + rng.integers(1, len(names), len(wrong))) % len(names)
    files = []
    for number, (path, class_number) in enumerate(zip(paths, folders)):
        files.append(f"{names[class_number]}/{number:06d}{pathlib.Path(path).suffix.lower()}")
        target = folder / PHOTOS / files[-1]
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, target)
    planted: dict[str, Any] = {"labels": {files[row]: names[classes[row]] for row in wrong}}
    planted["copies"] = {}
    for number, row in enumerate(rng.choice(right, copies, replace=False)):
        change = CHANGES[number % len(CHANGES)]
        name = f"{names[classes[row]]}/{len(paths) + number:06d}.jpg"
        _write_copy(paths[row], folder / PHOTOS / name, change)
        planted["copies"][name] = [files[row], change]
    with replacing(folder / PLANTED) as unfinished:
        unfinished.write_text(json.dumps(planted, indent=1) + "\n")
    return planted


def _write_copy(source: str, target: pathlib.Path, change: str) -> None:
    every = change == CHANGES[-1]
    with Image.open(source) as opened:
        image = ImageOps.exif_transpose(opened).convert("RGB")
    if every or change == "resized":
        image = ImageOps.scale(image, 0.6)
    if every or change == "cropped":
        width, height = image.size
        left, top = round(0.06 * width), round(0.06 * height)
        image = image.crop((left, top, width - left // 2, height - top // 2))
    if every or change == "mirrored":
        image = ImageOps.mirror(image)
    image.save(target, quality=40 if every or change == "re-encoded" else 90)


def score(planted: Mapping[str, Any], findings: Sequence[Mapping[str, str]]) -> Iterator[str]:
    """Yield lines with the precision and recall of the findings.

    Args:
        planted: The result of `plant`.
        findings: The rows of `findings.csv`.
    """
    wrong, copies = planted["labels"], planted["copies"]
    suggested = {
        _short(row["image"]): row["suggested_class"]
        for row in findings
        if row["finding"] == "label error"
    }
    found = wrong.keys() & suggested.keys()
    right = sum(suggested[name] == wrong[name] for name in found)
    yield (
        f"wrong labels: {len(found)} of {len(wrong)} found, recall {_share(found, wrong)}; "
        f"{len(suggested)} reported, precision {_share(found, suggested)}; the right class "
        f"suggested for {right}"
    )
    pairs = {
        frozenset((_short(row["image"]), _short(row["other_image"])))
        for row in findings
        if row["group"]
    }
    sought = {frozenset((name, source)): change for name, (source, change) in copies.items()}
    images = frozenset().union(*sought)
    others = [pair for pair in pairs if not pair & images]
    yield (
        f"copies: {len(pairs & sought.keys())} of {len(sought)} found, recall "
        f"{_share(pairs & sought.keys(), sought)}; {len(pairs)} pairs reported, {len(others)} of "
        "them among the original photographs"
    )
    for change in dict.fromkeys(sought.values()):
        of_change = [pair for pair, name in sought.items() if name == change]
        yield f"  {change}: {sum(pair in pairs for pair in of_change)} of {len(of_change)}"


def _share(part: Collection[Any], whole: Collection[Any]) -> str:
    return f"{len(part) / len(whole):.3f}" if whole else "–"


def _short(image: str) -> str:
    return "/".join(pathlib.PurePath(image).parts[-2:])
