"""The quadruplet loss."""

from typing import Unpack

from keras import ops

from keras_dml._backend.replicas import gather_candidates
from keras_dml._common.checks import check_positive
from keras_dml._common.types import Parts, Tensor
from keras_dml._pairwise.arithmetic import count, masked_sum, maximum
from keras_dml._pairwise.pairs import Pairs, mean_over_anchors, mean_over_pairs
from keras_dml._pairwise.search import open_hinges
from keras_dml.losses.base import LossOptions
from keras_dml.losses.pair_loss import WholeBatchLoss
from keras_dml.losses.registry import register


@register("quadruplet")
class QuadrupletLoss(WholeBatchLoss):
    """Quadruplet loss: the triplet loss, and each positive pair closer than each negative pair.

    With `D_ij = ‖f_i − f_j‖`, the triplet loss over all triplets (`TripletLoss(margin)`) plus the
    mean over the positive pairs (i, j) and *all* negative pairs (k, l) of the global batch of
    `max(0, D_ij − D_kl + γ)`. An anchor's value has its own positive pairs, against all negative
    pairs; pairs are averaged, not anchors, so its share is n/|P| times its sum.

    - tightness: the positive distances of the open hinges, in both terms
    - contrastive: margin minus negative distance of the same hinges

    Without positive pairs or without negative pairs the value is 0, with no gradient.

    Sums over the n⁴ quadruplets come from sorted distances, in O(n² log n) time and O(n²) memory.

    Examples:
        >>> labels = np.array([0, 0, 1, 1])
        >>> z = np.array([[3, 4, 0], [4, 0, 3], [0, 3, 4], [0, 5, 0]], "float32") / 5
        >>> loss = QuadrupletLoss(margin=0.2)
        >>> round(float(loss(labels, z)), 3)
        0.331

    Args:
        margin: η of the triplet term, above 0, the smallest difference between the distances of a
            negative and of a positive.
        second_margin: γ, above 0, the same for negative pairs of any two images.
        normalize: Whether distances are between l2-normalized embeddings.
        reduction, name, dtype: as in `EmbeddingLoss`.

    Raises:
        ValueError: `margin` or `second_margin` not above 0, or wrong shapes.

    Reference: Kemertas et al. 2020, Eq. 12, after Law et al. 2013 and Chen et al. 2017.
    """

    def __init__(
        self,
        margin: float = 0.2,
        *,
        second_margin: float = 0.1,
        normalize: bool = True,
        **options: Unpack[LossOptions],
    ) -> None:
        super().__init__(**options)
        self.margin = check_positive("margin", margin)
        self.second_margin = check_positive("second_margin", second_margin)
        self.normalize = bool(normalize)

    def compute_pair_loss(self, pairs: Pairs) -> Tensor:
        """Compute the loss `[n]`, which rounding does not make negative."""
        (near, far), (all_near, all_far) = self._open_hinges(pairs)
        hinges = maximum(near + far, 0.0), maximum(all_near + all_far, 0.0)
        return self._mean(*hinges, pairs)

    def compute_pair_parts(self, pairs: Pairs) -> Parts:
        """Compute the two parts `[n]`."""
        (near, far), (all_near, all_far) = self._open_hinges(pairs)
        return self._mean(near, all_near, pairs), self._mean(far, all_far, pairs)

    def _open_hinges(self, pairs: Pairs) -> tuple[Parts, Parts]:
        """Add the open hinges of each pair (i, j) over the negatives of i, and over all negatives.

        Returns:
            For both, the sums of `D_ij` and of margin minus negative distance, each `[a, c]`.
        """
        distances = pairs.distances()
        others, _ = gather_candidates(distances)
        negative, _ = gather_candidates(ops.cast(pairs.negative, "int32"))
        one_row = (1, -1)
        near, far = open_hinges(
            ops.reshape(distances, one_row),
            self.second_margin,
            ops.reshape(others, one_row),
            ops.reshape(negative, one_row) > 0,
        )
        shape = ops.shape(distances)
        return (
            open_hinges(distances, self.margin, distances, pairs.negative),
            (ops.reshape(near, shape), ops.reshape(far, shape)),
        )

    def _mean(self, of_anchor: Tensor, of_all: Tensor, pairs: Pairs) -> Tensor:
        """Average the sums over triplets over anchors, and the sums over quadruplets over pairs."""
        dtype = of_anchor.dtype
        positives, negatives = count(pairs.positive, dtype), count(pairs.negative, dtype)
        triplets = positives * negatives
        first = masked_sum(of_anchor, pairs.positive) / maximum(triplets, 1.0)
        everywhere, _ = gather_candidates(negatives)
        second = masked_sum(of_all, pairs.positive)
        return mean_over_anchors(first, triplets > 0) + mean_over_pairs(
            second, positives * ops.sum(everywhere)
        )
