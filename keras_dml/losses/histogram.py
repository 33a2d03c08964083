"""The histogram loss."""

from typing import Unpack

from keras import ops

from keras_dml._backend.replicas import sum_over_replicas
from keras_dml._common.checks import check_whole
from keras_dml._common.types import Parts, Tensor
from keras_dml._pairwise.arithmetic import cumsum, maximum, segment_sum
from keras_dml._pairwise.pairs import Pairs, pair_means
from keras_dml.losses.pair_loss import PairLoss, PairOptions
from keras_dml.losses.registry import register


@register("histogram")
class HistogramLoss(PairLoss):
    """Histogram loss: the chance that a random negative pair is more similar than a positive one.

    The cosine similarities of all positive pairs of the batch form the histogram h⁺ over R nodes
    `t_r` from −1 to 1, in which a similarity between two nodes counts for both, linearly. With its
    running sums `Φ⁺`, interpolated between the nodes, the loss is the mean of `Φ⁺(S_ik)` over the
    negative pairs. The histogram of the negatives then follows by exchange of the two sums:

        L = Σ_r h⁻_r Σ_{q≤r} h⁺_q

    - tightness `T_i ∝ Σ_{j∈P_i} (1 − S_ij) / 2`
    - contrastive `C_i ∝ Σ_{k∈N_i} Φ⁺(S_ik) − T_i`

    with the factors n / (number of positive pairs) and n / (number of negative pairs). Without
    positives or without negatives the value is 0.

    Examples:
        >>> labels = np.array([0, 0, 1, 1])
        >>> z = np.array([[3, 4, 0], [4, 0, 3], [0, 3, 4], [0, 5, 0]], "float32") / 5
        >>> loss = HistogramLoss(num_bins=150)
        >>> round(float(loss(labels, z)), 3)
        0.5

    Args:
        num_bins: R − 1, the number of intervals between nodes, at least 1.
        reduction, name, dtype, mining, relation: As in `PairLoss`.

    Raises:
        ValueError: `num_bins` is not a whole number above 0, or shapes are wrong.

    Reference: Ustinova and Lempitsky, "Learning Deep Embeddings with Histogram Loss", NIPS 2016,
    Eq. 2 to 6.
    """

    def __init__(self, num_bins: int = 150, **options: Unpack[PairOptions]) -> None:
        super().__init__(**options)
        self.num_bins = check_whole("num_bins", num_bins, least=1)

    def compute_pair_loss(self, pairs: Pairs) -> Tensor:
        """Compute the loss `[n]` without the cancellation of its parts."""
        places = (pairs.similarities() + 1.0) * (self.num_bins / 2)
        # Rounding can carry a similarity beyond 1. A node must exist also for NaN.
        nodes = ops.clip(ops.cast(ops.floor(places), "int32"), 0, self.num_bins - 1)
        upper_share = places - ops.cast(nodes, places.dtype)
        weights = ops.cast(pairs.positive, places.dtype)
        number = maximum(sum_over_replicas(ops.sum(weights)), 1.0)
        counts = self._sums(weights * (1.0 - upper_share), nodes)
        counts = counts + self._sums(weights * upper_share, nodes + 1)
        reached = cumsum(sum_over_replicas(counts)) / number
        below, above = ops.take(reached, nodes), ops.take(reached, nodes + 1)
        return pair_means(below + upper_share * (above - below), pairs.negative)

    def compute_pair_parts(self, pairs: Pairs) -> Parts:
        """Compute the two parts `[n]`."""
        loss = self.compute_pair_loss(pairs)
        tightness = pair_means((1.0 - pairs.similarities()) / 2, pairs.positive)
        return tightness, loss - tightness

    def _sums(self, weights: Tensor, nodes: Tensor) -> Tensor:
        """Return the sums of the weights at each node, `[R]`."""
        flat = ops.reshape(weights, (-1,)), ops.reshape(nodes, (-1,))
        return segment_sum(*flat, self.num_bins + 1)
