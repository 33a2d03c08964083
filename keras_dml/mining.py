"""Mining: selection of the pairs of a batch that a loss sees.

A strategy selects positives and negatives of each anchor by their similarity. Losses over pairs
take a strategy as `mining=`, or a list of strategies, which are applied in order. For example,
`[EasyPositive(), SemiHard()]` selects easy positives and then their semi-hard negatives. The loss
ignores dropped pairs completely: means over anchors or pairs count only the remaining pairs.

A user-defined function is a strategy too. Its arguments are the similarities and the bool masks of
the positives and of the negatives, each `[a, c]` (anchors by candidates). It returns the two masks
to keep. It cannot add positives or negatives. Similarities are cosines, or `1 − D²/2` for a loss on
unnormalized embeddings, which is equal for unit vectors. They are constants for the gradient. Each
anchor has a row. On several devices, a strategy sees only the rows of its anchors, and returns the
same result as on one device.
"""

import keras
from keras import ops

from keras_dml._backend.configured import ConfiguredValue
from keras_dml._backend.replicas import place_among_replicas
from keras_dml._common.checks import check_number, check_seed
from keras_dml._common.types import Tensor
from keras_dml._pairwise.arithmetic import count, masked_max, masked_min, maximum
from keras_dml._pairwise.masks import Masks
from keras_dml._pairwise.negatives import (
    FARTHEST,
    NEAREST,
    check_distances,
    distance_weighted,
    fixed_noise,
)
from keras_dml._pairwise.pairs import MiningLike, Pairs, Strategy
from keras_dml._pairwise.search import next_larger

__all__ = [
    "STRATEGIES",
    "DistanceWeighted",
    "EasyPositive",
    "Hard",
    "Mining",
    "MiningLike",
    "MultiSimilarity",
    "SemiHard",
    "Strategy",
]

INFINITY = float("inf")


class Mining(ConfiguredValue):
    """A strategy that selects the pairs that a loss sees. Subclasses override `masks`.

    Examples:
        >>> class Near(Mining):
        ...     def masks(self, similarities, pairs):
        ...         return pairs.positive, pairs.negative & (similarities > 0.5)
    """

    def masks(self, similarities: Tensor, pairs: Pairs) -> Masks:
        """Return the masks of the positives and the negatives to keep.

        Args:
            similarities: `[a, c]`, without a gradient.
            pairs: Pairs with the masks `positive` and `negative`, bool `[a, c]`.
        """
        raise NotImplementedError


@keras.saving.register_keras_serializable("keras_dml")
class Hard(Mining):
    """The least similar positive and the most similar negative of each anchor, with all ties.

    Examples:
        >>> loss = keras_dml.losses.ContrastiveLoss(normalize=True, mining=Hard())
        >>> round(float(loss(np.array([0, 0, 1, 1]), np.eye(4, dtype="float32"))), 3)
        2.0

    Reference: Hermans et al., "In Defense of the Triplet Loss for Person Re-Identification",
    arXiv:1703.07737, Eq. 5.
    """

    def masks(self, similarities: Tensor, pairs: Pairs) -> Masks:
        """Return the masks of the hardest pairs."""
        positive, negative = pairs.positive, pairs.negative
        return (
            ops.logical_and(positive, similarities <= masked_min(similarities, positive)),
            ops.logical_and(negative, similarities >= masked_max(similarities, negative)),
        )


@keras.saving.register_keras_serializable("keras_dml")
class SemiHard(Mining):
    """Every positive, and the semi-hard negative of each positive.

    The semi-hard negative is the most similar negative that is strictly less similar than the
    positive or, without such a negative, the least similar negative. All ties are kept. An anchor
    without positives has no negatives. (These are the pairs in the triplets of
    `keras_dml.losses.TripletLoss(triplets="semihard")`. Only a loss over triplets can pair each
    positive with only its semi-hard negative.)

    Examples:
        >>> loss = keras_dml.losses.ContrastiveLoss(normalize=True, mining=SemiHard())
        >>> round(float(loss(np.array([0, 0, 1, 1]), np.eye(4, dtype="float32"))), 3)
        2.0

    Reference: Schroff et al., "FaceNet", CVPR 2015, 3.2. The fallback is from tensorflow-addons.
    """

    def masks(self, similarities: Tensor, pairs: Pairs) -> Masks:
        """Return the masks of all positives and of the semi-hard negatives."""
        positive, negative = pairs.positive, pairs.negative
        # A negative is semi-hard if the next more similar pair is a positive.
        next_positive = next_larger(similarities, similarities, positive)
        next_negative = next_larger(similarities, similarities, negative)
        semi_hard = ops.logical_and(next_positive <= next_negative, next_positive < INFINITY)
        least = masked_min(similarities, negative)
        fallback = ops.logical_and(
            similarities <= least, masked_min(similarities, positive) <= least
        )
        return positive, ops.logical_and(negative, ops.logical_or(semi_hard, fallback))


