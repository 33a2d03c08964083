"""An index as TensorFlow operations for a SavedModel. Requires TensorFlow."""

import math
import pathlib
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from keras_dml._common.extras import needing
from keras_dml._common.types import Float32Array, Float64Array, Metric
from keras_dml.retrieval.scann_import import import_operations

with needing("tensorflow", "an index inside a SavedModel"):
    import tensorflow as tf

# Maximum number of scores in memory: 2^25 float32 are 128 MiB.
_SCORE_BLOCK = 2**25
# Maximum number of values in memory during re-scoring: 2^22 float64 are 32 MiB.
_PAIR_BLOCK = 2**22
# Number of re-scored candidates beyond k, because float32 products can swap near items.
_SPARE = 8


class SearchModule(tf.Module):
    """Items and ids as variables, searched by TensorFlow operations.

    The candidates are the k + 8 best items by float32 products. Their scores are recomputed in
    float64 from float32 values and rounded to float32, and the lower row comes first among equal
    scores. Scores therefore equal the scores of `Index` (if `middle` is not 0, to about 1e-7 of the
    items' distances from it). Ids are equal too, unless more than 8 items are as near as the k-th
    within float32 rounding.

    Args:
        rows: float32 `[n, d]`, normalized for "cosine", minus `middle`. With `lift`,
            `CenteringTransform.items`, `[n, d + 1]`.
        ids: int64 or strings `[n]`.
        metric: "cosine" or "l2".
        middle: float64 `[d]`, subtracted from queries. 0 for "cosine" without a lift.
        lift: None, or the lift of `retrieval.centering.CenteringTransform`.
    """

    def __init__(
        self,
        rows: "Float32Array | tf.Variable",
        ids: np.ndarray,
        metric: Metric,
        middle: Float64Array,
        lift: float | None = None,
    ) -> None:
        super().__init__(name="index")
        self._metric, self._middle, self._lift = metric, middle, lift
        if not isinstance(rows, tf.Variable):
            rows = tf.Variable(rows, trainable=False, name="rows")
        self._rows = rows
        values: Any = ids
        if ids.dtype.kind == "U":
            # File names that are not valid UTF-8 keep their bytes.
            values = [one.encode("utf-8", "surrogateescape") for one in ids.tolist()]
        self._ids = tf.Variable(values, trainable=False, name="ids")
        if metric == "l2":
            # Without a scale, squares of numbers below 1e-22 would all be 0. A power of two scales
            # exactly.
            largest = float(tf.reduce_max(tf.abs(rows)))
            exponent = -math.frexp(largest)[1]
            self._scale = np.float32(math.ldexp(1.0, min(max(exponent, -126), 126)))
            halves = 0.5 * tf.reduce_sum(tf.square(rows * self._scale), axis=1)
            self._halves = tf.Variable(halves, trainable=False, name="halves")

    def search(self, embeddings: tf.Tensor, k: int) -> tuple[tf.Tensor, tf.Tensor]:
        """Find the k nearest items of each query, nearest first, as `Index.search` does.

        Args:
            embeddings: float32 tensor `[q, d]`, q at least 1.
            k: Whole number from 1 to n, not a tensor.

        Returns:
            `(ids, scores)`: int64 or strings `[q, k]`, float32 `[q, k]`.

        Raises:
            tf.errors.InvalidArgumentError: The embeddings contain NaN or infinity.
        """
        queries = tf.debugging.assert_all_finite(embeddings, "an embedding is not finite")
        queries = tf.cast(queries, tf.float64)
        if self._metric == "cosine":
            lengths = tf.norm(queries, axis=1, keepdims=True)
            queries = tf.math.divide_no_nan(queries, lengths)
            # Rounded as in `Index`, because the last bit can decide which leaf ScaNN searches.
            queries = tf.cast(tf.cast(queries, tf.float32), tf.float64)
        queries = tf.cast(queries - self._middle, tf.float32)
        if self._lift is not None:
            queries = tf.pad(queries, [[0, 0], [0, 1]], constant_values=1 / self._lift)
        # A separate tf.function, because ExportArchive traces without AutoGraph.
        rows, scores = tf.function(self._in_blocks)(queries, k)
        return tf.gather(self._ids, rows), scores

    def _in_blocks(self, queries: tf.Tensor, k: int) -> tuple[tf.Tensor, tf.Tensor]:
        count, dimensions = self._rows.shape
        wide = self._asked(k) * dimensions
        step = max(1, min(_SCORE_BLOCK // count, _PAIR_BLOCK // wide))
        rows = tf.TensorArray(tf.int32, 0, dynamic_size=True, element_shape=[None, k])
        scores = tf.TensorArray(tf.float32, 0, dynamic_size=True, element_shape=[None, k])
        for start in tf.range(0, tf.shape(queries)[0], step):
            block = queries[start : start + step]
            found, nearness = self._ranked(block, self._candidates(block, k), k)
            rows, scores = rows.write(rows.size(), found), scores.write(scores.size(), nearness)
        return rows.concat(), scores.concat()

    def _candidates(self, queries: tf.Tensor, k: int) -> tf.Tensor:
        """Return candidate row numbers, int32 `[q, c]`, c at least k: the best by products."""
        if self._metric == "cosine":
            nearness = tf.matmul(queries, self._rows, transpose_b=True)
        else:
            products = tf.matmul(queries * self._scale, self._rows, transpose_b=True)
            nearness = products * self._scale - self._halves
        return tf.math.top_k(nearness, self._asked(k)).indices

    def _asked(self, k: int) -> int:
        """Return the number of candidates."""
        return min(k + _SPARE, self._rows.shape[0])

    def _ranked(
        self, queries: tf.Tensor, candidates: tf.Tensor, k: int
    ) -> tuple[tf.Tensor, tf.Tensor]:
        # Among equal numbers, top-k keeps the first, which is the lower row.
        candidates = tf.sort(candidates, axis=1)
        items = tf.cast(tf.gather(self._rows, candidates), tf.float64)
        queries = tf.cast(queries, tf.float64)
        if self._metric == "cosine":
            scores = tf.linalg.matvec(items, queries)
            if self._lift is not None:  # q·x - q·c
                scores += tf.linalg.matvec(queries[:, :-1] + self._middle, self._middle)[:, None]
        else:
            scores = -tf.norm(items - queries[:, None], axis=2)
        best = tf.math.top_k(tf.cast(scores, tf.float32), k)
        rows = tf.gather(candidates, best.indices, batch_dims=1)
        return rows, best.values if self._metric == "cosine" else -best.values


class ScannSearchModule(SearchModule):
    """A `SearchModule` with candidates from ScaNN's operations, which `import scann` registers.

    Args:
        folder: Folder with the files of ScaNN's `serialize`, a `pathlib.Path`.
        reorder: Function from k to the number of items that ScaNN compares by their float32 rows.
        leaves: Number of leaves to search.
        ids, metric, middle, lift: As in `SearchModule`.
    """

    def __init__(
        self,
        folder: pathlib.Path,
        ids: np.ndarray,
        metric: Metric,
        middle: Float64Array,
        lift: float | None,
        reorder: Callable[[int], int],
        leaves: int | None,
    ) -> None:
        scann_ops = import_operations()
        state = scann_ops.ScannState(_assets(folder))
        super().__init__(state.dataset, ids, metric, middle, lift)
        self._scann, self._state = scann_ops, state
        self._reorder, self._leaves = reorder, leaves

    def _candidates(self, queries: tf.Tensor, k: int) -> tf.Tensor:
        searcher = self._scann.searcher_from_module(self._state)
        found = searcher.search_batched_parallel(queries, k, self._reorder(k), self._leaves)
        # The operation returns as many columns as the query with the most items has.
        missing = [[0, 0], [0, k - tf.shape(found.indices)[1]]]
        rows = tf.ensure_shape(tf.pad(tf.cast(found.indices, tf.int32), missing), [None, k])
        raw = tf.pad(found.distances, missing, constant_values=float("nan"))
        # A score is NaN if the leaves contain too few items, and infinite beyond the range of
        # float32. Such a query is searched exactly.
        short = ~tf.reduce_all(tf.math.is_finite(raw), axis=1, keepdims=True)

        def exactly() -> tf.Tensor:
            exact = super(ScannSearchModule, self)._candidates(queries, k)
            return tf.where(short, exact[:, :k], rows)

        return tf.cond(tf.reduce_any(short), exactly, lambda: rows)


def _assets(folder: pathlib.Path) -> tuple[np.ndarray | tf.Tensor, ...]:
    """Return the nine tensors of `ScannState`. Parts that the searcher lacks are scalars."""

    def text(name: str) -> tf.Tensor:
        path = folder / name
        return tf.constant([path.read_bytes()] if path.is_file() else b"")

    def array(name: str, dtype: npt.DTypeLike) -> np.ndarray:
        path = folder / name
        return np.load(path) if path.is_file() else np.zeros((), dtype)

    return (
        text("scann_config.pb"),
        text("serialized_partitioner.pb"),
        array("datapoint_to_token.npy", np.int32),
        text("ah_codebook.pb"),
        array("hashed_dataset.npy", np.uint8),
        np.zeros((), np.int8),  # the next three are for items as 8-bit numbers
        np.zeros((), np.float32),
        np.zeros((), np.float32),
        array("dataset.npy", np.float32),
    )
