"""The ranked list loss."""

from typing import Unpack

from keras import ops

from keras_dml._common.checks import check_distance, check_number, check_positive
from keras_dml._common.types import Parts
from keras_dml._pairwise.arithmetic import count, masked_sum, maximum
from keras_dml._pairwise.pairs import Pairs
from keras_dml.losses.pair_loss import PairLoss, PairOptions
from keras_dml.losses.registry import register


@register("ranked_list")
class RankedListLoss(PairLoss):
    """Ranked list loss: positives within α − m, negatives beyond α, the nearest negatives first.

    With distances `D_ij` of unit vectors, the positives beyond α − m, the negatives within α, and
    the weights `w_ik = exp(τ (α − D_ik))`, which are constants for the gradient:

    - tightness `T_i = (1 − λ) mean_j (D_ij − (α − m))` over the positives with `D_ij > α − m`
    - contrastive `C_i = λ Σ_k w_ik (α − D_ik) / Σ_k w_ik` over the negatives with `D_ik < α`

    A part without such pairs is 0. The weights are constants for the gradient (`stop_gradient`),
    and so for second derivatives.

    Examples:
        >>> labels = np.array([0, 0, 1, 1])
        >>> z = np.array([[3, 4, 0], [4, 0, 3], [0, 3, 4], [0, 5, 0]], "float32") / 5
        >>> loss = RankedListLoss(negative_margin=1.2, margin=0.4)
        >>> round(float(loss(labels, z)), 3)
        0.265

    Args:
        negative_margin: α, the smallest distance of negatives, between 0 and 2.
        margin: m, above 0. Positives are pulled within α − m.
        temperature: τ, at least 0. The paper uses 10 on all of its datasets. 0 weights negatives
            equally.
        balance: λ, from 0 to 1, the weight of the negatives. The positives have 1 − λ.
        reduction, name, dtype, mining, relation: As in `PairLoss`.

    Raises:
        ValueError: An argument is out of range, or shapes are wrong.

    Reference: Wang et al., "Ranked List Loss for Deep Metric Learning", CVPR 2019, Eq. 3 to 10.
    """

    def __init__(
        self,
        negative_margin: float = 1.2,
        *,
        margin: float = 0.4,
        temperature: float = 10.0,
        balance: float = 0.5,
        **options: Unpack[PairOptions],
    ) -> None:
        super().__init__(**options)
        self.negative_margin = check_distance("negative_margin", negative_margin)
        self.margin = check_positive("margin", margin)
        self.temperature = check_number("temperature", temperature, least=0)
        self.balance = check_number("balance", balance, least=0, most=1)

    def compute_pair_parts(self, pairs: Pairs) -> Parts:
        """Compute the two parts `[n]`."""
        distances = pairs.distances()
        within = self.negative_margin - distances
        beyond = self.margin - within
        far = ops.logical_and(pairs.positive, beyond > 0)
        near = ops.logical_and(pairs.negative, within > 0)
        # At most 1: an overflow would give NaN.
        closest = ops.max(ops.where(near, within, 0.0), axis=-1, keepdims=True)
        exponents = self.temperature * (ops.where(near, within, 0.0) - closest)
        weights = ops.stop_gradient(ops.where(near, ops.exp(exponents), 0.0))
        pull = masked_sum(beyond, far) / maximum(count(far, beyond.dtype), 1.0)
        # The largest weight is 1, so the bound is for anchors without near negatives.
        push = masked_sum(weights * within, near) / maximum(ops.sum(weights, axis=-1), 1.0)
        return (1.0 - self.balance) * pull, self.balance * push
