"""Retrieval: one `Index` interface, exact and through ScaNN. Needs TensorFlow."""

import functools
import logging

from keras_dml.retrieval.exact import ExactIndex
from keras_dml.retrieval.index import METRICS, Index
from keras_dml.retrieval.scann_index import ScannIndex, import_scann


@functools.cache
def _scann_loads():
    try:
        import_scann()
    except ImportError as error:
        # Cached, so that a training with many evaluations says it once.
        logging.getLogger("keras_dml").warning(
            "ScaNN is not available (%s); searching with TensorFlow products instead: "
            "the same results, more slowly.",
            error,
        )
        return False
    return True


def build_index(embeddings, metric="cosine"):
    """An exact index: `ScannIndex` where ScaNN loads, else `ExactIndex`.

    Both give the same rows and scores. Without ScaNN one line, once a process, goes to the
    logger "keras_dml".

    Args:
        embeddings: numbers `[n, d]`.
        metric: "cosine" or "l2".

    Raises:
        ValueError: as `Index`.
    """
    return (ScannIndex if _scann_loads() else ExactIndex)(embeddings, metric)


__all__ = ["METRICS", "ExactIndex", "Index", "ScannIndex", "build_index"]
