"""Embeddings with labels, of a model or from a file."""

from __future__ import annotations

import dataclasses
import os
import pathlib
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from experiments.evaluation.embedding_file import UnreadableError, read_npz
from experiments.options.errors import UsageError
from keras_dml._common.labels import joined_labels, plain_labels
from keras_dml._common.rows import first_few, row_blocks
from keras_dml.metrics.neighbors import neighbor_blocks
from keras_dml.retrieval import Index
from pipelines import EvaluationTransform, ImageTable

if TYPE_CHECKING:
    import tensorflow as tf

#: Transform of the pictures on a page if no model defines one.
PICTURES = EvaluationTransform(224)
# Field of `EmbeddedSets` -> the first part of its arrays' names in a file.
_PREFIXES = {"queries": "", "gallery": "gallery_", "catalog": "catalog_", "training": "train_"}


class EmbeddedSet(NamedTuple):
    """A set of images with their embeddings.

    Attributes:
        embeddings: Numbers `[n, d]`.
        labels: Class of each row, `[n]`.
        table: The images, if they are known.
    """

    embeddings: np.ndarray
    labels: np.ndarray
    table: ImageTable | None = None


@dataclasses.dataclass(frozen=True)
class EmbeddedSets:
    """Embedded images to search with and to search in.

    Attributes:
        queries: The images to search with, and in without a gallery.
        gallery: The images to search in.
        catalog: Images to search in as a second task.
        training: The images that the model was trained on, if they are asked for.
        transform: Evaluation transform for the pictures on a page.
        catalog_transform: Another transform for the pictures of the catalog. None for `transform`.
    """

    queries: EmbeddedSet
    gallery: EmbeddedSet | None = None
    catalog: EmbeddedSet | None = None
    training: EmbeddedSet | None = None
    transform: EvaluationTransform = PICTURES
    catalog_transform: Callable[[tf.Tensor], tf.Tensor] | None = None

    @property
    def sets(self) -> Iterator[tuple[str, EmbeddedSet]]:
        """The name of each set and the set."""
        for name in _PREFIXES:
            each = getattr(self, name)
            if each is not None:
                yield name, each


def embeddings_from_file(path: str | os.PathLike[str], training: bool = False) -> EmbeddedSets:
    """Return the embeddings in a `.npz` file.

    Args:
        path: The file. `numpy.savez(FILE, embeddings=…, labels=…)` writes such a file.
        training: Whether to read the training images too.

    Raises:
        UsageError: The file is not readable, or an array is missing or has another shape.
    """
    path = pathlib.Path(path).expanduser()
    if not path.is_file():
        raise UsageError(f"embeddings must be a .npz file, but {path} is not a file.")
    prefixes = {side: p for side, p in _PREFIXES.items() if training or side != "training"}
    known = [f"{p}{name}" for p in prefixes.values() for name in ("embeddings", "labels", "paths")]
    try:
        arrays, names = read_npz(path, known)
    except UnreadableError as error:
        raise UsageError(
            "embeddings must be a .npz file of numpy.savez(FILE, embeddings=…, labels=…), but got "
            f"{path} ({error})."
        ) from error
    found: dict[str, EmbeddedSet] = {}
    for side, prefix in prefixes.items():
        rows, labels = f"{prefix}embeddings", f"{prefix}labels"
        if side != "queries" and not arrays.keys() & {rows, labels}:
            continue
        for name in (rows, labels):
            if name not in arrays:
                raise UsageError(
                    f"embeddings must have the array {name}, but got {path} with the arrays "
                    f"{', '.join(names) or 'none'}."
                )
        if arrays[rows].ndim != 2 or arrays[labels].shape != arrays[rows].shape[:1]:
            raise UsageError(
                f"{rows} must have shape [n, d] and {labels} shape [n], but got "
                f"{arrays[rows].shape} and {arrays[labels].shape}."
            )
        found[side] = EmbeddedSet(arrays[rows], plain_labels(labels, arrays[labels]))
    return EmbeddedSets(**_with_tables(found, arrays))  # type: ignore[arg-type]


