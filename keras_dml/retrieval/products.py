"""The nearest rows by blocks of products: by TensorFlow where it is installed, else by NumPy."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from types import ModuleType

import numpy as np
import numpy.typing as npt

from keras_dml.nearness import Metric
from keras_dml.retrieval.rows import BLOCK, center, row_blocks

# Scores held at once: 2^25 float32 are 128 MiB. Smaller blocks make the products slower.
_SCORE_BLOCK = 2**25


def first_equal(rows: npt.NDArray[np.float32]) -> npt.NDArray[np.int64]:
    """For each row the number of the first row equal to it, int64 `[n]`; -0 equals 0."""
    factors = np.random.default_rng(0).integers(2**63, size=rows.shape[1], dtype=np.uint64)
    hashes = np.empty(len(rows), np.uint64)
    for block in row_blocks(rows):
        bits = (rows[block] + np.float32(0)).view(np.uint32).astype(np.uint64)
        hashes[block] = np.einsum("nd,d->n", bits, factors)  # modulo 2^64
    # Equal rows have equal hashes; few others do, so that few rows have to be sorted whole.
    _, inverse, times = np.unique(hashes, return_inverse=True, return_counts=True)
    maybe = np.flatnonzero(times[inverse] > 1)
    first = np.arange(len(rows))
    if len(maybe):
        whole = rows[maybe] + np.float32(0)
        texts = whole.view(np.dtype((np.void, whole.itemsize * whole.shape[1]))).ravel()
        _, start, inverse = np.unique(texts, return_index=True, return_inverse=True)
        first[maybe] = maybe[start][inverse]
    return first


class ExactProducts:
    """The nearest of prepared rows by float64 products with all of them.

    float64, because scores are compared after rounding to float32: the products' own error is
    then too small to part pairs whose scores are equal. Rows go to float64 block by block, so
    that no copy of them is held.

    Args:
        rows: float32 `[n, d]`, normalised for "cosine".
        metric: "cosine" or "l2".
    """

    def __init__(self, rows: npt.NDArray[np.float32], metric: Metric) -> None:
        self._rows = rows
        self._metric: Metric = metric
        # Equal rows share one product, hence one score, however the product is rounded.
        first = first_equal(rows)
        self._distinct = np.flatnonzero(first == np.arange(len(rows)))
        self._copies: np.ndarray | None = None
        if len(self._distinct) < len(rows):
            self._copies = np.searchsorted(self._distinct, first)
        self._center = center(rows, metric)
        self.block = max(1, min(_SCORE_BLOCK // len(rows), BLOCK // rows.shape[1]))

    def nearest(
        self,
        queries: npt.NDArray[np.float32],
        k: int,
        among: npt.NDArray[np.int64] | None = None,
    ) -> np.ndarray:
        """Row numbers `[q, k]`, nearest first.

        Args:
            queries: prepared rows float32 `[q, d]`, q at most `block`.
            k: at most as many as there are to choose from.
            among: None (all rows), or the row numbers to choose from, ascending.
        """
        distinct, copies = self._distinct, self._copies
        if among is not None:
            distinct = among
            if self._copies is not None:
                used, copies = np.unique(self._copies[among], return_inverse=True)
                distinct = self._distinct[used]
        every = among is None and copies is None
        step = max(1, BLOCK // self._rows.shape[1])
        blocks = (slice(start, start + step) for start in range(0, len(distinct), step))
        items = (self._rows[block if every else distinct[block]] for block in blocks)
        moved = queries.astype(np.float64) - self._center
        nearest = _nearest_by_numpy if _tensorflow() is None else _nearest_by_tensorflow
        found = nearest(moved, items, self._center, self._metric, copies, k)
        return found if among is None else among[found]


@functools.cache
def _tensorflow() -> ModuleType | None:
    """The module, or None where it is not installed."""
    try:
        import tensorflow
    except ImportError:
        return None
    return tensorflow


def _nearest_by_tensorflow(
    queries: npt.NDArray[np.float64],
    blocks: Iterator[npt.NDArray[np.float32]],
    middle: npt.NDArray[np.float64],
    metric: Metric,
    copies: np.ndarray | None,
    k: int,
) -> np.ndarray:
    """See `ExactProducts.nearest`; `blocks` of the distinct items, of which `copies` names each."""
    import tensorflow as tf  # _tensorflow() has found it

    queries, parts = tf.constant(queries), []
    for items in blocks:
        items = tf.cast(items, tf.float64) - middle
        nearness = tf.matmul(queries, items, transpose_b=True)
        if metric == "l2":
            squares = tf.reduce_sum(tf.square(queries), axis=1, keepdims=True)
            squares += tf.reduce_sum(tf.square(items), axis=1)
            nearness = -tf.sqrt(tf.maximum(squares - 2.0 * nearness, 0.0))
        parts.append(tf.cast(nearness, tf.float32))
    nearness = tf.concat(parts, axis=1)
    if copies is not None:
        nearness = tf.gather(nearness, copies, axis=1)
    # Of equal numbers top-k keeps the first: the lower row.
    return tf.math.top_k(nearness, k).indices.numpy()


def _nearest_by_numpy(
    queries: npt.NDArray[np.float64],
    blocks: Iterator[npt.NDArray[np.float32]],
    middle: npt.NDArray[np.float64],
    metric: Metric,
    copies: np.ndarray | None,
    k: int,
) -> np.ndarray:
    """The same, more slowly."""
    parts = []
    for block in blocks:
        items = block.astype(np.float64) - middle
        nearness = queries @ items.T
        if metric == "l2":
            squares = np.einsum("qd,qd->q", queries, queries)[:, None]
            squares = squares + np.einsum("nd,nd->n", items, items)
            nearness = -np.sqrt(np.maximum(squares - 2.0 * nearness, 0.0))
        with np.errstate(over="ignore"):  # beyond float32's range all are as far
            parts.append(nearness.astype(np.float32))
    nearness = np.concatenate(parts, axis=1)
    if copies is not None:
        nearness = nearness[:, copies]
    # Float32 numbers as integers in the same order, the row below them: no two are equal.
    bits = (nearness + np.float32(0)).view(np.int32)
    keys = np.where(bits < 0, bits ^ np.int32(0x7FFFFFFF), bits).astype(np.int64)
    keys = -keys * 2**32 + np.arange(nearness.shape[1])
    first = np.argpartition(keys, k - 1, axis=1)[:, :k]
    return np.take_along_axis(
        first, np.argsort(np.take_along_axis(keys, first, axis=1), axis=1), axis=1
    )
