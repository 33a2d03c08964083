"""The quadruplet loss."""

import keras
from keras import ops

from keras_dml.checks import check_positive
from keras_dml.distribute import gather_candidates
from keras_dml.hinges import hinge_sums_against_all
from keras_dml.losses.base import PairLoss
from keras_dml.losses.registry import register
from keras_dml.losses.triplet import triplet_parts
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

    Example:
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

    def compute_pair_parts(self, pairs: Pairs) -> Parts:
        """The two parts `[n]`."""
        distances = safe_sqrt(pairs.squared_distances())
        tightness, contrastive = triplet_parts(pairs, distances, self.margin)
        # A distance is never below 0: -1 marks what is no negative pair on its way from a replica.
        negatives, _ = gather_candidates(ops.where(pairs.negative, distances, -1.0))
        negatives = _each_pair_once(negatives, -1.0)
        is_negative = negatives >= 0.0
        sums = hinge_sums_against_all(
            distances, pairs.positive, negatives, is_negative, self.second_margin
        )
        positives = count(pairs.positive, distances.dtype)
        number = ops.maximum(ops.sum(count(is_negative, distances.dtype)), 1.0)
        second = [mean_over_pairs(part / number, positives) for part in sums]
        return tightness + second[0], contrastive + second[1]

    def get_config(self) -> Config:
        """The constructor's arguments."""
        return {
            **super().get_config(),
            "margin": self.margin,
            "second_margin": self.second_margin,
            "normalize": self.normalize,
        }


def _each_pair_once(matrix: Tensor, filler: float) -> Tensor:
    """Half of a symmetric `[c, c]` without its diagonal, each pair once: `[c, c // 2]`.

    Row i has columns i + 1 … i + c//2, counted round the end. They lie one step further right in
    each row, so in rows that are one longer they lie below each other: no index is looked up. With
    an even c the last column has its pairs twice, and `filler` in the second half of the rows.
    """
    size = ops.shape(matrix)[0]
    half = size // 2
    around = ops.concatenate([matrix, matrix[:, :half]], axis=1)
    flat = ops.reshape(around, (-1,))[1:]
    rest = ops.zeros((size + 1,), matrix.dtype)[: 2 * size]  # nothing of nothing
    longer = ops.concatenate([flat, rest])
    skewed = ops.reshape(longer, (size, size + half + 1))[:, :half]
    rows, columns = (
        ops.arange(size, dtype="int32")[:, None],
        ops.arange(half, dtype="int32")[None, :],
    )
    again = ops.logical_and(rows >= half, 2 * (columns + 1) == size)
    return ops.where(again, filler, skewed)