def check_matches(queries: np.ndarray, gallery: np.ndarray | None = None) -> None:
    """Raise `UsageError` if no query has a match, or if every neighbor is a match.

    Args:
        queries: Class of each query.
        gallery: Class of each image to search in. The default is the other queries.
    """
    sizes = np.unique(queries, return_counts=True)[1]
    if gallery is None and len(sizes) < 2:
        raise UsageError(
            "The queries must have at least 2 classes, but got 1: every neighbor matches."
        )
    if gallery is None and sizes.max() < 2:
        raise UsageError(
            "The queries must have at least 2 images of a class, but got 1 of each class: no query "
            "has a match."
        )


def _with_tables(
    found: Mapping[str, EmbeddedSet], arrays: Mapping[str, np.ndarray]
) -> dict[str, EmbeddedSet]:
    """Add the images to each set with paths, unless the queries or the gallery lack them.

    The tables share their class numbers.
    """
    sides = [side for side in found if f"{_PREFIXES[side]}paths" in arrays]
    if not {"queries", "gallery"} & found.keys() <= set(sides):
        return dict(found)
    joined = joined_labels((f"{_PREFIXES[side]}labels", found[side].labels) for side in sides)
    classes, numbers = np.unique(joined, return_inverse=True)
    ends = np.cumsum([len(found[side].labels) for side in sides])[:-1]
    class_names = tuple(map(str, classes))
    tables = {}
    for side, ids in zip(sides, np.split(numbers, ends)):
        paths: Any = arrays[f"{_PREFIXES[side]}paths"].tolist()  # the table checks a list
        tables[side] = ImageTable(ids, class_names, paths=paths)
    return {side: each._replace(table=tables.get(side)) for side, each in found.items()}


def trained_classes_line(trained: int, queries: ImageTable | None) -> str:
    """Return a warning that scores are of training classes; empty if they are not.

    Args:
        trained: How many classes of the queries are training classes of the dataset.
        queries: The images; None if `trained` is 0.
    """
    if not trained or queries is None:
        return ""
    some = f"{trained:,} of the {queries.num_classes:,}"
    return (
        f"{'all' if trained == queries.num_classes else some} classes are training classes of the "
        "dataset: a model that was trained on them has no scores on unseen classes here"
    )


def zero_rows(embedded: EmbeddedSets) -> tuple[dict[str, int], list[tuple[str, str]]]:
    """Count the embeddings that are 0 in float32.

    Returns:
        `(counts, lines)`: "zero_rows", "gallery_zero_rows", and "catalog_zero_rows", if there is
        such a set, and (label, text) with the first row numbers for each set that has such rows.
    """
    counts, lines = {}, []
    for name, each in embedded.sets:
        prefix = _PREFIXES[name]
        # In blocks, because the embeddings may be on a disk.
        blocks = (each.embeddings[block] for block in row_blocks(each.embeddings))
        is_zero = np.concatenate([~rows.astype(np.float32).any(axis=1) for rows in blocks])
        zeros = np.flatnonzero(is_zero)
        counts[f"{prefix}zero_rows"] = len(zeros)
        if len(zeros):
            where = f" in the {prefix.rstrip('_')}" if prefix else ""
            text = (
                f"{len(zeros):,} row{'s' * (len(zeros) > 1)} of zeros{where} "
                f"(row numbers {first_few(zeros)}): similarity 0 to everything"
            )
            lines.append(("Rows of zeros", text))
    return counts, lines


def nearest(
    index: Index, queries: np.ndarray, k: int, own_rows: np.ndarray | None = None
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float32]]:
    """Return the rows and the scores of the k nearest items of each query, `[n, k]`.

    Args:
        index: Index of all items.
        queries: Embeddings `[n, d]`, n at least 1.
        k: Number of neighbors, at least 1.
        own_rows: Item that each query is, `[n]`, to exclude it. None excludes nothing.
    """
    _, rows, scores = zip(*neighbor_blocks(index, queries, k, own_rows))
    return np.concatenate(rows), np.concatenate(scores)
