"""The triplet loss."""

from collections.abc import Sequence
from typing import Literal

import keras
from keras import ops

from keras_dml.bounds import at_least, at_most
from keras_dml.checks import check_choice, check_positive
from keras_dml.hinges import Hinges, all_hinges, hardest_hinges, semihard_hinges
from keras_dml.losses.base import PairLoss
from keras_dml.losses.registry import register
from keras_dml.mining import Strategy
from keras_dml.pairs import Pairs, count, kept_weights, mean_over_pairs, safe_sqrt
from keras_dml.positives import Positives
from keras_dml.types import Config, Parts, Tensor

MININGS = {"all": all_hinges, "semihard": semihard_hinges, "hard": hardest_hinges}


@register("triplet")
@keras.saving.register_keras_serializable("keras_dml")
class TripletLoss(PairLoss):
    """Triplet loss: every positive nearer than every negative, by a margin.

    With `D_ij = ‖f_i − f_j‖`, positives `P_i` and negatives `N_i` of anchor i, the mean over its
    triplets (j ∈ P_i, k ∈ N_i) of `max(0, D_ij − D_ik + η)`. The two parts split the triplets that
    are not yet satisfied, as means over the same triplets:

    - tightness `T_i = mean 1[D_ij − D_ik + η > 0] · D_ij`
    - contrastive `C_i = mean 1[D_ij − D_ik + η > 0] · (η − D_ik)`

    Which triplets there are, `mining` says:

    - `"all"`: every one.
    - `"semihard"`: one for each positive, with the nearest negative strictly farther than the
      positive or, where there is none, the farthest one.
    - `"hard"`: one for each anchor, its farthest positive and its nearest negative.

    An anchor without positives or without negatives has no triplet, value 0 and no gradient, and
    is left out of the mean: the values of the others are multiplied by n / n_kept.

    O(n² log n) time or, with few positives an anchor, O(n²·m); O(n²) memory: `keras_dml.hinges`.

    Examples:
        >>> labels = np.array([0, 0, 1, 1])
        >>> z = np.array([[3, 4, 0], [4, 0, 3], [0, 3, 4], [0, 5, 0]], "float32") / 5
        >>> loss = TripletLoss(margin=0.2, mining="semihard")
        >>> round(float(loss(labels, z)), 3)
        0.069

    Args:
        margin: η, above 0: by how much farther a negative should be than a positive, in units of
            the distance.
        mining: which triplets, `"all"`, `"semihard"` or `"hard"`, as above. Or all triplets of the
            pairs that a strategy of `keras_dml.mining` leaves, as in `PairLoss`.
        normalize: take distances between l2-normalised embeddings.
        average: `"anchors"`, the mean over anchors of each one's mean, or `"triplets"`, the mean
            over all triplets of the global batch.
        reduction, name, dtype: as in `EmbeddingLoss`.

    Raises:
        ValueError: `margin` not above 0, unknown `mining` or `average`, or wrong shapes.

    References: Kemertas et al., "RankMI: A Mutual Information Maximizing Ranking Loss", CVPR 2020,
    Eq. 11; semi-hard: Schroff et al., "FaceNet", CVPR 2015; hard: Hermans et al. 2017, Eq. 5.
    """

    def __init__(
        self,
        margin: float = 0.2,
        mining: Literal["all", "semihard", "hard"] | Strategy | Sequence[Strategy] = "all",
        normalize: bool = True,
        average: Literal["anchors", "triplets"] = "anchors",
        reduction: str | None = "sum_over_batch_size",
        name: str | None = "triplet",
        dtype: str | None = None,
    ) -> None:
        strategies = None if isinstance(mining, str) else mining
        super().__init__(reduction=reduction, name=name, dtype=dtype, mining=strategies)
        triplets = mining if isinstance(mining, str) else "all"
        self.mining = check_choice("mining", triplets, tuple(MININGS))
        self.margin = check_positive("margin", margin)
        self.normalize = bool(normalize)
        self.average = check_choice("average", average, ("anchors", "triplets"))

    def compute_pair_loss(self, pairs: Pairs) -> Tensor:
        """The loss `[n]`, without its parts: the gradient is then one pass over the pairs."""
        distances, hinges, weights = self._hinges(pairs)
        return weights * hinges.sums(distances)

    def compute_pair_parts(self, pairs: Pairs) -> Parts:
        """The two parts `[n]`."""
        distances, hinges, weights = self._hinges(pairs)
        tightness, contrastive = hinges.parts(distances)
        return weights * tightness, weights * contrastive

    def _hinges(self, pairs: Pairs) -> tuple[Tensor, Hinges, Tensor]:
        distances = safe_sqrt(pairs.squared_distances())
        positives = pairs.positives()
        return distances, *triplet_hinges(
            pairs, positives, distances, self.margin, self.mining, self.average
        )

    def get_config(self) -> Config:
        """The constructor's arguments."""
        return {
            "mining": self.mining,
            **super().get_config(),
            "margin": self.margin,
            "normalize": self.normalize,
            "average": self.average,
        }


def triplet_hinges(
    pairs: Pairs,
    positives: Positives,
    distances: Tensor,
    margin: float,
    mining: str = "all",
    average: str = "anchors",
) -> tuple[Hinges, Tensor]:
    """The hinges of `TripletLoss`, and the weights `[n]` of their sums.

    From its pairs, their positives and their distances `[a, c]`.
    """
    hinges = MININGS[mining](distances, positives, pairs.negative, margin)
    triplets = ops.cast(positives.number, distances.dtype)
    negatives = count(pairs.negative, distances.dtype)
    if mining == "hard":
        triplets = at_most(triplets, 1.0)
    triplets = triplets * (negatives if mining == "all" else at_most(negatives, 1.0))
    if average == "triplets":
        return hinges, mean_over_pairs(ops.ones_like(triplets), triplets)
    weights = kept_weights(triplets > 0, distances.dtype) / at_least(triplets, 1.0)
    return hinges, weights
