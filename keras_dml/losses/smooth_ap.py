"""The Smooth-AP loss."""

from typing import Unpack

from keras import ops

from keras_dml._common.checks import check_positive
from keras_dml._common.types import Parts
from keras_dml._pairwise.arithmetic import count, masked_sum, maximum
from keras_dml._pairwise.pairs import Pairs, mean_over_anchors
from keras_dml._pairwise.ranks import smooth_ranks
from keras_dml.losses import _fused as fused
from keras_dml.losses.pair_loss import PairLoss, PairOptions
from keras_dml.losses.registry import register


@register("smooth_ap")
class SmoothAPLoss(PairLoss):
    """Smooth-AP: one minus average precision, with smooth ranks.

    On cosine similarities, with the smooth ranks `r⁺_i` of a positive i among the query's positives
    and `r_i` among all other images, `AP_q = mean_{i∈P_q} r⁺_i / r_i`, and the loss is `1 − AP_q`.
    The smooth rank is `r⁺_i = 1 + Σ_{j∈P_q, j≠i} σ((S_qj − S_qi) / τ)`, and `r_i` adds the same sum
    over the negatives. With M = n − 1 other images, the parts are like FastAP's:

    - tightness `T_q = −mean_i log(r⁺_i / M)`
    - contrastive `C_q = 1 − AP_q − T_q`

    The mean leaves out queries without positives: their value is 0, and the other values are
    multiplied by n / n_kept, counted over the global batch. O(n²) memory and O(n² p) time for at
    most p positives of a query. With `fused = False`, O(n³) memory. Two similarities that differ by
    more than about 10 τ have no gradient.

    Examples:
        >>> labels = np.array([0, 0, 1, 1])
        >>> z = np.array([[3, 4, 0], [4, 0, 3], [0, 3, 4], [0, 5, 0]], "float32") / 5
        >>> loss = SmoothAPLoss(temperature=0.1)
        >>> round(float(loss(labels, z)), 3)
        0.429

    Args:
        temperature: τ, above 0.
        query_in_database: Whether the query is one of its positives, as in the authors' code. It
            flatters the value (M is n then). Set it to reproduce their numbers.
        reduction, name, dtype, mining, relation: as in `PairLoss`.

    Raises:
        ValueError: `temperature` not above 0, or wrong shapes.

    Reference: Brown et al., "Smooth-AP: Smoothing the Path Towards Large-Scale Image Retrieval",
    ECCV 2020, Eq. 6 and 7.
    """

    fused = True

    def __init__(
        self,
        temperature: float = 0.01,
        *,
        query_in_database: bool = False,
        **options: Unpack[PairOptions],
    ) -> None:
        super().__init__(**options)
        self.temperature = check_positive("temperature", temperature)
        self.query_in_database = bool(query_in_database)

    def compute_pair_parts(self, pairs: Pairs) -> Parts:
        """Compute the two parts `[n]`."""
        similarities = pairs.similarities() / self.temperature
        positive = pairs.positive
        if self.query_in_database:
            positive = ops.logical_or(positive, pairs.itself)
        ranks = fused.smooth_ranks if self.fused else smooth_ranks
        among_positives, negatives_above, present = ranks(similarities, positive, pairs.negative)
        number = maximum(count(positive, similarities.dtype), 1.0)
        others = number + count(pairs.negative, similarities.dtype)
        surprise = ops.log(others[:, None] / among_positives)
        missed = negatives_above / (among_positives + negatives_above)  # 1 − r⁺/r
        loss = masked_sum(missed, present) / number
        tightness = masked_sum(surprise, present) / number
        kept = pairs.have_positives()
        return mean_over_anchors(tightness, kept), mean_over_anchors(loss - tightness, kept)
