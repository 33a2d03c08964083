"""The triplet loss."""

from typing import Literal, Unpack

from keras import ops

from keras_dml._common.checks import check_choice, check_positive
from keras_dml._common.types import Parts, Tensor
from keras_dml._pairwise.arithmetic import (
    count,
    masked_max,
    masked_min,
    masked_sum,
    maximum,
    minimum,
)
from keras_dml._pairwise.pairs import Pairs, mean_over_anchors, mean_over_pairs
from keras_dml._pairwise.search import open_hinges, semihard_negatives
from keras_dml.losses.pair_loss import PairLoss, PairOptions
from keras_dml.losses.registry import register

_TRIPLETS = ("all", "semihard", "hard")


@register("triplet")
class TripletLoss(PairLoss):
    """Triplet loss: every positive closer than every negative, by a margin.

    With `D_ij = ‖f_i − f_j‖`, positives `P_i` and negatives `N_i` of anchor i, the mean over its
    triplets `(j ∈ P_i, k ∈ N_i)` of `max(0, D_ij − D_ik + η)`. The two parts split the triplets
    that are not yet satisfied, as means over the same triplets:

    - tightness `T_i = mean 1[D_ij − D_ik + η > 0] · D_ij`
    - contrastive `C_i = mean 1[D_ij − D_ik + η > 0] · (η − D_ik)`

    `triplets` selects among the triplets of an anchor:

    - `"all"`: every triplet.
    - `"semihard"`: one for each positive, with the nearest negative that is strictly farther than
      the positive or, if all negatives are closer, with the farthest negative.
    - `"hard"`: one for each anchor, with its farthest positive and its nearest negative.

    For semi-hard negatives, prefer `triplets="semihard"`, the definition of FaceNet: one negative
    for each positive. `mining=keras_dml.mining.SemiHard()` is the form for the other losses over
    pairs. It keeps a set of negatives for each anchor, which all its positives share.

    An anchor without positives or without negatives has no triplet, the value 0, and no gradient.
    The mean leaves it out: the other values are multiplied by n / n_kept.

    Sums over all triplets come from sorted distances, in O(n² log n) time and O(n²) memory.

    Examples:
        >>> labels = np.array([0, 0, 1, 1])
        >>> z = np.array([[3, 4, 0], [4, 0, 3], [0, 3, 4], [0, 5, 0]], "float32") / 5
        >>> loss = TripletLoss(margin=0.2, triplets="semihard")
        >>> round(float(loss(labels, z)), 3)
        0.069

    Args:
        margin: η, above 0, the smallest difference between the distances of a negative and of a
            positive.
        triplets: `"all"`, `"semihard"`, or `"hard"`, as above.
        normalize: Whether distances are between l2-normalized embeddings.
        average: `"anchors"`, the mean over anchors of their means, or `"triplets"`, the mean over
            all triplets of the global batch.
        reduction, name, dtype, mining, relation: As in `PairLoss`. The triplets consist of
            the pairs that `mining` keeps.

    Raises:
        ValueError: `margin` is not above 0, `triplets` or `average` is unknown, or shapes are
            wrong.

    References: Kemertas et al., "RankMI: A Mutual Information Maximizing Ranking Loss", CVPR 2020,
    Eq. 11; semi-hard: Schroff et al., "FaceNet", CVPR 2015; hard: Hermans et al. 2017, Eq. 5.
    """

    def __init__(
        self,
        margin: float = 0.2,
        *,
        triplets: Literal["all", "semihard", "hard"] = "all",
        normalize: bool = True,
        average: Literal["anchors", "triplets"] = "anchors",
        **options: Unpack[PairOptions],
    ) -> None:
        super().__init__(**options)
        self.triplets = check_choice("triplets", triplets, _TRIPLETS)
        self.margin = check_positive("margin", margin)
        self.normalize = bool(normalize)
        self.average = check_choice("average", average, ("anchors", "triplets"))

    def compute_pair_loss(self, pairs: Pairs) -> Tensor:
        """Compute the loss `[n]`, which rounding does not make negative."""
        near, far, positive, triplets = self._open_hinges(pairs)
        return self._mean(maximum(near + far, 0.0), positive, triplets)

    def compute_pair_parts(self, pairs: Pairs) -> Parts:
        """Compute the two parts `[n]`."""
        near, far, positive, triplets = self._open_hinges(pairs)
        return self._mean(near, positive, triplets), self._mean(far, positive, triplets)

    def _open_hinges(self, pairs: Pairs) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Add the open hinges of each positive pair.

        Returns:
            The sums of `D_ij` and of `η − D_ik` over the open hinges, and which pairs have them,
            each `[a, c]` (`[a, 1]` for hard triplets); the number of triplets of each anchor,
            `[a]`.
        """
        distances, positive, negative = pairs.distances(), pairs.matched(), pairs.negative
        triplets = count(positive, distances.dtype)
        if self.triplets == "all":
            near, far = open_hinges(distances, self.margin, distances, negative)
            return near, far, positive, triplets * count(negative, distances.dtype)
        if self.triplets == "semihard":
            near, partner = distances, semihard_negatives(distances, negative)
        else:
            near, partner = masked_max(distances, positive), masked_min(distances, negative)
            positive = triplets[:, None] > 0
            triplets = minimum(triplets, 1.0)
        is_open = ops.logical_and(positive, near + self.margin >= partner)
        near = ops.where(is_open, near, 0.0)
        return near, ops.where(is_open, self.margin - partner, 0.0), positive, triplets

    def _mean(self, values: Tensor, positive: Tensor, triplets: Tensor) -> Tensor:
        """Average sums over triplets `[a, c]` over anchors or over triplets, `[n]`."""
        total = masked_sum(values, positive)
        if self.average == "triplets":
            return mean_over_pairs(total, triplets)
        return mean_over_anchors(total / maximum(triplets, 1.0), triplets > 0)
