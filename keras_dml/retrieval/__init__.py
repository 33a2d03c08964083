"""Retrieval: one `Index` interface for exact search and for ScaNN.

Search runs on ScaNN or NumPy. An index inside a SavedModel needs TensorFlow.
"""

from __future__ import annotations

import functools
import logging
import pathlib

import numpy.typing as npt

from keras_dml._common.checks import check_path
from keras_dml._common.errors import ArgumentError
from keras_dml._common.types import METRICS, Metric, StrPath
from keras_dml._files.atomic import read_folder
from keras_dml.retrieval.exact import ExactIndex
from keras_dml.retrieval.files import SEARCHER, damaged, read_index
from keras_dml.retrieval.index import Index
from keras_dml.retrieval.prefix import PrefixIndex
from keras_dml.retrieval.reranking import RERANKINGS as RERANKINGS
from keras_dml.retrieval.reranking import augment_items as augment_items
from keras_dml.retrieval.reranking import expand_queries as expand_queries
from keras_dml.retrieval.reranking import k_reciprocal_distances as k_reciprocal_distances
from keras_dml.retrieval.scann_import import import_scann
from keras_dml.retrieval.scann_index import ScannIndex
from keras_dml.retrieval.tree import TreeAH


@functools.cache
def scann_loads() -> bool:
    """Return whether ScaNN can be imported. If not, log the reason once per process.

    The message goes to the logger "keras_dml". `scann_loads.cache_clear()` repeats the check.

    Examples:
        >>> isinstance(scann_loads(), bool)
        True
    """
    try:
        import_scann()
    except ImportError as error:
        # Cached, so that a training run with many evaluations logs the message once.
        logging.getLogger("keras_dml").warning(
            "ScaNN is not available (%s); searching by products instead: the exact results, more "
            "slowly.",
            error,
        )
        return False
    return True


def build_index(
    embeddings: npt.ArrayLike,
    metric: Metric = "cosine",
    ids: npt.ArrayLike | None = None,
    tree: TreeAH | None = None,
) -> Index:
    """Build a `ScannIndex` if ScaNN loads, and otherwise an `ExactIndex`.

    Without `tree`, both return the same ids and scores. If ScaNN is missing, the logger "keras_dml"
    gets one warning per process.

    Examples:
        >>> items = [[1.0, 0.0], [0.8, 0.6], [0.0, 1.0]]
        >>> build_index(items).search([[0.1, 1.0]], k=1)[0]
        array([[2]])

    Args:
        embeddings: Numbers `[n, d]`.
        metric: "cosine" or "l2".
        ids: Whole numbers or strings `[n]`. None uses row numbers.
        tree: None for exact search, or `TreeAH`.

    Raises:
        ValueError: As in `Index`.
        TypeError: ScaNN loads, and `tree` is not a `TreeAH`.
    """
    if scann_loads():
        return ScannIndex(embeddings, metric, ids, tree)
    return ExactIndex(embeddings, metric, ids)


def load_index(path: StrPath) -> Index:
    """Load the index that `Index.save` wrote. The folder can have been moved.

    A trained tree is loaded, not retrained. Without ScaNN, a `ScannIndex`, with or without a tree,
    becomes an `ExactIndex` of the same items, with the message of `build_index`. If another process
    or thread saves to the folder at the same time, the result is either the old or the new index.

    Examples:
        >>> items = [[1.0, 0.0], [0.8, 0.6], [0.0, 1.0]]
        >>> keras_dml.retrieval.ExactIndex(items).save("an_index")
        >>> load_index("an_index").num_items
        3

    Raises:
        ValueError: `path` is not an index, is damaged, or is from a newer version of the library.
    """
    return read_folder(check_path("path", path), lambda folder: _load(folder, path))


def _load(folder: pathlib.Path, path: StrPath) -> Index:
    description, items = read_index(folder, path)
    try:
        kind, metric = description["kind"], description["metric"]
        if kind == PrefixIndex.kind:
            length, candidates = description["length"], description["candidates"]
            return PrefixIndex(items, metric, length=length, candidates=candidates)
        if kind == ExactIndex.kind or not scann_loads():
            return ExactIndex(items, metric)
        return ScannIndex.loaded(items, description, folder / SEARCHER)
    except (ArgumentError, LookupError, TypeError) as error:
        raise damaged(path, error) from error
    except (OSError, RuntimeError, ValueError) as error:
        raise damaged(path, f"ScaNN cannot read its part: {error}") from error


__all__ = [
    "METRICS",
    "RERANKINGS",
    "ExactIndex",
    "Index",
    "PrefixIndex",
    "ScannIndex",
    "TreeAH",
    "augment_items",
    "build_index",
    "expand_queries",
    "k_reciprocal_distances",
    "load_index",
    "scann_loads",
]
