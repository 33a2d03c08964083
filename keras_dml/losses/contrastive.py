"""The contrastive loss."""

from collections.abc import Callable, Sequence
from typing import Literal

import keras
from keras import ops

from keras_dml.bounds import at_least
from keras_dml.checks import check_choice, check_number, check_positive, check_whole
from keras_dml.gradients import WithGradient, with_gradient
from keras_dml.losses.base import PairLoss
from keras_dml.losses.registry import register
from keras_dml.mining import Strategy
from keras_dml.pairs import Pairs, count
from keras_dml.types import Config, Parts, Tensor


@register("contrastive")
@keras.saving.register_keras_serializable("keras_dml")
class ContrastiveLoss(PairLoss):
    """Contrastive loss: positives together, negatives at least a margin apart.

    With `D_ij = ‖z_i − z_j‖`, positives `P_i` and negatives `N_i` of anchor i:

    - tightness `T_i = Σ_{j∈P_i} max(0, D_ij − m₊)^p`, with m₊ = 0 and p = 2 `Σ_{j∈P_i} D_ij²`
    - contrastive `C_i = Σ_{j∈N_i} max(0, m − D_ij)^p`

    A negative that coincides with its anchor counts m^p and has a zero gradient. An anchor without
    positives has T_i = 0, without negatives C_i = 0.

    Examples:
        >>> labels = np.array([0, 0, 1, 1])
        >>> z = np.array([[3, 4, 0], [4, 0, 3], [0, 3, 4], [0, 5, 0]], "float32") / 5
        >>> loss = ContrastiveLoss(margin=1.0, normalize=True)
        >>> round(float(loss(labels, z)), 3)
        0.988

    Args:
        margin: m, above 0: the distance that negatives should have.
        normalize: take distances between l2-normalised embeddings.
        pair_reduction: `"sum"` over j as in the paper, or `"mean"`: each part divided by the number
            of its pairs, so that its size does not grow with the batch.
        positive_margin: m₊, the distance up to which positives cost nothing. Below 0 they cost
            something at every distance, 0 too.
        power: p, what a hinge is raised to, a whole number from 1. With 1 a pair pulls or pushes
            as hard at every distance.
        reduction, name, dtype, mining: as in `PairLoss`.

    Raises:
        ValueError: `margin` not above 0, `positive_margin` not finite, unknown `pair_reduction`,
            `power` below 1, or wrong shapes.

    Reference: Boudiaf et al. 2020, Eq. 2, after Hadsell et al. 2006; with two margins and p = 1
    Musgrave et al. 2020, "A Metric Learning Reality Check".
    """

    def __init__(
        self,
        margin: float = 1.0,
        normalize: bool = False,
        pair_reduction: Literal["sum", "mean"] = "sum",
        reduction: str | None = "sum_over_batch_size",
        name: str | None = "contrastive",
        dtype: str | None = None,
        mining: Strategy | Sequence[Strategy] | None = None,
        positive_margin: float = 0.0,
        power: int = 2,
    ) -> None:
        super().__init__(reduction=reduction, name=name, dtype=dtype, mining=mining)
        self.margin = check_positive("margin", margin)
        self.normalize = bool(normalize)
        self.pair_reduction = check_choice("pair_reduction", pair_reduction, ("sum", "mean"))
        self.positive_margin = check_number("positive_margin", positive_margin)
        self.power = check_whole("power", power, least=1)

    def compute_pair_loss(self, pairs: Pairs) -> Tensor:
        """The loss `[n]`: of sums, both kinds of pairs in one, which takes fewer passes."""
        if self.pair_reduction == "mean":
            return super().compute_pair_loss(pairs)

        @with_gradient
        def sums(squared: Tensor) -> WithGradient:
            near, far, slopes = self._costs(squared, pairs)

            def gradient(upstream: Tensor) -> Tensor:
                pull, push = slopes()
                return pairs.of_sums(-upstream) * ops.where(pairs.negative, push, -pull)

            return ops.sum(ops.where(pairs.negative, far, near), axis=-1), gradient

        return sums(pairs.squared_distances_to_sum())

    def compute_pair_parts(self, pairs: Pairs) -> Parts:
        """The two parts `[n]`."""

        @with_gradient
        def sums(squared: Tensor) -> WithGradient:
            near, far, slopes = self._costs(squared, pairs)
            far = ops.where(pairs.negative, far, 0.0)
            near = ops.where(pairs.negative, 0.0, near)

            def gradient(upstream: Tensor) -> Tensor:
                of_near, of_far = ops.unstack(upstream, 2)
                pull, push = slopes()
                pulled, pushed = pairs.of_sums(of_near) * pull, pairs.of_sums(-of_far) * push
                return ops.where(pairs.negative, pushed, pulled)

            return ops.stack([ops.sum(near, axis=-1), ops.sum(far, axis=-1)]), gradient

        squared = pairs.squared_distances_to_sum()
        tightness, contrastive = ops.unstack(sums(squared), 2)
        if self.pair_reduction == "mean":
            tightness = tightness / at_least(count(pairs.positive, squared.dtype), 1.0)
            contrastive = contrastive / at_least(count(pairs.negative, squared.dtype), 1.0)
        return tightness, contrastive

    def _costs(
        self, squared: Tensor, pairs: Pairs
    ) -> tuple[Tensor, Tensor, Callable[[], tuple[Tensor | float, Tensor]]]:
        """Hinges raised to p of D², as if of positives and as if of negatives, and their slopes.

        Those of positives are 0 where there is none, but for negatives. A slope is 1 or, of a hinge
        h, `(p / 2) h^(p − 1) / D`: it is D² that is moved, so that one matrix goes back, not two.
        """
        distances = ops.sqrt(squared)
        missing = ops.relu(self.margin - distances)
        to_zero = self.positive_margin == 0.0 and self.power == 2  # D² itself, with the slope 1
        excess = distances if to_zero else ops.relu(distances - self.positive_margin)
        near = squared if to_zero else self._raised(excess)
        # Where pairs are complete, what is neither is an image and itself: at 0, moved by nothing.
        if not (pairs.complete and to_zero):
            near = ops.where(pairs.positive, near, 0.0)

        def slopes() -> tuple[Tensor | float, Tensor]:
            push = ops.divide_no_nan(self._half_slope(missing), distances)
            pull = 1.0 if to_zero else ops.divide_no_nan(self._half_slope(excess), distances)
            if not pairs.complete:
                pull = pull * ops.cast(pairs.positive, squared.dtype)
            return pull, push

        return near, self._raised(missing), slopes

    def _raised(self, hinges: Tensor) -> Tensor:
        return ops.square(hinges) if self.power == 2 else ops.power(hinges, self.power)

    def _half_slope(self, hinges: Tensor) -> Tensor:
        """Half the derivative of `hinges^p`, that at D being twice D times that at D²."""
        if self.power == 2:
            return hinges
        slope = 0.5 * self.power * ops.power(hinges, self.power - 1)
        return ops.where(hinges > 0.0, slope, 0.0)

    def get_config(self) -> Config:
        """The constructor's arguments."""
        return {
            **super().get_config(),
            "margin": self.margin,
            "normalize": self.normalize,
            "pair_reduction": self.pair_reduction,
            "positive_margin": self.positive_margin,
            "power": self.power,
        }
