"""Exact search in blocks of products. Needs TensorFlow (its top-k keeps ties in row order)."""

import numpy as np
import tensorflow as tf

from keras_dml.retrieval.index import Index

# Scores held at once: 2^24 float64 are 128 MiB. Smaller blocks make the products slower.
_SCORE_BLOCK = 2**24


class ExactProducts:
    """The nearest of prepared rows by float64 products with all of them.

    float64, because scores are compared after rounding to float32: the products' own error is
    then too small to part pairs whose scores are equal.

    Args:
        rows: float32 `[n, d]`, normalised for "cosine".
        metric: "cosine" or "l2".
    """

    def __init__(self, rows, metric):
        self._metric = metric
        # Equal rows share one product, hence one score, however the product is rounded.
        whole_rows = (rows + np.float32(0)).view(np.dtype((np.void, rows.itemsize * rows.shape[1])))
        _, first, copies = np.unique(whole_rows.ravel(), return_index=True, return_inverse=True)
        self._copies = copies if len(first) < len(rows) else None
        distinct = rows if self._copies is None else rows[first]
        # Distances do not change when everything moves by -centre, and |x|² - 2x·y + |y|² loses
        # fewer digits near the origin. Similarities do change, so they stay.
        self._centre = rows.mean(axis=0, dtype=np.float64) if metric == "l2" else 0.0
        with tf.device("/CPU:0"):
            self._rows = tf.constant(distinct.astype(np.float64) - self._centre)
            self._squares = tf.reduce_sum(tf.square(self._rows), axis=1)
        self.block = max(1, _SCORE_BLOCK // len(rows))

    def nearest(self, queries, k):
        """Row numbers `[q, k]`, nearest first; queries: prepared, `[q, d]`, q at most `block`."""
        with tf.device("/CPU:0"):
            queries = tf.constant(queries.astype(np.float64) - self._centre)
            nearness = tf.matmul(queries, self._rows, transpose_b=True)
            if self._metric == "l2":
                squares = tf.reduce_sum(tf.square(queries), axis=1, keepdims=True)
                nearness = -tf.sqrt(tf.maximum(squares - 2.0 * nearness + self._squares, 0.0))
            nearness = tf.cast(nearness, tf.float32)
            if self._copies is not None:
                nearness = tf.gather(nearness, self._copies, axis=1)
            return tf.math.top_k(nearness, k).indices.numpy()


class ExactIndex(Index):
    """The index that every other is measured against: compares each query with all items.

    Holds its items in float64 beside float32; a search takes at most a few hundred MB more,
    whatever the number of queries. See `Index` for arguments, order and errors.
    """

    def __init__(self, embeddings, metric="cosine"):
        super().__init__(embeddings, metric)
        self._products = ExactProducts(self._rows, metric)

    @property
    def _block(self):
        return self._products.block

    def _nearest(self, queries, k):
        return self._ranked(queries, self._products.nearest(queries, k), k)
