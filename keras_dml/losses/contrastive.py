"""The contrastive loss."""

from collections.abc import Sequence
from typing import Literal

import keras
from keras import ops

from keras_dml.checks import check_choice, check_positive
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

    - tightness `T_i = Σ_{j∈P_i} D_ij²`
    - contrastive `C_i = Σ_{j∈N_i} max(0, m − D_ij)²`

    A negative that coincides with its anchor counts m² and has a zero gradient. An anchor without
    positives has T_i = 0, without negatives C_i = 0.

    Args:
        margin: m, above 0: the distance that negatives should have.
        normalize: take distances between l2-normalised embeddings.
        pair_reduction: `"sum"` over j as in the paper, or `"mean"`: each part divided by the number
            of its pairs, so that its size does not grow with the batch.
        reduction, name, dtype, mining: as in `PairLoss`.

    Raises:
        ValueError: `margin` not above 0, unknown `pair_reduction`, or wrong shapes.

    Reference: Boudiaf et al. 2020, Eq. 2, after Hadsell et al. 2006.
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
    ) -> None:
        super().__init__(reduction=reduction, name=name, dtype=dtype, mining=mining)
        self.margin = check_positive("margin", margin)
        self.normalize = bool(normalize)
        self.pair_reduction = check_choice("pair_reduction", pair_reduction, ("sum", "mean"))

    def compute_pair_parts(self, pairs: Pairs) -> Parts:
        """The two parts `[n]`."""
        squared = pairs.squared_distances()
        tightness, contrastive = self._sums(squared, pairs)
        if self.pair_reduction == "mean":
            tightness /= ops.maximum(count(pairs.positive, squared.dtype), 1.0)
            contrastive /= ops.maximum(count(pairs.negative, squared.dtype), 1.0)
        return tightness, contrastive

    def _sums(self, squared: Tensor, pairs: Pairs) -> Parts:
        """The sums `[n]` of D² over positives and of the squared hinges over negatives.

        As one function of D², whose slope is 1 or `−(m − D) / D`: one matrix goes back, not two.
        """

        @with_gradient
        def sums(squared: Tensor) -> WithGradient:
            distances = ops.sqrt(squared)
            missing = ops.where(pairs.negative, ops.relu(self.margin - distances), 0.0)
            near = ops.sum(ops.where(pairs.positive, squared, 0.0), axis=-1)
            far = ops.sum(ops.square(missing), axis=-1)

            def gradient(upstream: Tensor) -> Tensor:
                pull, push = ops.unstack(upstream, 2)
                pushed = -push[:, None] * ops.divide_no_nan(missing, distances)
                return ops.where(pairs.positive, pull[:, None], pushed)

            return ops.stack([near, far]), gradient

        return tuple(ops.unstack(sums(squared), 2))

    def get_config(self) -> Config:
        """The constructor's arguments."""
        return {
            **super().get_config(),
            "margin": self.margin,
            "normalize": self.normalize,
            "pair_reduction": self.pair_reduction,
        }
