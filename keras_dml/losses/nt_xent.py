"""The normalized, temperature-scaled cross-entropy of positive pairs."""

from typing import Unpack

from keras import ops

from keras_dml._common.checks import check_positive
from keras_dml._common.types import Parts, Tensor
from keras_dml._pairwise.arithmetic import log_add_exp, log_sum_exp
from keras_dml._pairwise.pairs import Pairs, pair_means
from keras_dml.losses.pair_loss import PairLoss, PairOptions
from keras_dml.losses.registry import register


@register("nt_xent")
class NTXentLoss(PairLoss):
    """NT-Xent: cross-entropy of each positive pair against the anchor's negatives.

    On cosine similarities `S_ij`, with `E_i = log Σ_{k∈N_i} exp(S_ik / τ)`, the mean over the
    positive pairs (i, p) of the global batch of `−S_ip / τ + log(exp(S_ip / τ) + exp(E_i))`:

    - tightness `T_i ∝ Σ_{p∈P_i} −S_ip / τ`
    - contrastive `C_i ∝ Σ_{p∈P_i} log(exp(S_ip / τ) + exp(E_i))`

    with the factor n / (number of positive pairs). It equals ICE without reweighting, with the
    scale 1/τ, averaged over pairs. SimCLR's denominator has all images except the anchor, which is
    the same if each anchor has one positive. Anchors without positives or without negatives have no
    term.

    Examples:
        >>> labels = np.array([0, 0, 1, 1])
        >>> z = np.array([[3, 4, 0], [4, 0, 3], [0, 3, 4], [0, 5, 0]], "float32") / 5
        >>> loss = NTXentLoss(temperature=0.5)
        >>> round(float(loss(labels, z)), 3)
        1.05

    Args:
        temperature: τ, above 0.
        reduction, name, dtype, mining, relation: as in `PairLoss`.

    Raises:
        ValueError: `temperature` not above 0, or wrong shapes.

    Reference: Chen et al., "A Simple Framework for Contrastive Learning of Visual
    Representations", ICML 2020, Eq. 1, with positives by class.
    """

    def __init__(self, temperature: float = 0.07, **options: Unpack[PairOptions]) -> None:
        super().__init__(**options)
        self.temperature = check_positive("temperature", temperature)

    def compute_pair_parts(self, pairs: Pairs) -> Parts:
        """Compute the two parts `[n]`."""
        logits, negatives = self._logits(pairs)
        partition = log_add_exp(negatives, logits)
        return pair_means(-logits, pairs.matched()), pair_means(partition, pairs.matched())

    def compute_pair_loss(self, pairs: Pairs) -> Tensor:
        """Compute the loss `[n]` without the cancellation of its parts."""
        logits, negatives = self._logits(pairs)
        return pair_means(ops.softplus(negatives - logits), pairs.matched())

    def _logits(self, pairs: Pairs) -> tuple[Tensor, Tensor]:
        """Compute `S / τ` `[a, c]` and `E` `[a, 1]`."""
        logits = pairs.similarities() / self.temperature
        return logits, log_sum_exp(logits, pairs.negative)[:, None]
