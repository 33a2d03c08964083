"""Build an index of embeddings, or change the index that is there."""

from __future__ import annotations

import dataclasses
import pathlib
import shutil
from collections.abc import Mapping, Sequence
from typing import Any, Self, cast

import numpy as np

from experiments.options.errors import UsageError
from experiments.searching.folder_embeddings import Embedded, digest
from experiments.searching.index_settings import (
    EXACT_ITEMS,
    INDEX,
    TARGET_RECALL,
    Settings,
    write_settings,
)
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

__all__ = ["Changes", "IndexKind", "changes_since", "update_index"]

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
        tree: the tree of an approximate index.
        prefix: the arguments of a `PrefixIndex`.
        by_size: whether an index of many images gets a tree.
    """

    metric: Metric
    tree: TreeAH | None
    prefix: Mapping[str, int] | None
    by_size: bool

    @classmethod
    def of(
        cls,
        metric: str,
        tree: Mapping[str, Any],
        approximate: bool | None,
        prefix: Mapping[str, int] | None,
    ) -> Self:
        """Return the kind that the flags ask for.

        Args:
            metric: the metric.
            tree: arguments of the tree.
            approximate: whether to build a tree. None depends on the number of images.
            prefix: arguments of a `PrefixIndex`, or None.
        """
        made = _tree(tree) if tree or approximate else None
        by_size = made is None and approximate is None and prefix is None
        return cls(cast("Metric", metric), made, prefix, by_size)

    def tree_for(self, images: int) -> TreeAH | None:
        """Return the tree for a number of images, or None without ScaNN."""
        tree = _tree({}) if self.by_size and images > EXACT_ITEMS else self.tree
        # A later run of the same command builds the tree once ScaNN is installed.
        return tree if tree is not None and scann_loads() else None


def update_index(
    output: pathlib.Path, settings: Settings, embedded: Embedded, kind: IndexKind
) -> str:
    """Bring the index in a folder up to date, and update the settings.

    Returns:
        Two lines: the changes, and the kind of search.
    """
    paths, embeddings = [file.path for file in embedded.files], embedded.embeddings
    tree = kind.tree_for(len(paths))
    built: dict[str, Any] = {
        "images": digest(embedded.files),
        "metric": kind.metric,
        "tree": tree and dataclasses.asdict(tree),
    }
    if kind.prefix:  # an index without a prefix keeps the settings of earlier versions
        built |= {"prefix": kind.prefix}
    index = _loaded(output / INDEX)
    changes = changes_since(index, paths, embeddings)
    if settings["built"] != built or index is None or changes:
        before = dict(settings["built"] or {}) | {"images": built["images"]}
        updated = None
        if before == built:
            goal = None if tree is None else tree.target_recall
            updated = changed_index(index, changes, paths, embeddings, goal)
        if updated is None:
            updated = (
                _prefix_index(embeddings, kind.metric, paths, kind.prefix)
                if kind.prefix
                else build_index(embeddings, kind.metric, paths, tree)
            )
        _save(updated, output / INDEX)
        settings |= {"built": built, "search": _search_line(updated)}
        write_settings(output, settings)
    return f"{changes}\n{settings['search']}"


def _tree(arguments: Mapping[str, Any]) -> TreeAH:
    if "leaves_to_search" not in arguments:
        arguments = {"target_recall": TARGET_RECALL, **arguments}
    return TreeAH(**arguments)


def _prefix_index(
    embeddings: np.ndarray, metric: Metric, paths: list[str], prefix: Mapping[str, int]
) -> Index:
    dimensions = embeddings.shape[1]
    if prefix["length"] >= dimensions:
        raise UsageError(
            f"prefix must be less than the {dimensions} dimensions of the model's embeddings, but "
            f"got {prefix['length']}."
        )
    return PrefixIndex(embeddings, metric, paths, **prefix)


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
class Changes:
    """Row numbers of new and of changed images, and the paths of removed images."""

    added: np.ndarray
    changed: np.ndarray
    removed: list[str]

    def __len__(self) -> int:
        return len(self.added) + len(self.changed) + len(self.removed)

    def __str__(self) -> str:
        counts = (len(self.added), len(self.changed), len(self.removed))
        return "added {:,}, changed {:,}, removed {:,}".format(*counts)


def changes_since(index: Index | None, paths: Sequence[str], embeddings: np.ndarray) -> Changes:
    """Compare an index with embeddings.

    The comparison reads the index itself, because a kill can separate it from the settings.

    Args:
        index: the index, or None if it is missing.
        paths: paths of the images.
        embeddings: their embeddings `[n, d]`.
    """
    if index is None:
        return Changes(np.arange(len(paths)), np.empty(0, np.int64), [])
    held = set(index.ids.tolist())
    new = np.array([path not in held for path in paths], bool)
    common = np.flatnonzero(~new)
    changed = []
    for start in range(0, len(common), _BLOCK):
        rows = common[start : start + _BLOCK]
        before = index.embeddings_of([paths[row] for row in rows])
        now = prepared_rows(embeddings[rows], "embeddings", index.metric)
        changed.append(rows[(before != now).any(axis=1)])
    removed = sorted(held - set(paths))
    return Changes(np.flatnonzero(new), np.concatenate([common[:0], *changed]), removed)


def changed_index(
    index: Index | None,
    changes: Changes,
    paths: Sequence[str],
    embeddings: np.ndarray,
    target_recall: float | None,
) -> Index | None:
    """Apply changes to an index that has a tree.

    Args:
        index, changes, paths, embeddings: as in `changes_since`.
        target_recall: the share of the true neighbors to find, or None.

    Returns:
        The index, or None if building it again is as fast or better.
    """
    few = len(changes) <= _MOST_CHANGED * len(paths)
    if not (few and isinstance(index, ScannIndex) and index.tree is not None):
        return None
    if changes.removed:
        index.remove(changes.removed)
    rows = np.concatenate([changes.changed, changes.added])
    if len(rows):
        index.upsert([paths[row] for row in rows], embeddings[rows])
    recall = index.measured_recall
    if target_recall is not None and recall is not None and recall < target_recall - _LOST:
        index.rebalance()
    return index
