"""The binomial deviance loss."""

from typing import Unpack

from keras import ops

from keras_dml._common.checks import check_number, check_positive
from keras_dml._common.types import Parts
from keras_dml._pairwise.pairs import Pairs, pair_means
from keras_dml.losses.pair_loss import PairLoss, PairOptions
from keras_dml.losses.registry import register


@register("binomial_deviance")
class BinomialDevianceLoss(PairLoss):
    """Binomial deviance: a logistic loss of each pair's cosine similarity.

    With cosine similarities `S_ij`, the mean over the positive pairs plus the mean over the
    negative pairs of the batch:

    - tightness `T_i ∝ Σ_{j∈P_i} log(1 + exp(−α (S_ij − β)))`
    - contrastive `C_i ∝ Σ_{k∈N_i} log(1 + exp(α C (S_ik − β)))`

    with the factors n / (number of positive pairs) and n / (number of negative pairs).

    Examples:
        >>> labels = np.array([0, 0, 1, 1])
        >>> z = np.array([[3, 4, 0], [4, 0, 3], [0, 3, 4], [0, 5, 0]], "float32") / 5
        >>> loss = BinomialDevianceLoss(negative_cost=25.0)
        >>> round(float(loss(labels, z)), 3)
        4.562

    Args:
        scale: α, above 0.
        base: β, the similarity that separates positives from negatives.
        negative_cost: C, above 0, the factor of the slope for negatives.
        reduction, name, dtype, mining, relation: As in `PairLoss`.

    Raises:
        ValueError: `scale` or `negative_cost` is not above 0, or shapes are wrong.

    References: Yi et al., "Deep Metric Learning for Person Re-Identification", ICPR 2014, Eq. 4;
    the defaults are those of Ustinova and Lempitsky, "Learning Deep Embeddings with Histogram
    Loss", NIPS 2016, section 4.
    """

    def __init__(
        self,
        scale: float = 2.0,
        *,
        base: float = 0.5,
        negative_cost: float = 25.0,
        **options: Unpack[PairOptions],
    ) -> None:
        super().__init__(**options)
        self.scale = check_positive("scale", scale)
        self.base = check_number("base", base)
        self.negative_cost = check_positive("negative_cost", negative_cost)

    def compute_pair_parts(self, pairs: Pairs) -> Parts:
        """Compute the two parts `[n]`."""
        exponents = self.scale * (pairs.similarities() - self.base)
        tightness = pair_means(ops.softplus(-exponents), pairs.positive)
        pushed = ops.softplus(self.negative_cost * exponents)
        return tightness, pair_means(pushed, pairs.negative)
