"""The quadruplet loss."""

import keras
from keras import ops

from keras_dml.bounds import at_least
from keras_dml.checks import check_positive
from keras_dml.distribute import gather_candidates
from keras_dml.gradients import WithGradient, with_gradient
from keras_dml.hinges import Hinges, hinge_sums_against_all
from keras_dml.losses.base import PairLoss
from keras_dml.losses.registry import register
from keras_dml.losses.triplet import triplet_hinges
from keras_dml.pairs import Pairs, count, mean_over_pairs, safe_sqrt
from keras_dml.types import Config, Parts, Tensor


@register("quadruplet")
@keras.saving.register_keras_serializable("keras_dml")
class QuadrupletLoss(PairLoss):
    """Quadruplet loss: the triplet loss, and every positive pair nearer than every negative pair.

    With `D_ij = ‖f_i − f_j‖`, the triplet loss over all triplets (`TripletLoss(margin)`) plus the
    mean over the positive pairs (i, j) and *all* negative pairs (k, l) of the global batch of
    `max(0, D_ij − D_kl + γ)`. An anchor's value has its own positive pairs, against all negative
    pairs; pairs are averaged, not anchors, so its share is n/|P| times its sum.

    - tightness: the positive distances of the hinges above 0, in both terms
    - contrastive: margin minus negative distance of the same hinges

    Without positive or without negative pairs the value is 0, with no gradient.

    O(n² log n) time and O(n²) memory (there are n⁴ quadruplets): `keras_dml.hinges`.

    Examples:
        >>> labels = np.array([0, 0, 1, 1])
        >>> z = np.array([[3, 4, 0], [4, 0, 3], [0, 3, 4], [0, 5, 0]], "float32") / 5
        >>> loss = QuadrupletLoss(margin=0.2)
        >>> round(float(loss(labels, z)), 3)
        0.331

    Args:
        margin: η of the triplet term, above 0: by how much farther a negative should be than a
            positive, in units of the distance.
        second_margin: γ, above 0: the same, for negative pairs of any two images.
        normalize: take distances between l2-normalised embeddings.
        reduction, name, dtype: as in `EmbeddingLoss`.

    Raises:
        ValueError: `margin` or `second_margin` not above 0, or wrong shapes.

    Reference: Kemertas et al. 2020, Eq. 12, after Law et al. 2013 and Chen et al. 2017.
    """

    takes_memory = False

    def __init__(
        self,
        margin: float = 0.2,
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
        """The loss `[n]`, without the parts of its triplets."""
        distances, hinges, weights, second = self._terms(pairs)
        return weights * hinges.sums(distances) + second[0] + second[1]

    def compute_pair_parts(self, pairs: Pairs) -> Parts:
        """The two parts `[n]`."""
        distances, hinges, weights, second = self._terms(pairs)
        tightness, contrastive = hinges.parts(distances)
        return weights * tightness + second[0], weights * contrastive + second[1]

    def _terms(self, pairs: Pairs) -> tuple[Tensor, Hinges, Tensor, Parts]:
        """The distances, the hinges of the triplets and their weights, the second term's parts."""
        distances = safe_sqrt(pairs.squared_distances())
        positives = pairs.positives()
        hinges, weights = triplet_hinges(pairs, positives, distances, self.margin)
        # A distance is never below 0: -1 marks what is no negative pair on its way from a replica.
        negatives, _ = gather_candidates(_marked(distances, pairs.negative))
        negatives = _each_pair_once(negatives)
        is_negative = negatives >= 0.0
        sums = hinge_sums_against_all(
            distances, positives, negatives, is_negative, self.second_margin
        )
        number_of_positives = ops.cast(positives.number, distances.dtype)
        number = at_least(ops.sum(count(is_negative, distances.dtype)), 1.0)
        tightness, contrastive = (
            mean_over_pairs(part / number, number_of_positives) for part in sums
        )
        return distances, hinges, weights, (tightness, contrastive)

    def get_config(self) -> Config:
        """The constructor's arguments."""
        return {
            **super().get_config(),
            "margin": self.margin,
            "second_margin": self.second_margin,
            "normalize": self.normalize,
        }


def _marked(distances: Tensor, kept: Tensor) -> Tensor:
    """The distances that are `kept`, -1 for the others, which no gradient comes to."""

    @with_gradient
    def marked(distances: Tensor) -> WithGradient:
        return ops.where(kept, distances, -1.0), lambda upstream: upstream

    return marked(distances)


@with_gradient
def _each_pair_once(matrix: Tensor) -> WithGradient:
    """Half of a symmetric `[c, c]`, each pair once: `[⌈c/2⌉, c − 1]`.

    The images are cut in two halves. Left, from the diagonal on, stand the pairs within the first
    half, and below it those within the second; right the pairs of the two halves. (With an odd c
    the second half has an image less, and fills up with its diagonal.) These are slices, where no
    index is looked up.

    The gradient goes to the entries taken. For distances that is all the same: each moves the
    images of both.
    """
    size = ops.shape(matrix)[0]
    half = (size + 1) // 2
    within_first = matrix[:half, 1:half]
    within_second = matrix[size - half :, half : 2 * half - 1]
    between = matrix[:half, half:]
    width = ops.shape(within_first)[1]
    is_first = ops.arange(width, dtype="int32")[None, :] >= ops.arange(half, dtype="int32")[:, None]
    within = ops.where(is_first, within_first, within_second)
    once = ops.concatenate([within, between], axis=1)

    def gradient(upstream: Tensor) -> Tensor:
        of_within, of_between = upstream[:, :width], upstream[:, width:]
        diagonal = ops.zeros((half, size - ops.shape(once)[1]), upstream.dtype)
        upper = ops.concatenate([diagonal, ops.where(is_first, of_within, 0.0), of_between], axis=1)
        lower = ops.where(is_first, 0.0, of_within)[2 * half - size :]
        lower = ops.pad(lower, ((0, 0), (half, size - half - width)))
        return ops.concatenate([upper, lower], axis=0)

    return once, gradient
