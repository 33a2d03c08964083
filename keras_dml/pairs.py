"""The arithmetic that the losses over pairs share: products, distances, masks, masked sums."""

import dataclasses
from typing import Any

from keras import ops

from keras_dml.distribute import gather_candidates


@dataclasses.dataclass(frozen=True)
class Pairs:
    """The pairs of a batch: anchors of this replica, candidates of all replicas.

    Attributes:
        anchors: embeddings `[a, d]`.
        candidates: embeddings `[c, d]`; on one device the very tensor `anchors`.
        positive: bool `[a, c]`, another image of the same class.
        negative: bool `[a, c]`, an image of another class.
    """

    anchors: Any
    candidates: Any
    positive: Any
    negative: Any

    @classmethod
    def of_batch(cls, class_ids, embeddings):
        """Pairs of class ids `[n]` and embeddings `[n, d]` against those of all replicas."""
        candidates, offset = gather_candidates(embeddings)
        candidate_ids, _ = gather_candidates(class_ids)
        rows = ops.arange(ops.shape(embeddings)[0]) + offset
        columns = ops.arange(ops.shape(candidates)[0])
        same_class = ops.equal(class_ids[:, None], candidate_ids[None, :])
        itself = ops.equal(rows[:, None], columns[None, :])
        return cls(
            anchors=embeddings,
            candidates=candidates,
            positive=ops.logical_and(same_class, ops.logical_not(itself)),
            negative=ops.logical_not(same_class),
        )

    def similarities(self):
        """Inner products `S_ij = a_i · c_j`, `[a, c]`."""
        if self.candidates is self.anchors:
            return gram(self.anchors)
        return ops.matmul(self.anchors, ops.transpose(self.candidates))

    def squared_distances(self):
        """`D_ij² = ‖a_i − c_j‖²`, `[a, c]`, exactly 0 for coincident embeddings.

        Taken from the inner products, since all differences would need n²·d numbers. What the
        subtraction leaves below its own rounding error is not a distance: it becomes 0.
        """
        anchor_squares = ops.sum(ops.square(self.anchors), axis=-1)
        candidate_squares = (
            anchor_squares
            if self.candidates is self.anchors
            else ops.sum(ops.square(self.candidates), axis=-1)
        )
        squares = anchor_squares[:, None] + candidate_squares[None, :]
        distances = squares - 2.0 * self.similarities()
        epsilon = 2.2e-16 if str(distances.dtype).endswith("float64") else 1.2e-7
        rounding = 4.0 * epsilon * squares
        return ops.where(distances > rounding, distances, ops.zeros_like(distances))


@ops.custom_gradient
def gram(x):
    """Inner products `x xᵀ` of the rows of `x` `[n, d]`: `[n, n]`.

    The gradient is `(G + Gᵀ) x` for the upstream `G`: one matrix product, where differentiating
    the product of two separate factors takes two.
    """

    def gradient(*args, upstream=None):
        if upstream is None:
            (upstream,) = args
        return ops.matmul(upstream + ops.transpose(upstream), x)

    return ops.matmul(x, ops.transpose(x)), gradient


def normalize(x):
    """Rows of `x` `[n, d]` at length 1; a zero row stays zero and has a zero gradient."""
    squares = ops.sum(ops.square(x), axis=-1, keepdims=True)
    nonzero = squares > 1e-24
    return ops.where(nonzero, x * ops.rsqrt(ops.where(nonzero, squares, 1.0)), 0.0)


def safe_sqrt(x):
    """Square root of `x ≥ 0` with gradient 0, not infinity, at 0."""
    positive = x > 0
    return ops.where(positive, ops.sqrt(ops.where(positive, x, 1.0)), 0.0)


def masked_sum(values, mask):
    """Sum over the last axis of the `values` that the bool `mask` keeps."""
    return ops.sum(ops.where(mask, values, ops.zeros_like(values)), axis=-1)


def count(mask, dtype):
    """How many entries of the bool `mask` are true along the last axis, as `dtype`."""
    return ops.sum(ops.cast(mask, dtype), axis=-1)


def log_one_plus_sum_exp(exponents, mask):
    """`log(1 + Σ_{mask} exp(e))` over the last axis, without overflow; 0 where nothing is kept."""
    lowest = ops.full_like(exponents, -1e30)
    kept = ops.where(mask, exponents, lowest)
    peak = ops.stop_gradient(ops.maximum(ops.max(kept, axis=-1, keepdims=True), 0.0))
    total = ops.exp(-peak) + ops.sum(ops.exp(kept - peak), axis=-1, keepdims=True)
    return ops.squeeze(ops.log(total) + peak, axis=-1)
