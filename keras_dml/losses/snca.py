"""The scalable neighborhood component analysis loss."""

from typing import Unpack

from keras_dml._common.checks import check_positive
from keras_dml._common.types import Parts
from keras_dml._pairwise.arithmetic import log_sum_exp
from keras_dml._pairwise.pairs import Pairs, mean_over_anchors
from keras_dml.losses.pair_loss import PairLoss, PairOptions
from keras_dml.losses.registry import register


@register("snca")
class SNCALoss(PairLoss):
    """Scalable neighborhood component analysis on cosine similarities `S_ij`.

    - tightness `T_i = −log Σ_{j∈P_i} exp(S_ij / σ)`
    - contrastive `C_i = log Σ_{k≠i} exp(S_ik / σ)`

    The loss is −log of the probability that a stochastic neighbor of the image, never the image
    itself, has its class. (The paper's table also sums j = i. The proof and the original work do
    not.) The mean leaves out anchors without positives: their value is 0, and the other values are
    multiplied by n / n_kept, counted over the global batch.

    Examples:
        >>> labels = np.array([0, 0, 1, 1])
        >>> z = np.array([[3, 4, 0], [4, 0, 3], [0, 3, 4], [0, 5, 0]], "float32") / 5
        >>> loss = SNCALoss(temperature=0.5)
        >>> round(float(loss(labels, z)), 3)
        1.05

    Args:
        temperature: σ, above 0.
        reduction, name, dtype, mining, relation: As in `PairLoss`.

    Raises:
        ValueError: `temperature` is not above 0, or shapes are wrong.

    Reference: Boudiaf et al. 2020, Table 2 and proof of Lemma 1, after Wu et al., "Improving
    Generalization via Scalable Neighborhood Component Analysis", ECCV 2018.
    """

    def __init__(self, temperature: float = 0.05, **options: Unpack[PairOptions]) -> None:
        super().__init__(**options)
        self.temperature = check_positive("temperature", temperature)

    def compute_pair_parts(self, pairs: Pairs) -> Parts:
        """Compute the two parts `[n]`."""
        exponents = pairs.similarities() / self.temperature
        tightness = -log_sum_exp(exponents, pairs.positive)
        contrastive = log_sum_exp(exponents, pairs.others())
        kept = pairs.have_positives()
        return mean_over_anchors(tightness, kept), mean_over_anchors(contrastive, kept)