@keras.saving.register_keras_serializable("keras_dml")
class EasyPositive(Mining):
    """The most similar positive of each anchor, with all ties, and every negative.

    Classes then do not have to collapse to a point. `Hard()` after it selects the hardest
    negatives, and `SemiHard()` after it selects the semi-hard negatives of the easy positive.

    Examples:
        >>> loss = keras_dml.losses.ContrastiveLoss(normalize=True, mining=EasyPositive())
        >>> round(float(loss(np.array([0, 0, 1, 1]), np.eye(4, dtype="float32"))), 3)
        2.0

    Reference: Xuan et al., "Improved Embeddings with Easy Positive Triplet Mining", WACV 2020.
    """

    def masks(self, similarities: Tensor, pairs: Pairs) -> Masks:
        """Return the masks of the easy positives and of all negatives."""
        positive = pairs.positive
        easy = ops.logical_and(positive, similarities >= masked_max(similarities, positive))
        return easy, pairs.negative


@keras.saving.register_keras_serializable("keras_dml")
class MultiSimilarity(Mining):
    """The informative pairs, by the margin ε of the multi-similarity loss.

    A positive is kept if it is less similar than the most similar negative plus ε. A negative is
    kept if it is more similar than the least similar positive minus ε.

    Examples:
        >>> loss = keras_dml.losses.ContrastiveLoss(normalize=True, mining=MultiSimilarity())
        >>> round(float(loss(np.array([0, 0, 1, 1]), np.eye(4, dtype="float32"))), 3)
        2.0

    Args:
        epsilon: ε, at least 0.

    Raises:
        ValueError: `epsilon` is below 0.

    Reference: Wang et al., "Multi-Similarity Loss With General Pair Weighting for Deep Metric
    Learning", CVPR 2019, Eq. 11-12.
    """

    def __init__(self, epsilon: float = 0.1) -> None:
        self.epsilon = check_number("epsilon", epsilon, least=0)

    def masks(self, similarities: Tensor, pairs: Pairs) -> Masks:
        """Return the masks of the informative pairs."""
        return pairs.informative(similarities, self.epsilon)


@keras.saving.register_keras_serializable("keras_dml")
class DistanceWeighted(Mining):
    """Every positive, and about as many negatives, spread over all distances.

    Negative j of an anchor with |P| positives is kept with the probability `min(1, |P| w_j)`, where
    w_j ∝ 1/q(d) is its weight under distance-weighted sampling, with q the density of distances of
    uniform points on the sphere. An anchor without positives has no negatives. The random number is
    a pure function of the seed and of the two slots in the
    batch. It is the same in every step and on any number of devices, but the images in the slots
    change from step to step. For unit embeddings.

    Examples:
        >>> loss = keras_dml.losses.ContrastiveLoss(normalize=True, mining=DistanceWeighted())
        >>> round(float(loss(np.array([0, 0, 1, 1]), np.eye(4, dtype="float32"))), 3)
        2.0

    Args:
        seed: A whole number from 0 to 2³¹ − 1. XLA and other backends draw different numbers.
        nearest: Distances below this are treated as equal to it, in (0, farthest).
        farthest: Distance from which a negative is excluded, below 2.

    Raises:
        ValueError: `seed` is out of range, or not 0 < nearest < farthest < 2.

    Reference: Wu et al., "Sampling Matters in Deep Embedding Learning", ICCV 2017, Eq. 2-4.
    """

    def __init__(
        self, seed: int = 0, *, nearest: float = NEAREST, farthest: float = FARTHEST
    ) -> None:
        self.seed = check_seed("seed", seed)
        self.nearest, self.farthest = check_distances(nearest, farthest)

    def masks(self, similarities: Tensor, pairs: Pairs) -> Masks:
        """Return the masks of all positives and of the sampled negatives."""
        distances = ops.sqrt(maximum(2.0 - 2.0 * similarities, 0.0))
        dimensions = ops.shape(pairs.anchors)[-1]
        weights = distance_weighted(
            distances, pairs.negative, dimensions, self.nearest, self.farthest
        )
        wanted = weights * count(pairs.positive, weights.dtype)[:, None]
        anchors, candidates = ops.shape(similarities)
        replica, replicas = place_among_replicas()
        noise = fixed_noise((replicas * anchors, candidates), self.seed)
        noise = ops.slice(noise, (replica * anchors, 0), (anchors, candidates))
        return pairs.positive, ops.logical_and(
            pairs.negative, ops.cast(noise, wanted.dtype) < wanted
        )


STRATEGIES: dict[str, type[Mining]] = {
    "hard": Hard,
    "semi_hard": SemiHard,
    "easy_positive": EasyPositive,
    "multi_similarity": MultiSimilarity,
    "distance_weighted": DistanceWeighted,
}
"""The strategies by their command-line names."""
