"""The lifted structure loss."""

import keras
from keras import ops

from keras_dml.bounds import at_least
from keras_dml.checks import check_positive
from keras_dml.distribute import gather_candidates
from keras_dml.gradients import WithGradient, with_gradient
from keras_dml.losses.base import PairLoss
from keras_dml.losses.registry import register
from keras_dml.pairs import (
    Pairs,
    count,
    log_add_exp,
    log_sum_exp,
    masked_sum,
    mean_over_pairs,
    safe_sqrt,
)
from keras_dml.positives import Positives, at_columns, of_partners, spread
from keras_dml.types import Config, Parts, Tensor


@register("lifted_structure")
@keras.saving.register_keras_serializable("keras_dml")
class LiftedStructureLoss(PairLoss):
    """Lifted structure loss: each positive pair against all negatives of both its images.

    With distances `D_ij` and the soft nearest negative `A_i = log Σ_{k∈N_i} exp(m − D_ik)`, an
    ordered positive pair has the hinge `J_ij = max(0, log(exp(A_i) + exp(A_j)) + D_ij)`. The mean
    over anchors is the sum of `J_ij²` over the ordered positive pairs of the global batch, divided
    by twice their number. Where the hinge is open `J_ij` is a sum, so its square splits into

    - tightness `T_i ∝ Σ_{j∈P_i} J_ij D_ij`
    - contrastive `C_i ∝ Σ_{j∈P_i} J_ij log(exp(A_i) + exp(A_j))`

    with the factor n / (2 · number of ordered positive pairs). Positive pairs without any negative
    have the value 0 and no gradient, and count as pairs. `A` needs one number for each image, so
    memory stays of order n².

    Examples:
        >>> labels = np.array([0, 0, 1, 1])
        >>> z = np.array([[3, 4, 0], [4, 0, 3], [0, 3, 4], [0, 5, 0]], "float32") / 5
        >>> loss = LiftedStructureLoss(margin=1.0)
        >>> round(float(loss(labels, z)), 3)
        2.786

    Args:
        margin: m, above 0: the distance that negatives should have.
        normalize: take distances between l2-normalised embeddings.
        reduction, name, dtype: as in `EmbeddingLoss`.

    Raises:
        ValueError: `margin` not above 0, or wrong shapes.

    Reference: Song et al., "Deep Metric Learning via Lifted Structured Feature Embedding", CVPR
    2016, Eq. 4 (the smooth bound); tensorflow-addons 0.23 `lifted_struct_loss`, which does not
    normalise.
    """

    takes_memory = False

    def __init__(
        self,
        margin: float = 1.0,
        normalize: bool = True,
        reduction: str | None = "sum_over_batch_size",
        name: str | None = "lifted_structure",
        dtype: str | None = None,
    ) -> None:
        super().__init__(reduction=reduction, name=name, dtype=dtype)
        self.margin = check_positive("margin", margin)
        self.normalize = bool(normalize)

    def compute_pair_loss(self, pairs: Pairs) -> Tensor:
        """The loss `[n]`, by its positive pairs alone where an anchor has few."""
        distances, nearest, of_partner = self._nearest(pairs)
        positives = pairs.positives()
        has_negative = pairs.have_negatives()
        sums = squared_hinges(distances, positives, has_negative, nearest, of_partner)
        return mean_over_pairs(0.5 * sums, ops.cast(positives.number, distances.dtype))

    def compute_pair_parts(self, pairs: Pairs) -> Parts:
        """The two parts `[n]`."""
        distances, nearest, of_partner = self._nearest(pairs)
        both = log_add_exp(nearest[:, None], of_partner[None, :])
        hinges = at_least(both + distances, 0.0)
        # The two images of a positive pair have the same negatives: none or some for both.
        open_pairs = ops.logical_and(pairs.positive, pairs.have_negatives()[:, None])
        num_pairs = count(pairs.positive, distances.dtype)
        tightness = 0.5 * masked_sum(hinges * distances, open_pairs)
        contrastive = 0.5 * masked_sum(hinges * both, open_pairs)
        return mean_over_pairs(tightness, num_pairs), mean_over_pairs(contrastive, num_pairs)

    def _nearest(self, pairs: Pairs) -> tuple[Tensor, Tensor, Tensor]:
        """The distances `[a, c]`, A of the anchors `[a]`, and of the candidates `[c]`."""
        distances = safe_sqrt(pairs.squared_distances())
        nearest = log_sum_exp(self.margin - distances, pairs.negative)
        # The partner may be on another replica, and only there are all of its negatives summed.
        of_partner, _ = gather_candidates(nearest)
        return distances, nearest, of_partner

    def get_config(self) -> Config:
        """The constructor's arguments."""
        return {**super().get_config(), "margin": self.margin, "normalize": self.normalize}


def squared_hinges(
    distances: Tensor, positives: Positives, kept: Tensor, of_anchor: Tensor, of_candidate: Tensor
) -> Tensor:
    """`Σ_{j∈P_i} max(0, log(exp(A_i) + exp(A_j)) + D_ij)²` `[a]`, 0 for anchors that are not kept.

    Where no anchor has many positives, of these alone, gathered into `[a, k]`.

    Args:
        distances: `[a, c]`.
        positives: of the pairs.
        kept: bool `[a]`.
        of_anchor: A of the anchors `[a]`, and of_candidate: of the candidates `[c]`.
    """

    @with_gradient
    def sums(distances: Tensor, of_anchor: Tensor, of_candidate: Tensor) -> WithGradient:
        anchors = of_anchor[:, None]

        def hinges(columns: Tensor | None, present: Tensor) -> Tensor:
            both = log_add_exp(anchors, of_partners(columns, of_candidate))
            found = at_least(both + at_columns(columns, distances), 0.0)
            return ops.where(ops.logical_and(present, kept[:, None]), found, 0.0)

        def total(columns: Tensor | None, present: Tensor) -> Tensor:
            return ops.sum(ops.square(hinges(columns, present)), axis=-1)

        def gradient(upstream: Tensor) -> tuple[Tensor, Tensor, Tensor]:
            def back(columns: Tensor | None, present: Tensor) -> tuple[Tensor, Tensor, Tensor]:
                steps = 2.0 * upstream[:, None] * hinges(columns, present)
                to_partner = steps * ops.sigmoid(of_partners(columns, of_candidate) - anchors)
                if columns is None:
                    to_candidate = ops.sum(to_partner, axis=0)
                else:
                    to_candidate = ops.scatter(
                        ops.reshape(columns, (-1, 1)),
                        ops.reshape(to_partner, (-1,)),
                        ops.shape(of_candidate),
                    )
                to_anchor = ops.sum(steps - to_partner, axis=-1)
                return spread(columns, steps, distances), to_anchor, to_candidate

            return positives.by_width(back)

        return positives.by_width(total), gradient

    return sums(distances, of_anchor, of_candidate)
