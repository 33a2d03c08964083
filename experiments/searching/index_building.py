"""Build the index of a folder's embeddings, and the SavedModel of a backbone that embeds it."""

from __future__ import annotations

import dataclasses
import json
import pathlib
import shutil
import sys
from collections.abc import Mapping, Sequence
from typing import Any, cast

import numpy as np

from experiments.options import data
from experiments.options.conversions import import_modules
from experiments.options.errors import UsageError
from experiments.searching.folder_embeddings import Embedded
from experiments.searching.index_folder import INDEX, MODEL, Changes, Settings, write_settings
from experiments.searching.index_options import IndexOptions
from keras_dml import retrieval
from keras_dml._common.errors import ArgumentError
from keras_dml._common.rows import prepared_rows
from keras_dml._common.types import Metric
from keras_dml._files.atomic import replacing_folder
from keras_dml._files.json_files import read_json
from keras_dml.export import export_saved_model
from keras_dml.models import feature_extractor
from keras_dml.retrieval import TreeAH

# A search of this many images takes some ten milliseconds without a tree.
EXACT_ITEMS = 100_000
# The flags of a backbone. TensorFlow ignores this folder of a SavedModel.
_FLAGS = pathlib.Path("assets.extra", "backbone.json")
_FORM = {
    "backbone": str,
    "weights": str,
    "pooling": str,
    "image_size": int,
    "resize": int | None,
    "max_pixels": int | None,
}


def saved_backbone(options: IndexOptions) -> pathlib.Path:
    """Return the SavedModel of a backbone's pooled features. Export it unless it exists.

    Raises:
        UsageError: The SavedModel has another backbone, weights, pooling, or image size.
    """
    path = options.output_dir / MODEL
    flags = {name: getattr(options, name) for name in _FORM}
    if path.is_dir():
        try:
            found = read_json(path / _FLAGS, _FORM)
        except (ArgumentError, FileNotFoundError) as error:
            raise UsageError(
                f"{error}. Delete {path.parent}, and the same command makes the index again."
            ) from error
        for name, value in flags.items():
            if found.get(name) != value:
                raise UsageError(
                    f"{name} must be {found.get(name)} for the index in {path.parent}, but got "
                    f"{name}={value}. Use another --output_dir."
                )
        return path
    import_modules(options.import_modules)
    backbone = options.backbone or ""
    if line := data.native_size_line(backbone, options.weights, options.image_size):
        print(line)
    model = feature_extractor(
        backbone,
        options.image_size,
        options.weights,
        pooling=options.pooling,
        trust_code=options.trust_code,
    )
    with replacing_folder(path, str(_FLAGS), "a backbone") as unfinished:
        export_saved_model(model, unfinished, data.evaluation_transform(options))
        (unfinished / _FLAGS).write_text(json.dumps(flags) + "\n")
    return path


def update_index(options: IndexOptions, settings: Settings, embedded: Embedded) -> str:
    """Build the index in a folder again if images or its kind have changed. Update the settings.

    Returns:
        Two lines: the changes, and the kind of search.
    """
    output = options.output_dir
    recall = options.target_recall
    if recall is None:
        recall = 0.95 if len(embedded.files) > EXACT_ITEMS and options.prefix is None else 1.0
    # A later run of the same command builds the tree once ScaNN is installed.
    tree = TreeAH(target_recall=recall) if recall < 1 and retrieval.scann_loads() else None
    built: dict[str, Any] = {
        "metric": options.metric,
        "tree": tree and dataclasses.asdict(tree),
        "prefix": options.prefix,
    }
    index: retrieval.Index | None = None
    try:
        index = retrieval.load_index(output / INDEX)
    except ArgumentError:  # damaged or missing
        shutil.rmtree(output / INDEX, ignore_errors=True)
    changes = _changes(index, embedded)
    if settings.get("built") != built or index is None or any(changes):
        index = new_index(embedded.paths, embedded.embeddings, built)
        index.save(output / INDEX)
        settings |= {"built": built, "search": search_line(index)}
        write_settings(output, settings)
    return f"{changes}\n{settings['search']}"


def _changes(index: retrieval.Index | None, embedded: Embedded) -> Changes:
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


def new_index(
    paths: Sequence[str], embeddings: np.ndarray, built: Mapping[str, Any]
) -> retrieval.Index:
    """Build the index of embeddings `[n, d]`.

    Args:
        paths: The images.
        embeddings: Their embeddings.
        built: `built` of an index folder's settings: the metric, the tree, and the prefix.

    Raises:
        UsageError: The prefix is not less than d.
    """
    metric, prefix = cast("Metric", built["metric"]), built["prefix"]
    dimensions = embeddings.shape[1]
    if prefix is None:
        tree = built["tree"] and retrieval.TreeAH(**built["tree"])
        if tree:  # takes minutes for a million images, and ScaNN does not report its progress
            print(f"building a tree over {len(paths):,} images", file=sys.stderr, flush=True)
        return retrieval.build_index(embeddings, metric, paths, tree)
    if prefix >= dimensions:
        raise UsageError(
            f"prefix must be less than the {dimensions} dimensions of the model's embeddings, but "
            f"got {prefix}."
        )
    return retrieval.PrefixIndex(embeddings, metric, paths, length=prefix)


def search_line(index: retrieval.Index) -> str:
    """Describe how a search works."""
    if isinstance(index, retrieval.PrefixIndex):
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
