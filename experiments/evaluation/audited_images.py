"""The audited images: sets of embeddings with labels, and the images if they are available."""

import dataclasses
import os
import pathlib
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from experiments.evaluation.labeled_embeddings import embeddings_from_file
from experiments.evaluation.npz_file import UnreadableError, read_npz
from experiments.options.errors import UsageError
from keras_dml._common.labels import joined_labels
from keras_dml._common.rows import finite_rows
from keras_dml.metrics.relevance import class_numbers
from pipelines import ImageTable
from pipelines.split import Split


class AuditedSet(NamedTuple):
    """A set of images.

    Attributes:
        name: "train", "test", or "gallery".
        embeddings: Numbers `[n, d]`.
        labels: Numbers or strings `[n]` with the same meaning in every set.
        table: The images, if they are available.
    """

    name: str
    embeddings: np.ndarray
    labels: np.ndarray
    table: ImageTable | None


@dataclasses.dataclass(frozen=True)
class AuditedImages:
    """All sets, concatenated.

    Attributes:
        sets: The sets, the training images first.
        embeddings: Finite float32 `[n, d]`.
        labels: Class numbers, int64 `[n]`.
        class_names: Names of the classes.
        starts: First row of each set, and the number of rows, int64 `[sets + 1]`.
    """

    sets: tuple[AuditedSet, ...]
    embeddings: npt.NDArray[np.float32]
    labels: npt.NDArray[np.int64]
    class_names: tuple[str, ...]
    starts: npt.NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def has_pictures(self) -> bool:
        """Whether the images of some set are available."""
        return any(each.table is not None for each in self.sets)

    def set_numbers(self, rows: npt.ArrayLike) -> npt.NDArray[np.int64]:
        """Return the index in `sets` of each row's set, `[r]`."""
        return np.searchsorted(self.starts, rows, "right") - 1

    def place(self, row: int) -> tuple[AuditedSet, int]:
        """Return the set of a row, and its row number in the set."""
        number = int(self.set_numbers(row))
        return self.sets[number], int(row - self.starts[number])

    def name(self, row: int) -> str:
        """Return the name of a row's image: its path, or its number in its set."""
        of_set, number = self.place(row)
        if of_set.table is not None and of_set.table.paths is not None:
            return str(of_set.table.paths[number])
        return f"{of_set.name} image {number}".lstrip()

    def class_name(self, row: int) -> str:
        """Return the name of a row's class."""
        return self.class_names[self.labels[row]]


def audited_images(sets: Sequence[AuditedSet], class_names: Sequence[str] = ()) -> AuditedImages:
    """Concatenate sets of one model's embeddings.

    Args:
        sets: The sets.
        class_names: Names of labels that are numbers from 0. Without names, the labels are names.

    Raises:
        UsageError: The sets have no image, or the embeddings have several widths.
        ArgumentError: An embedding is not finite, or the labels have several types.
    """
    rows = [finite_rows(each.embeddings, f"{each.name} embeddings".lstrip()) for each in sets]
    widths = {each.shape[1] for each in rows}
    if len(widths) > 1 or not sum(map(len, rows)):
        shapes = ", ".join(f"{each.name} {part.shape}" for each, part in zip(sets, rows))
        raise UsageError(
            f"The sets must have an image and embeddings of one width, but got {shapes}."
        )
    labels = joined_labels((f"{each.name} labels".lstrip(), each.labels) for each in sets)
    if class_names:
        codes = labels.astype(np.int64)
    else:
        codes = class_numbers(labels)
        class_names = list(map(str, labels[np.unique(codes, return_index=True)[1]]))
    return AuditedImages(
        tuple(sets),
        np.concatenate(rows),
        codes,
        tuple(class_names),
        np.cumsum([0, *map(len, rows)]),
    )


def images_of_file(path: str | os.PathLike[str]) -> AuditedImages:
    """Return the sets in a `.npz` file of embeddings, without its catalog.

    Raises:
        ValueError: As `embeddings_from_file` and `audited_images`.
    """
    found = embeddings_from_file(path, training=True)
    names = {"training": "train", "queries": "test", "gallery": "gallery"}
    sets = {names[name]: each for name, each in found.sets if name in names}
    if len(sets) == 1:
        return audited_images([AuditedSet("", *found.queries)])
    ordered = [name for name in names.values() if name in sets]
    return audited_images([AuditedSet(name, *sets[name]) for name in ordered])


def split_sets(split: Split) -> tuple[dict[str, ImageTable], tuple[str, ...], dict[str, int]]:
    """Return the images of a dataset without its catalog, which has no photographs.

    Returns:
        `(tables, class names, offsets)`: tables by the names of the sets. The class name of a row
        has the number of its label plus the offset of its set.
    """
    tables = {"train": split.train, "test": split.test}
    if split.gallery is not None:
        tables["gallery"] = split.gallery
    if split.same_classes:
        return tables, split.train.class_names, dict.fromkeys(tables, 0)
    offset = split.train.num_classes
    names = split.train.class_names + split.test.class_names
    return tables, names, {name: 0 if name == "train" else offset for name in tables}


def kept_embeddings(run: pathlib.Path, name: str, table: ImageTable) -> np.ndarray | None:
    """Return the embeddings of a set that a finished run has stored; None for other images.

    Args:
        run: Folder of the run.
        name: "test" or "gallery".
        table: Images of the set.
    """
    prefix = "" if name == "test" else f"{name}_"
    wanted = [f"{prefix}{array}" for array in ("embeddings", "labels", "paths")]
    try:
        arrays, _ = read_npz(run / "test_embeddings.npz", wanted)
    except (OSError, UnreadableError):
        return None
    embeddings, labels, paths = (arrays.get(array) for array in wanted)
    if embeddings is None or labels is None or len(embeddings) != len(table):
        return None
    same_images = (
        paths is table.paths
        if paths is None or table.paths is None
        else np.array_equal(paths, table.paths)
    )
    return embeddings if same_images and np.array_equal(labels, table.labels) else None
