"""The supervised contrastive loss."""

from typing import Unpack

from keras_dml._common.checks import check_positive
from keras_dml._common.types import Parts
from keras_dml._pairwise.arithmetic import count, log_sum_exp, masked_sum, maximum
from keras_dml._pairwise.pairs import Pairs, mean_over_anchors
from keras_dml.losses.pair_loss import PairLoss, PairOptions
from keras_dml.losses.registry import register


@register("supcon")
class SupConLoss(PairLoss):
    """Supervised contrastive loss (SupCon): each positive by its share of all other images.

    On cosine similarities `S_ij`, with the sum over positives outside the logarithm (L_out):

    - tightness `T_i = −mean_{j∈P_i} S_ij / τ`
    - contrastive `C_i = log Σ_{j≠i} exp(S_ij / τ)`

    The mean leaves out anchors without positives: their value is 0, and the other values are
    multiplied by n / n_kept, counted over the global batch. (The authors' code counts them as 0,
    and multiplies the value by τ / 0.07.) The loss of a batch with one class and at least three
    images is not 0.

    Examples:
        >>> labels = np.array([0, 0, 1, 1])
        >>> z = np.array([[3, 4, 0], [4, 0, 3], [0, 3, 4], [0, 5, 0]], "float32") / 5
        >>> loss = SupConLoss(temperature=0.5)
        >>> round(float(loss(labels, z)), 3)
        1.05

    Args:
        temperature: τ, above 0.
        reduction, name, dtype, mining, relation: As in `PairLoss`.

    Raises:
        ValueError: `temperature` is not above 0, or shapes are wrong.

    Reference: Khosla et al., "Supervised Contrastive Learning", NeurIPS 2020, Eq. 2.
    """

    def __init__(self, temperature: float = 0.1, **options: Unpack[PairOptions]) -> None:
        super().__init__(**options)
        self.temperature = check_positive("temperature", temperature)

    def compute_pair_parts(self, pairs: Pairs) -> Parts:
        """Compute the two parts `[n]`."""
        logits = pairs.similarities() / self.temperature
        number = maximum(count(pairs.positive, logits.dtype), 1.0)
        tightness = -masked_sum(logits, pairs.positive) / number
        contrastive = log_sum_exp(logits, pairs.others())
        kept = pairs.have_positives()
        return mean_over_anchors(tightness, kept), mean_over_anchors(contrastive, kept)
