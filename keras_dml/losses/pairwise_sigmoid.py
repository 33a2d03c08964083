"""The pairwise sigmoid loss."""

from typing import Unpack

from keras import ops

from keras_dml._common.checks import check_number, check_positive
from keras_dml._common.types import Parts
from keras_dml._pairwise.arithmetic import masked_sum
from keras_dml._pairwise.pairs import Pairs
from keras_dml.losses.pair_loss import PairLoss, PairOptions
from keras_dml.losses.registry import register


@register("pairwise_sigmoid")
class PairwiseSigmoidLoss(PairLoss):
    """Pairwise sigmoid loss (SigLIP): a logistic regression of "match" for each pair.

    With cosine similarities `S_ij`, positives `P_i`, and negatives `N_i` of anchor i:

    - tightness `T_i = Σ_{j∈P_i} log(1 + exp(−(s S_ij + b)))`
    - contrastive `C_i = Σ_{j∈N_i} log(1 + exp(s S_ij + b))`

    It is a sum over pairs, so the value of a batch is the sum of its chunks' values. The bias b
    starts training with the prior that most pairs do not match.

    Examples:
        >>> labels = np.array([0, 0, 1, 1])
        >>> z = np.array([[3, 4, 0], [4, 0, 3], [0, 3, 4], [0, 5, 0]], "float32") / 5
        >>> loss = PairwiseSigmoidLoss(scale=10.0, bias=-5.0)
        >>> round(float(loss(labels, z)), 3)
        2.681

    Args:
        scale: s, above 0, the factor of the cosines. `models.DualEncoder(scale=...)` learns another
            factor; then set s to 1.
        bias: b, added to each logit. In the paper it is learned, and starts at −10.
            `models.DualEncoder(bias=-10.0)` learns another one; then set b to 0.
        reduction, name, dtype, mining, relation: As in `PairLoss`.

    Raises:
        ValueError: `scale` is not above 0, `bias` is not finite, or shapes are wrong.

    Reference: Zhai et al., "Sigmoid Loss for Language Image Pre-Training", ICCV 2023, Eq. 1.
    """

    def __init__(
        self, scale: float = 10.0, *, bias: float = -10.0, **options: Unpack[PairOptions]
    ) -> None:
        super().__init__(**options)
        self.scale = check_positive("scale", scale)
        self.bias = check_number("bias", bias)

    def compute_pair_parts(self, pairs: Pairs) -> Parts:
        """Compute the two parts `[n]`."""
        logits = self.scale * pairs.similarities() + self.bias
        tightness = masked_sum(ops.softplus(-logits), pairs.positive)
        contrastive = masked_sum(ops.softplus(logits), pairs.negative)
        return tightness, contrastive
