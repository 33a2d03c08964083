"""Build the index of a folder's embeddings."""

from __future__ import annotations

import dataclasses
import pathlib
import shutil
from typing import Any, cast

from experiments.options.errors import UsageError
from experiments.searching.folder_embeddings import Embedded
from experiments.searching.index_folder import INDEX, Changes, Settings, write_settings
from experiments.searching.index_options import IndexOptions
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

# A search of this many images takes some ten milliseconds without a tree.
EXACT_ITEMS = 100_000


def update_index(options: IndexOptions, settings: Settings, embedded: Embedded) -> str:
    """Build the index in a folder again if images or its kind have changed. Update the settings.

    Returns:
        Two lines: the changes, and the kind of search.
    """
    output = options.output_dir
    tree = _tree_for(options, len(embedded.files))
    built: dict[str, Any] = {
        "metric": options.metric,
        "tree": tree and dataclasses.asdict(tree),
        "prefix": options.prefix,
    }
    index = _loaded(output / INDEX)
    changes = _changes(index, embedded)
    if settings["built"] != built or index is None or any(changes):
        index = _new_index(embedded, options, tree)
        index.save(output / INDEX)
        settings |= {"built": built, "search": _search_line(index)}
        write_settings(output, settings)
    return f"{changes}\n{settings['search']}"


def _tree_for(options: IndexOptions, images: int) -> TreeAH | None:
    """Return the tree for a number of images. None for exact search."""
    recall = options.target_recall
    if recall is None:
        recall = 0.95 if images > EXACT_ITEMS and options.prefix is None else 1.0
    # A later run of the same command builds the tree once ScaNN is installed.
    return TreeAH(target_recall=recall) if recall < 1 and scann_loads() else None


def _changes(index: Index | None, embedded: Embedded) -> Changes:
    """Compare the images with the index, because a kill can separate the index and the settings."""
    paths = embedded.paths
    if index is None:
        return Changes(len(paths), 0, 0)
    before = set(index.ids.tolist())
    rows = [row for row, path in enumerate(paths) if path in before]
    stored = index.embeddings_of([paths[row] for row in rows])
    now = prepared_rows(embedded.embeddings[rows], "embeddings", index.metric)
    changed = int((stored != now).any(axis=1).sum())
    return Changes(len(paths) - len(rows), changed, len(before) - len(rows))


def _new_index(embedded: Embedded, options: IndexOptions, tree: TreeAH | None) -> Index:
    embeddings, paths = embedded.embeddings, embedded.paths
    metric, prefix, dimensions = cast("Metric", options.metric), options.prefix, embeddings.shape[1]
    if prefix is None:
        return build_index(embeddings, metric, paths, tree)
    if prefix >= dimensions:
        raise UsageError(
            f"prefix must be less than the {dimensions} dimensions of the model's embeddings, but "
            f"got {prefix}."
        )
    return PrefixIndex(embeddings, metric, paths, length=prefix)


def _loaded(path: pathlib.Path) -> Index | None:
    """Load the index. Delete it and return None if it is damaged or missing."""
    try:
        return load_index(path)
    except ArgumentError:
        shutil.rmtree(path, ignore_errors=True)
        return None


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
