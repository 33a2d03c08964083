"""Build an index of embeddings, or change the existing index."""

from __future__ import annotations

import dataclasses
import pathlib
import shutil
from collections.abc import Sequence
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
    ScannIndex,
    TreeAH,
    build_index,
    load_index,
    scann_loads,
)

__all__ = ["IndexKind", "update_index"]

# A search of this many images takes some ten milliseconds without a tree.
EXACT_ITEMS = 100_000
# With more changes than this share of the images, the tree is trained again.
_MOST_CHANGED = 0.2
# The tree is also trained again if its recall falls this far below the target.
_LOST = 0.01
_BLOCK = 8192


@dataclasses.dataclass(frozen=True)
class IndexKind:
    """The kind of an index.

    Attributes:
        metric: "cosine" or "l2".
        approximate: Whether to build a tree. None: only for many images.
        target_recall: The share of the true neighbors that a tree finds, which asks for a tree.
        prefix: The number of dimensions to compare first, for a `PrefixIndex`.
    """

    metric: str
    approximate: bool | None
    target_recall: float | None
    prefix: int | None

    def tree_for(self, images: int) -> TreeAH | None:
        """Return the tree for a number of images, or None without ScaNN."""
        wanted = self.approximate or self.target_recall is not None
        if self.approximate is None and self.prefix is None:
            wanted = wanted or images > EXACT_ITEMS
        # A later run of the same command builds the tree once ScaNN is installed.
        return tree_of(self.target_recall or 0.95) if wanted and scann_loads() else None


def tree_of(target_recall: float) -> TreeAH:
    """Return the parameters of a tree."""
    return TreeAH(target_recall=target_recall)


def update_index(
    output: pathlib.Path, settings: Settings, embedded: Embedded, kind: IndexKind
) -> str:
    """Bring the index in a folder up to date, and update the settings.

    Returns:
        Two lines: the changes, and the kind of search.
    """
    paths, embeddings = embedded.paths, embedded.embeddings
    tree = kind.tree_for(len(paths))
    built: dict[str, Any] = {
        "metric": kind.metric,
        "tree": tree and dataclasses.asdict(tree),
        "prefix": kind.prefix,
    }
    index = _loaded(output / INDEX)
    changes = _changes(index, paths, embeddings)
    if settings["built"] != built or index is None or changes:
        updated = None
        if settings["built"] == built and tree and isinstance(index, ScannIndex):
            updated = _changed_tree(index, changes, paths, embeddings, tree)
        updated = updated or _new_index(paths, embeddings, kind, tree)
        _save(updated, output / INDEX)
        settings |= {"built": built, "search": _search_line(updated)}
        write_settings(output, settings)
    return f"{changes}\n{settings['search']}"


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


@dataclasses.dataclass(frozen=True)
class _Changes:
    """Row numbers of new and of changed images, and the paths of removed images."""

    added: np.ndarray
    changed: np.ndarray
    removed: list[str]

    def __len__(self) -> int:
        return len(self.added) + len(self.changed) + len(self.removed)

    def __str__(self) -> str:
        counts = (len(self.added), len(self.changed), len(self.removed))
        return "added {:,}, changed {:,}, removed {:,}".format(*counts)


def _changes(index: Index | None, paths: Sequence[str], embeddings: np.ndarray) -> _Changes:
    """Compare an index, or None, with the embeddings of all images.

    The comparison reads the index itself, because a kill can separate it from the settings.
    """
    if index is None:
        return _Changes(np.arange(len(paths)), np.empty(0, np.int64), [])
    stored = set(index.ids.tolist())
    is_stored = np.array([path in stored for path in paths], bool)
    common = np.flatnonzero(is_stored)
    changed = [common[:0]]
    for start in range(0, len(common), _BLOCK):
        rows = common[start : start + _BLOCK]
        before = index.embeddings_of([paths[row] for row in rows])
        now = prepared_rows(embeddings[rows], "embeddings", index.metric)
        changed.append(rows[(before != now).any(axis=1)])
    removed = sorted(stored - set(paths))
    return _Changes(np.flatnonzero(~is_stored), np.concatenate(changed), removed)


def _changed_tree(
    index: ScannIndex, changes: _Changes, paths: list[str], embeddings: np.ndarray, tree: TreeAH
) -> Index | None:
    """Change an index with a tree in place. Return None if a new index is as fast or better."""
    if index.tree is None or len(changes) > _MOST_CHANGED * len(paths):
        return None
    if changes.removed:
        index.remove(changes.removed)
    rows = np.concatenate([changes.changed, changes.added])
    if len(rows):
        index.upsert([paths[row] for row in rows], embeddings[rows])
    recall, target = index.measured_recall, tree.target_recall
    if recall is not None and target is not None and recall < target - _LOST:
        index.rebalance()
    return index
