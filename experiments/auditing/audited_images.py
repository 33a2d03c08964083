"""What is audited: embeddings with labels and, where they are at hand, the images, set by set."""

import dataclasses
import os
import pathlib
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from experiments.embedding.labeled_embeddings import embeddings_from_file
from experiments.embedding.npz_file import UnreadableError, read_npz
from experiments.options.errors import UsageError
from keras_dml._common.labels import joined_labels
from keras_dml._common.rows import finite_rows
from keras_dml.metrics.recall import class_numbers
from pipelines import ImageTable
from pipelines.split import Split


class AuditedSet(NamedTuple):
    """A set of images.

    Attributes:
        name: "train", "test" or "gallery".
        embeddings: numbers `[n, d]`.
        labels: `[n]`, numbers or strings that mean the same in every set.
        table: the images; None where they are not at hand.
    """

    name: str
    embeddings: np.ndarray
    labels: np.ndarray
    table: ImageTable | None


@dataclasses.dataclass(frozen=True)
class AuditedImages:
    """All sets, one behind the other: row numbers count through them.

    Attributes:
        sets: the training images first, where there are some.
        embeddings: finite float32 `[n, d]`.
        labels: int64 `[n]`, numbers of classes.
        class_names: what they are called.
        starts: int64 `[sets + 1]`, the row that each begins with; last the number of rows.
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
        """Whether the images of some set are at hand."""
        return any(each.table is not None for each in self.sets)

    def set_numbers(self, rows: npt.ArrayLike) -> npt.NDArray[np.int64]:
        """The place in `sets` of each row's set, `[r]`."""
        return np.searchsorted(self.starts, rows, "right") - 1

    def place(self, row: int) -> tuple[AuditedSet, int]:
        """A row's set, and its row number in that."""
        number = int(self.set_numbers(row))
        return self.sets[number], int(row - self.starts[number])

    def name(self, row: int) -> str:
        """What a row's image is called: its path, or its number in its set."""
        of_set, number = self.place(row)
        if of_set.table is not None and of_set.table.paths is not None:
            return str(of_set.table.paths[number])
        return f"{of_set.name} image {number}".lstrip()

    def class_name(self, row: int) -> str:
        """What a row's label is called."""
        return self.class_names[self.labels[row]]


def audited_images(sets: Sequence[AuditedSet], class_names: Sequence[str] = ()) -> AuditedImages:
    """Sets of one model's embeddings together.

    Args:
        sets: one or more.
        class_names: of labels that are numbers from 0; none: labels are what their classes are
            called.

    Raises:
        UsageError: no image, or embeddings of several widths.
        ArgumentError: embeddings that are not finite numbers, labels of several kinds.
    """
    rows = [finite_rows(each.embeddings, f"{each.name} embeddings".lstrip()) for each in sets]
    widths = {each.shape[1] for each in rows}
    if len(widths) > 1 or not sum(map(len, rows)):
        shapes = ", ".join(f"{each.name} {part.shape}" for each, part in zip(sets, rows))
        raise UsageError(
            f"the sets need an image or more, and embeddings of one width. Received: {shapes}"
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
    """What a `.npz` file of embeddings holds; its catalog is left alone.

    Raises:
        ValueError: as `embeddings_from_file` and `audited_images`.
    """
    held = embeddings_from_file(path, training=True)
    sets = []
    if held.train is not None and held.train_labels is not None:
        sets.append(AuditedSet("train", held.train, held.train_labels, held.trained_on))
    alone = held.train is None and held.gallery is None
    sets.append(AuditedSet("" if alone else "test", held.embeddings, held.labels, held.queries))
    if held.gallery is not None and held.gallery_labels is not None:
        sets.append(AuditedSet("gallery", held.gallery, held.gallery_labels, held.items))
    return audited_images(sets)


def split_sets(split: Split) -> tuple[dict[str, ImageTable], tuple[str, ...], dict[str, int]]:
    """A dataset's images but for its catalog, which shows nothing that a photograph does.

    Returns:
        `(tables, class names, offsets)`: tables by the names of the sets, and what is to be added
        to the class numbers of each to make them those of the class names.
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
    """What a finished run has kept of a set's embeddings; None unless they are of this table.

    Args:
        run: its folder.
        name: "test" or "gallery".
        table: the set's images.
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
