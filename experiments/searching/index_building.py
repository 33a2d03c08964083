"""Build the index of a folder's embeddings."""

from __future__ import annotations

import dataclasses
import pathlib
import shutil
from typing import Any, cast

import numpy as np

from experiments.options.errors import UsageError
from experiments.searching.folder_embeddings import Embedded
from experiments.searching.index_folder import INDEX, Settings, write_settings
from keras_dml._common.errors import ArgumentError
from keras_dml._common.rows import prepared_rows
from keras_dml._common.types import Metric
from keras_dml.retrieval import (
    Index,
    PrefixIndex,
    TreeAH,
    build_index,
    load_index,
    scann_loads,
)

__all__ = ["IndexKind", "update_index"]

# A search of this many images takes some ten milliseconds without a tree.
EXACT_ITEMS = 100_000
_BLOCK = 8192


@dataclasses.dataclass(frozen=True)
class IndexKind:
    """The kind of an index.

    Attributes:
        metric: "cosine" or "l2".
        target_recall: The share of the true neighbors that a search finds. None: 0.95 for many
            images, otherwise 1.
        prefix: The number of dimensions to compare first, for a `PrefixIndex`.
    """

    metric: str
    target_recall: float | None
    prefix: int | None

    def tree_for(self, images: int) -> TreeAH | None:
        """Return the tree for a number of images, or None without ScaNN."""
        recall = self.target_recall
        if recall is None:
            recall = 0.95 if images > EXACT_ITEMS and self.prefix is None else 1.0
        # A later run of the same command builds the tree once ScaNN is installed.
        return tree_of(recall) if recall < 1 and scann_loads() else None


def tree_of(target_recall: float) -> TreeAH:
    """Return the parameters of a tree."""
    return TreeAH(target_recall=target_recall)


def update_index(
    output: pathlib.Path, settings: Settings, embedded: Embedded, kind: IndexKind
) -> str:
    """Build the index in a folder again if images or its kind have changed. Update the settings.

    Returns:
        Two lines: the changes, and the kind of search.
    """
    paths = embedded.paths
    tree = kind.tree_for(len(paths))
    built: dict[str, Any] = {
        "metric": kind.metric,
        "tree": tree and dataclasses.asdict(tree),
        "prefix": kind.prefix,
    }
    index = _loaded(output / INDEX)
    before = set() if index is None else set(index.ids.tolist())
    common = [row for row, path in enumerate(paths) if path in before]
    changed = 0 if index is None else _count_changed(index, embedded, common)
    removed = len(before - set(paths))
    counts = len(paths) - len(common), changed, removed
    if settings["built"] != built or index is None or any(counts):
        index = _new_index(paths, embedded.embeddings, kind, tree)
        _save(index, output / INDEX)
        settings |= {"built": built, "search": _search_line(index)}
        write_settings(output, settings)
    changes = "added {:,}, changed {:,}, removed {:,}".format(*counts)
    return f"{changes}\n{settings['search']}"


def _count_changed(index: Index, embedded: Embedded, rows: list[int]) -> int:
    """Count the rows of images in the index whose embedding has changed.

    The comparison reads the index itself, because a kill can separate it from the settings.
    """
    changed = 0
    for start in range(0, len(rows), _BLOCK):
        block = rows[start : start + _BLOCK]
        before = index.embeddings_of([embedded.files[row].path for row in block])
        now = prepared_rows(embedded.embeddings[block], "embeddings", index.metric)
        changed += int((before != now).any(axis=1).sum())
    return changed


def _new_index(
    paths: list[str], embeddings: np.ndarray, kind: IndexKind, tree: TreeAH | None
) -> Index:
    metric, dimensions = cast("Metric", kind.metric), embeddings.shape[1]
    if kind.prefix is None:
        return build_index(embeddings, metric, paths, tree)
    if kind.prefix >= dimensions:
        raise UsageError(
            f"prefix must be less than the {dimensions} dimensions of the model's embeddings, but "
            f"got {kind.prefix}."
        )
    return PrefixIndex(embeddings, metric, paths, length=kind.prefix)


def _loaded(path: pathlib.Path) -> Index | None:
    """Load the index, or return None if it is damaged or missing."""
    try:
        return load_index(path)
    except ArgumentError:
        return None


def _save(index: Index, path: pathlib.Path) -> None:
    try:
        index.save(path)
    except ArgumentError:  # the folder is too damaged to be recognized as an index
        shutil.rmtree(path)
        index.save(path)


def _search_line(index: Index) -> str:
    """Describe how a search works."""
    if isinstance(index, PrefixIndex):
        return (
            f"a search compares {index.length:,} of {index.dimensions:,} numbers, then all of them "
            f"with the {index.candidates:,} nearest, and finds {100 * index.measured_recall:.1f} % "
            "of the 10 nearest"
        )
    # An index without ScaNN has neither attribute.
    tree, recall = getattr(index, "tree", None), getattr(index, "measured_recall", None)
    if tree is None or recall is None:
        return "exact search"
    return (
        f"a search looks into {tree.leaves_to_search:,} of {tree.num_leaves:,} leaves and finds "
        f"{100 * recall:.1f} % of the 10 nearest"
    )
