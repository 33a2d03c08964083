"""The recall@k surrogate."""

from collections.abc import Sequence
from typing import Unpack

from keras import ops

from keras_dml._common.checks import check_positive, check_wholes
from keras_dml._common.types import Parts, Tensor
from keras_dml._pairwise.arithmetic import count, masked_sum, maximum, minimum
from keras_dml._pairwise.pairs import Pairs, mean_over_anchors
from keras_dml._pairwise.ranks import smooth_ranks
from keras_dml.losses import _fused as fused
from keras_dml.losses.pair_loss import PairLoss, PairOptions
from keras_dml.losses.registry import register


@register("recall_at_k")
class RecallAtKLoss(PairLoss):
    """Recall@k surrogate: one minus the share of positives with a smooth rank of at most k.

    On cosine similarities, with the smooth rank `r_i` of a positive i among the query's candidates
    (as in `SmoothAPLoss`, with the temperature τ₂) and the temperature τ₁ of the step at k,

    `loss_q = 1 − mean_k min(k, Σ_{i∈P_q} σ((k − r_i) / τ₁)) / min(k, |P_q|)`

    - tightness `T_q`: the same with the ranks among the positives only
    - contrastive `C_q = loss_q − T_q ≥ 0`: the increase by the negatives

    A k above n counts as n. With τ₁ = 1, the loss of a perfect ranking is not 0 (0.5 for one
    positive and k = 1). A k whose inner sum reaches k has no gradient. The mean leaves out queries
    without positives: their value is 0, and the other values are multiplied by n / n_kept, counted
    over the global batch. Memory and time are as in `SmoothAPLoss`.

    Examples:
        >>> labels = np.array([0, 0, 1, 1])
        >>> z = np.array([[3, 4, 0], [4, 0, 3], [0, 3, 4], [0, 5, 0]], "float32") / 5
        >>> loss = RecallAtKLoss(ks=(1, 2))
        >>> round(float(loss(labels, z)), 3)
        0.555

    Args:
        ks: the k, one or more whole numbers of at least 1.
        temperature: τ₁, above 0, of the step at k.
        rank_temperature: τ₂, above 0, of the ranks.
        query_in_database: Whether the query is one of its candidates, as in the authors' code. It
            raises every rank by about 1. Set it to reproduce their numbers.
        reduction, name, dtype, mining, relation: as in `PairLoss`.

    Raises:
        ValueError: no k, or one below 1, a temperature not above 0, or wrong shapes.

    Reference: Patel et al., "Recall@k Surrogate Loss with Large Batches and Similarity Mixup",
    CVPR 2022, Eq. 5 to 8.
    """

    fused = True

    def __init__(
        self,
        ks: Sequence[int] = (1, 2, 4, 8, 16),
        *,
        temperature: float = 1.0,
        rank_temperature: float = 0.01,
        query_in_database: bool = False,
        **options: Unpack[PairOptions],
    ) -> None:
        super().__init__(**options)
        self.ks = check_wholes("ks", ks, least=1)
        self.temperature = check_positive("temperature", temperature)
        self.rank_temperature = check_positive("rank_temperature", rank_temperature)
        self.query_in_database = bool(query_in_database)

    def compute_pair_parts(self, pairs: Pairs) -> Parts:
        """Compute the two parts `[n]`."""
        similarities = pairs.similarities() / self.rank_temperature
        negative = pairs.negative
        number = count(pairs.positive, similarities.dtype)
        # The query counts too: a k above the number of images is that number.
        images = 1.0 + number + count(negative, similarities.dtype)
        if self.query_in_database:
            negative = ops.logical_or(negative, pairs.itself)
        ranks = fused.smooth_ranks if self.fused else smooth_ranks
        among_positives, negatives_above, present = ranks(similarities, pairs.positive, negative)
        tightness = self._missed(among_positives, present, number, images)
        loss = self._missed(among_positives + negatives_above, present, number, images)
        kept = number > 0
        return mean_over_anchors(tightness, kept), mean_over_anchors(loss - tightness, kept)

    def _missed(self, ranks: Tensor, present: Tensor, number: Tensor, images: Tensor) -> Tensor:
        """Compute `1 − mean_k min(k, Σ_i σ((k − r_i) / τ₁)) / min(k, |P|)` `[n]`."""
        total = ops.zeros_like(images)
        for k in self.ks:
            first = minimum(images, k)
            within = masked_sum(ops.sigmoid((first[:, None] - ranks) / self.temperature), present)
            total = total + minimum(within, first) / maximum(minimum(number, first), 1.0)
        return 1.0 - total / len(self.ks)
