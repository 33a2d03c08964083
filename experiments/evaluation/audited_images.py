"""The audited images: sets of embeddings with labels, and the images if they are available."""

import dataclasses
import functools
import os
from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from experiments.evaluation.labeled_embeddings import EmbeddedSet, embeddings_from_file
from experiments.options.errors import UsageError
from keras_dml._common.labels import joined_labels
from keras_dml._common.rows import finite_rows
from pipelines import ImageTable


@dataclasses.dataclass(frozen=True)
class AuditedImages:
    """All sets, concatenated.

    Attributes:
        sets: "train", "test", and "gallery", or "" for a single set -> its images. The labels have
            the same meaning in every set.
        embeddings: Finite float32 `[n, d]`.
        labels: Class numbers, int64 `[n]`.
        class_names: Names of the classes.
    """

    sets: Mapping[str, EmbeddedSet]
    embeddings: npt.NDArray[np.float32]
    labels: npt.NDArray[np.int64]
    class_names: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.labels)

    @functools.cached_property
    def _starts(self) -> npt.NDArray[np.int64]:
        """The first row of each set, and the number of rows, `[sets + 1]`."""
        return np.cumsum([0, *(len(each.labels) for each in self.sets.values())])

    @property
    def tables(self) -> list[tuple[int, ImageTable]]:
        """The first row and the images of each set whose images are available."""
        pairs = zip(self._starts.tolist(), self.sets.values())
        return [(start, each.table) for start, each in pairs if each.table is not None]

    def set_numbers(self, rows: npt.ArrayLike) -> npt.NDArray[np.int64]:
        """Return the index in `sets` of each row's set, `[r]`."""
        return np.searchsorted(self._starts, rows, "right") - 1

    def place(self, row: int) -> tuple[str, ImageTable | None, int]:
        """Return the name and the images of a row's set, and its row number in the set."""
        number = int(self.set_numbers(row))
        name = list(self.sets)[number]
        return name, self.sets[name].table, int(row - self._starts[number])

    def name(self, row: int) -> str:
        """Return the name of a row's image: its path, or its number in its set."""
        of_set, table, number = self.place(row)
        if table is not None and table.paths is not None:
            return str(table.paths[number])
        return f"{of_set} image {number}".lstrip()

    def class_name(self, row: int) -> str:
        """Return the name of a row's class."""
        return self.class_names[self.labels[row]]


def audited_images(sets: Mapping[str, EmbeddedSet]) -> AuditedImages:
    """Concatenate sets of one model's embeddings.

    Args:
        sets: The sets, the training images first. The labels are the names of the classes.

    Raises:
        UsageError: The sets have no image, or the embeddings have several widths.
        ArgumentError: An embedding is not finite, or the labels have several types.
    """
    rows = [finite_rows(each.embeddings, f"{name} embeddings".lstrip())
            for name, each in sets.items()]  # fmt: skip
    widths = {each.shape[1] for each in rows}
    if len(widths) > 1 or not sum(map(len, rows)):
        shapes = ", ".join(f"{name} {part.shape}" for name, part in zip(sets, rows))
        raise UsageError(
            f"The sets must have an image and embeddings of one width, but got {shapes}."
        )
    labels = joined_labels((f"{name} labels".lstrip(), each.labels) for name, each in sets.items())
    classes, codes = np.unique(labels, return_inverse=True)
    return AuditedImages(sets, np.concatenate(rows), codes, tuple(map(str, classes)))


def images_of_file(path: str | os.PathLike[str]) -> AuditedImages:
    """Return the sets in a `.npz` file of embeddings, without its catalog.

    Raises:
        ValueError: As `embeddings_from_file` and `audited_images`.
    """
    found = dict(embeddings_from_file(path, training=True).sets)
    names = {"train": "training", "test": "queries", "gallery": "gallery"}
    sets = {name: found[key] for name, key in names.items() if key in found}
    return audited_images({"": sets["test"]} if len(sets) == 1 else sets)
