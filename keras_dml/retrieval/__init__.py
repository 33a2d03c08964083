"""Retrieval: one `Index` interface, exact and through ScaNN.

By TensorFlow where it is installed, else by NumPy; an index inside a SavedModel needs TensorFlow.
"""

import functools
import logging
import os
import pathlib

import numpy.typing as npt

from keras_dml.atomic import read_folder
from keras_dml.checks import check_path, shown
from keras_dml.errors import ArgumentTypeError
from keras_dml.nearness import METRICS, Metric
from keras_dml.retrieval.exact import ExactIndex
from keras_dml.retrieval.files import read_index
from keras_dml.retrieval.index import Index
from keras_dml.retrieval.prefix import PrefixIndex
from keras_dml.retrieval.scann_index import ScannIndex, import_scann
from keras_dml.retrieval.tree import TreeAH


@functools.cache
def scann_loads() -> bool:
    """Whether ScaNN can be imported; where it cannot, one line a process says so and why.

    The line goes to the logger "keras_dml". `scann_loads.cache_clear()` makes it look again.

    Examples:
        >>> isinstance(scann_loads(), bool)
        True
    """
    try:
        import_scann()
    except ImportError as error:
        # Cached, so that a training with many evaluations says it once.
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
    """A `ScannIndex` where ScaNN loads, else an `ExactIndex`.

    Without `tree` both give the same ids and scores. Without ScaNN one line, once a process, goes
    to the logger "keras_dml".

    Examples:
        >>> items = [[1.0, 0.0], [0.8, 0.6], [0.0, 1.0]]
        >>> build_index(items).search([[0.1, 1.0]], k=1)[0]
        array([[2]])

    Args:
        embeddings: numbers `[n, d]`.
        metric: "cosine" or "l2".
        ids: whole numbers or strings `[n]`; None: row numbers.
        tree: None for exact search, or `TreeAH`.

    Raises:
        ValueError: as `Index`.
        TypeError: `tree` is no `TreeAH`.
    """
    if tree is not None and not isinstance(tree, TreeAH):
        raise ArgumentTypeError(f"tree must be None or a TreeAH. Received: tree={shown(tree)}")
    if scann_loads():
        return ScannIndex(embeddings, metric, ids, tree)
    return ExactIndex(embeddings, metric, ids)


def load_index(path: str | os.PathLike[str]) -> Index:
    """The index that `Index.save` wrote, wherever its folder has been moved.

    A trained tree is read, not trained again. Without ScaNN a `ScannIndex`, with a tree or not,
    becomes an `ExactIndex` of the same items, with the line of `build_index`. While another process
    or thread saves one there, the index of before or the new one.

    Examples:
        >>> items = [[1.0, 0.0], [0.8, 0.6], [0.0, 1.0]]
        >>> keras_dml.retrieval.ExactIndex(items).save("an_index")
        >>> load_index("an_index").num_items
        3

    Raises:
        ValueError: `path` is no index, damaged, or written by a newer library.
    """
    return read_folder(check_path("path", path), lambda folder: _load(folder, path))


def _load(folder: pathlib.Path, path: str | os.PathLike[str]) -> Index:
    saved = read_index(folder, path)
    if saved.kind == PrefixIndex.kind:
        return PrefixIndex(saved.items, saved.metric, **saved.prefix())
    if saved.kind == ExactIndex.kind or not scann_loads():
        return ExactIndex(saved.items, saved.metric)
    return ScannIndex(saved.items, saved.metric, tree=saved.tree(import_scann()))


__all__ = [
    "METRICS",
    "ExactIndex",
    "Index",
    "PrefixIndex",
    "ScannIndex",
    "TreeAH",
    "build_index",
    "load_index",
    "scann_loads",
]
