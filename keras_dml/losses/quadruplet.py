"""The quadruplet loss."""

import keras
from keras import ops

from keras_dml._backend.replicas import gather_candidates
from keras_dml._common.checks import check_positive
from keras_dml._common.types import Parts, Tensor
from keras_dml._pairwise.pairs import Pairs
from keras_dml._pairwise.reductions import count, masked_sum, maximum, mean_over_pairs
from keras_dml._pairwise.search import below
from keras_dml.losses.base import PairLoss
from keras_dml.losses.registry import register
from keras_dml.losses.triplet import mean_of_triplets, open_hinges


@register("quadruplet")
@keras.saving.register_keras_serializable("keras_dml")
class QuadrupletLoss(PairLoss):
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

    takes_memory = False

    def __init__(
        self,
        margin: float = 0.2,
        *,
        second_margin: float = 0.1,
        normalize: bool = True,
        reduction: str | None = "sum_over_batch_size",
        name: str | None = "quadruplet",
        dtype: str | None = None,
    ) -> None:
        super().__init__(reduction=reduction, name=name, dtype=dtype)
        self.margin = check_positive("margin", margin)
        self.second_margin = check_positive("second_margin", second_margin)
        self.normalize = bool(normalize)

    def compute_pair_loss(self, pairs: Pairs) -> Tensor:
        """Compute the loss `[n]`, which rounding does not make negative."""
        near, far, positive, triplets = open_hinges(pairs, self.margin)
        first = mean_of_triplets(maximum(near + far, 0.0), positive, triplets)
        near, far, quadruplets = self._second_term(pairs)
        return first + mean_over_pairs(
            masked_sum(ops.relu(near + far), pairs.positive), quadruplets
        )

    def compute_pair_parts(self, pairs: Pairs) -> Parts:
        """Compute the two parts `[n]`."""
        *first, positive, triplets = open_hinges(pairs, self.margin)
        *second, quadruplets = self._second_term(pairs)
        tightness, contrastive = (
            mean_of_triplets(one, positive, triplets)
            + mean_over_pairs(masked_sum(other, pairs.positive), quadruplets)
            for one, other in zip(first, second)
        )
        return tightness, contrastive

    def _second_term(self, pairs: Pairs) -> tuple[Tensor, Tensor, Tensor]:
        """Add the open hinges of each positive pair against the negative pairs of all replicas.

        Returns:
            The sums of `D_ij` and of `γ − D_kl`, each `[a, c]`, and each anchor's number of
            quadruplets `[a]`.
        """
        distances = pairs.distances()
        others, _ = gather_candidates(distances)
        negative, _ = gather_candidates(ops.cast(pairs.negative, distances.dtype))
        others, negative = ops.reshape(others, (1, -1)), ops.reshape(negative, (1, -1)) > 0
        reach = ops.reshape(distances + self.second_margin, (1, -1))
        number, total = (
            ops.reshape(each, ops.shape(distances)) for each in below(reach, others, negative)
        )
        negatives = ops.sum(count(negative, distances.dtype))
        quadruplets = count(pairs.positive, distances.dtype) * negatives
        return number * distances, number * self.second_margin - total, quadruplets
