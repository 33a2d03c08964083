"""The multi-similarity loss."""

from typing import Unpack

from keras_dml._common.checks import check_number, check_positive
from keras_dml._common.types import Parts
from keras_dml._pairwise.arithmetic import log_one_plus_sum_exp
from keras_dml._pairwise.pairs import Pairs
from keras_dml.losses.pair_loss import PairLoss, PairOptions
from keras_dml.losses.registry import register
from keras_dml.mining import MultiSimilarity


@register("multi_similarity")
class MultiSimilarityLoss(PairLoss):
    """Multi-similarity loss on cosine similarities `S_ij`.

    - tightness `T_i = (1/α) log(1 + Σ_{j∈P_i} exp(−α (S_ij − m)))`
    - contrastive `C_i = (1/β) log(1 + Σ_{j∈N_i} exp(β (S_ij − m)))`

    With `epsilon`, the loss keeps only informative pairs, as in the original work: a positive that
    is less similar than the most similar negative plus ε, and a negative that is more similar than
    the least similar positive minus ε. An anchor without positives (negatives) has T_i = 0 (C_i =
    0).

    Examples:
        >>> labels = np.array([0, 0, 1, 1])
        >>> z = np.array([[3, 4, 0], [4, 0, 3], [0, 3, 4], [0, 5, 0]], "float32") / 5
        >>> loss = MultiSimilarityLoss(alpha=2, beta=50, base=0.5)
        >>> round(float(loss(labels, z)), 3)
        0.482

    Args:
        alpha: α, above 0, the sharpness of the positives.
        beta: β, above 0, the sharpness of the negatives.
        base: m, the similarity that separates them.
        epsilon: mining margin ε ≥ 0, or None for no mining.
        reduction, name, dtype, mining, relation: as in `PairLoss`.

    Raises:
        ValueError: `alpha` or `beta` not above 0, `base` not finite, `epsilon` below 0, or wrong
            shapes.

    Reference: Boudiaf et al. 2020, Table 2, after Wang et al., "Multi-Similarity Loss With General
    Pair Weighting for Deep Metric Learning", CVPR 2019, Eq. 15 and (mining) 11-12.
    """

    def __init__(
        self,
        alpha: float = 2.0,
        *,
        beta: float = 50.0,
        base: float = 0.5,
        epsilon: float | None = None,
        **options: Unpack[PairOptions],
    ) -> None:
        super().__init__(**options)
        self.alpha = check_positive("alpha", alpha)
        self.beta = check_positive("beta", beta)
        self.base = check_number("base", base)
        self.epsilon = None if epsilon is None else check_number("epsilon", epsilon, least=0)

    def mined(self, pairs: Pairs) -> Pairs:
        """Return the pairs that the mining strategies keep, and of these the informative ones."""
        pairs = super().mined(pairs)
        return pairs if self.epsilon is None else pairs.mined([MultiSimilarity(self.epsilon)], True)

    def compute_pair_parts(self, pairs: Pairs) -> Parts:
        """Compute the two parts `[n]`."""
        excess = pairs.similarities() - self.base
        tightness = log_one_plus_sum_exp(-self.alpha * excess, pairs.positive) / self.alpha
        contrastive = log_one_plus_sum_exp(self.beta * excess, pairs.negative) / self.beta
        return tightness, contrastive
