"""The circle loss."""

from collections.abc import Sequence

import keras
from keras import ops

from keras_dml.bounds import at_least
from keras_dml.checks import check_positive
from keras_dml.gradients import WithGradient, with_gradient
from keras_dml.losses.base import PairLoss
from keras_dml.losses.registry import register
from keras_dml.mining import Strategy
from keras_dml.pairs import (
    Pairs,
    are_bounded,
    kept_weights,
    log_add_exp,
    log_or_zero,
    log_sum_exp,
    masked_exp,
)
from keras_dml.positives import Positives, at_columns, of_partners, spread
from keras_dml.types import Config, Parts, Tensor


@register("circle")
@keras.saving.register_keras_serializable("keras_dml")
class CircleLoss(PairLoss):
    """Circle loss: each similarity weighs by how far it is from where it should be.

    On cosine similarities `S_ij`, with the weights `a⁺_ij = max(0, 1 + m − S_ij)` and
    `a⁻_ij = max(0, S_ij + m)`, which are constants for the gradient,
    `A_i = log Σ_{j∈P_i} exp(−γ a⁺_ij (S_ij − 1 + m))` and
    `B_i = log Σ_{j∈N_i} exp(γ a⁻_ij (S_ij − m))`, the loss is `log(1 + exp(A_i + B_i))`:

    - tightness `T_i = A_i`
    - contrastive `C_i = log(exp(−A_i) + exp(B_i))`

    Anchors without positives or without negatives are left out of the mean: their value is 0 and
    the others' are multiplied by n / n_kept, counted over the global batch.

    Examples:
        >>> labels = np.array([0, 0, 1, 1])
        >>> z = np.array([[3, 4, 0], [4, 0, 3], [0, 3, 4], [0, 5, 0]], "float32") / 5
        >>> loss = CircleLoss(margin=0.25, scale=64)
        >>> round(float(loss(labels, z)), 3)
        33.799

    Args:
        margin: m, above 0: positives are wanted above 1 − m, negatives below m.
        scale: γ, above 0. The paper takes 80 and m = 0.4 for fine-grained retrieval, 128 (persons)
            and 256 (faces) with m = 0.25.
        reduction, name, dtype, mining: as in `PairLoss`.

    Raises:
        ValueError: `margin` or `scale` not above 0, or wrong shapes.

    Reference: Sun et al., "Circle Loss: A Unified Perspective of Pair Similarity Optimization",
    CVPR 2020, Eq. 5 to 8.
    """

    def __init__(
        self,
        margin: float = 0.4,
        scale: float = 80.0,
        reduction: str | None = "sum_over_batch_size",
        name: str | None = "circle",
        dtype: str | None = None,
        mining: Strategy | Sequence[Strategy] | None = None,
    ) -> None:
        super().__init__(reduction=reduction, name=name, dtype=dtype, mining=mining)
        self.margin = check_positive("margin", margin)
        self.scale = check_positive("scale", scale)

    @property
    def similarity_scale(self) -> float:
        """The scale of its similarities."""
        return self.scale**0.5

    def compute_pair_parts(self, pairs: Pairs) -> Parts:
        """The two parts `[n]`."""
        pulling, pushing, weights = self._weighed(pairs)
        return weights * pulling, weights * log_add_exp(-pulling, pushing)

    def compute_pair_loss(self, pairs: Pairs) -> Tensor:
        """The loss `[n]` without the cancellation of its parts."""
        pulling, pushing, weights = self._weighed(pairs)
        return weights * ops.softplus(pulling + pushing)

    def _weighed(self, pairs: Pairs) -> tuple[Tensor, Tensor, Tensor]:
        """A and B of each anchor, and the weights of the mean, each `[n]`."""
        root = self.similarity_scale
        mirrored = pairs.complete and are_bounded(0.5 * self.scale)
        similarities = pairs.similarities_to_sum(root) if mirrored else pairs.similarities(root)
        exponents = self._pushing_exponents(similarities)
        if mirrored:
            pushing = log_or_zero(pairs.sums(masked_exp(exponents, pairs.negative)))
        else:
            pushing = log_sum_exp(exponents, pairs.negative)
        some, centre = pairs.have_negatives(), self.scale * (0.5 - self.margin**2)
        pushing = ops.where(some, pushing + centre, 0.0)
        positives = pairs.positives()
        both = ops.logical_and(positives.number > 0, some)
        pulling = self._pulling(similarities, positives, mirrored)
        return pulling, pushing, kept_weights(both, similarities.dtype)

    def _pushing_exponents(self, similarities: Tensor) -> Tensor:
        """`γ a⁻ (S − m) − γ (1/2 − m²)` of √γ S, at most γ/2 from 0.

        Since `a⁻ (S − m) = max(S, −m)² − m²`, that is `γ max(S, −m)² − γ/2`; the gradient, in which
        a⁻ is a constant, is not that of this square.
        """
        lowest = -self.margin * self.similarity_scale

        @with_gradient
        def exponents(similarities: Tensor) -> WithGradient:
            clipped = at_least(similarities, lowest)
            values = ops.square(clipped) - 0.5 * self.scale
            return values, lambda upstream: upstream * (clipped - lowest)

        return exponents(similarities)

    def _pulling(self, similarities: Tensor, positives: Positives, mirrored: bool) -> Tensor:
        """A `[n]` of √γ S, looking at nothing but the positives where no anchor has many.

        `mirrored`: with a gradient for `Pairs.similarities_to_sum`.
        """
        root = self.similarity_scale

        @with_gradient
        def pulling(similarities: Tensor) -> WithGradient:
            def weights_and_exponents(columns: Tensor | None) -> tuple[Tensor, Tensor]:
                near = at_columns(columns, similarities)
                weights = at_least((1.0 + self.margin) * root - near, 0.0)
                return weights, -weights * (near - (1.0 - self.margin) * root)

            def total(columns: Tensor | None, present: Tensor) -> Tensor:
                return log_sum_exp(weights_and_exponents(columns)[1], present)

            totals = positives.by_width(total)

            def gradient(upstream: Tensor) -> Tensor:
                def of_width(columns: Tensor | None, present: Tensor) -> Tensor:
                    weights, exponents = weights_and_exponents(columns)

                    def pulled(upstream: Tensor, totals: Tensor) -> Tensor:
                        return ops.where(present, upstream * ops.exp(exponents - totals), 0.0)

                    both = pulled(upstream[:, None], totals[:, None])
                    if mirrored:
                        both = both + pulled(
                            of_partners(columns, upstream), of_partners(columns, totals)
                        )
                    return spread(columns, -both * weights, similarities)

                return positives.by_width(of_width)

            return totals, gradient

        return pulling(similarities)

    def get_config(self) -> Config:
        """The constructor's arguments."""
        return {**super().get_config(), "margin": self.margin, "scale": self.scale}
