"""What `evaluate` scores and `audit` looks through; and anybody's embeddings from a file."""

import dataclasses
import os
import pathlib
from collections.abc import Mapping
from typing import Any

import numpy as np

from experiments.embedding.npz_file import UnreadableError, read_npz
from experiments.options.errors import UsageError
from keras_dml._common.labels import joined_labels, plain_labels
from keras_dml._common.rows import row_blocks
from pipelines import EvaluationTransform, ImageTable

# Of the pictures on a page, where no model says what they are.
PICTURES = EvaluationTransform(224)
# Side -> the arrays of a file that hold it; the first must be there, the others may.
_SIDES = {
    "queries": ("embeddings", "labels", "paths"),
    "items": ("gallery_embeddings", "gallery_labels", "gallery_paths"),
    "pictures": ("catalog_embeddings", "catalog_labels", "catalog_paths"),
    "trained_on": ("train_embeddings", "train_labels", "train_paths"),
}
# What an evaluation has no use for, and does not even read.
_OF_THE_TRAINING = "trained_on"


@dataclasses.dataclass(frozen=True)
class LabeledEmbeddings:
    """Embeddings with their classes.

    Attributes:
        embeddings, labels: `[n, d]` and `[n]`: what is looked for.
        gallery, gallery_labels: what it is looked for in; None: the same.
        queries, items: `ImageTable`s of the two, None where their images are not known.
        transform: evaluation transform, for the pictures.
        catalog, catalog_labels: what it is looked for in too, as a question of its own; or None.
        pictures: `ImageTable` of the catalog.
        train, train_labels: what the model was trained on, where that was asked for; or None.
        trained_on: `ImageTable` of it.
    """

    embeddings: np.ndarray
    labels: np.ndarray
    gallery: np.ndarray | None = None
    gallery_labels: np.ndarray | None = None
    queries: ImageTable | None = None
    items: ImageTable | None = None
    transform: EvaluationTransform = PICTURES
    catalog: np.ndarray | None = None
    catalog_labels: np.ndarray | None = None
    pictures: ImageTable | None = None
    train: np.ndarray | None = None
    train_labels: np.ndarray | None = None
    trained_on: ImageTable | None = None


def embeddings_from_file(path: str | os.PathLike[str], training: bool = False) -> LabeledEmbeddings:
    """The arrays of a `.npz` file, whoever wrote it.

    Args:
        path: of the file.
        training: whether to read those of the training images too.

    Raises:
        ValueError: it is none, or lacks arrays, or holds some that do not fit.
    """
    path = pathlib.Path(path).expanduser()
    if not path.is_file():
        raise UsageError(f"embeddings must be a .npz file. Received: embeddings={path}, no file")
    sides = {side: names for side, names in _SIDES.items() if training or side != _OF_THE_TRAINING}
    known = [name for names in sides.values() for name in names]
    try:
        arrays, names = read_npz(path, known)
    except UnreadableError as error:
        raise UsageError(
            f"embeddings must be a .npz file, as numpy.savez(FILE, embeddings=…, labels=…) writes "
            f"it. Received: embeddings={path} ({error})"
        ) from error
    wanted = [
        pair for side, (*pair, _) in sides.items() if side == "queries" or arrays.keys() & {*pair}
    ]
    missing = [name for pair in wanted for name in pair if name not in arrays]
    if missing:
        raise UsageError(
            f"embeddings must hold the array {missing[0]}. Received: embeddings={path} with the "
            f"arrays {', '.join(names) or 'none'}"
        )
    for rows, labels in wanted:
        if arrays[rows].ndim != 2 or arrays[labels].shape != arrays[rows].shape[:1]:
            raise UsageError(
                f"{rows} must have shape [n, d] and {labels} [n], one for each row. "
                f"Received: {rows} of shape {arrays[rows].shape} and {labels} of shape "
                f"{arrays[labels].shape}"
            )
        arrays[labels] = plain_labels(labels, arrays[labels])
    tables = _tables_of_paths(arrays) if "paths" in arrays else {}
    return LabeledEmbeddings(
        arrays["embeddings"],
        arrays["labels"],
        arrays.get("gallery_embeddings"),
        arrays.get("gallery_labels"),
        queries=tables.get("queries"),
        items=tables.get("items"),
        pictures=tables.get("pictures"),
        catalog=arrays.get("catalog_embeddings"),
        catalog_labels=arrays.get("catalog_labels"),
        train=arrays.get("train_embeddings"),
        train_labels=arrays.get("train_labels"),
        trained_on=tables.get("trained_on"),
    )


def _tables_of_paths(arrays: Mapping[str, np.ndarray]) -> dict[str, ImageTable]:
    """The images of a file's `paths`, of its gallery's (all or none) and its catalog's."""
    if "gallery_labels" in arrays and "gallery_paths" not in arrays:
        return {}
    sides = {
        side: names[1:]
        for side, names in _SIDES.items()
        if all(name in arrays for name in names[1:])
    }
    labels = [arrays[side_labels] for side_labels, _ in sides.values()]
    joined = joined_labels((side_labels, arrays[side_labels]) for side_labels, _ in sides.values())
    classes, numbers = np.unique(joined, return_inverse=True)
    names = tuple(map(str, classes))
    ends = np.cumsum([len(each) for each in labels])[:-1]
    return {
        side: ImageTable(class_ids, names, paths=_file_names(paths, arrays[paths]))
        for (side, (_, paths)), class_ids in zip(sides.items(), np.split(numbers, ends))
    }


def _file_names(argument: str, array: np.ndarray) -> Any:
    names = array.tolist()  # of a list, unlike an array, the table checks every name
    for name in names:
        if "\0" in str(name):
            raise UsageError(f"{argument} must be names of files. Received: {name!r}")
    return names


def trained_classes_line(trained: int, queries: ImageTable | None) -> str:
    """What the scores of training classes are not; empty where there are none.

    Args:
        trained: how many classes of the queries are the dataset's training classes.
        queries: `ImageTable`; None where `trained` is 0.
    """
    if not trained or queries is None:
        return ""
    some = f"{trained:,} of the {queries.num_classes:,}"
    return (
        f"{'all' if trained == queries.num_classes else some} classes are training classes of the "
        "dataset: of a model that was trained on them these are no scores on unseen classes"
    )


def rows_of_zeros(embeddings: np.ndarray) -> np.ndarray:
    """Row numbers of the embeddings that are 0 in float32, as they are compared."""
    zeros = [
        block.start + np.flatnonzero(~embeddings[block].astype(np.float32).any(axis=1))
        for block in row_blocks(embeddings)
    ]
    return np.concatenate(zeros)
