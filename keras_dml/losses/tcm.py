"""The threshold-consistent margin loss."""

from typing import Unpack

from keras import ops

from keras_dml._common.checks import check_number
from keras_dml._common.types import Parts
from keras_dml._pairwise.pairs import Pairs, pair_means
from keras_dml.losses.pair_loss import PairLoss, PairOptions
from keras_dml.losses.registry import register


@register("tcm")
class ThresholdConsistentMarginLoss(PairLoss):
    """Threshold-consistent margin: one similarity threshold that serves all classes.

    On cosine similarities `S_ij`, over the ordered pairs of the global batch:

    - tightness: `w⁺` times the mean of `m⁺ − S_ij` over the positive pairs with `S_ij ≤ m⁺`
    - contrastive: `w⁻` times the mean of `S_ij − m⁻` over the negative pairs with `S_ij ≥ m⁻`

    Each mean counts its own pairs, including pairs on the bound, and is 0 without pairs. Only pairs
    on the wrong side have a gradient, with the same size for each pair. Use this loss as a
    regularizer together with another loss that separates the classes.

    Examples:
        >>> loss, margin = keras_dml.losses.NormSoftmaxLoss(), ThresholdConsistentMarginLoss()
        >>> model.compile("adam", {"cosines": loss, "embeddings": margin})  # two outputs

    Args:
        positive_margin: m⁺, in [−1, 1], the similarity that positives should have.
        negative_margin: m⁻, in [−1, 1], the similarity that negatives should stay below.
        positive_weight: w⁺, at least 0.
        negative_weight: w⁻, at least 0.
        reduction, name, dtype, mining, relation: As in `PairLoss`.

    Raises:
        ValueError: A margin or a weight is out of range, or shapes are wrong.

    Reference: Zhang et al., "Threshold-Consistent Margin Loss for Open-World Deep Metric Learning",
    2023.
    """

    def __init__(
        self,
        positive_margin: float = 0.9,
        *,
        negative_margin: float = 0.5,
        positive_weight: float = 1.0,
        negative_weight: float = 1.0,
        **options: Unpack[PairOptions],
    ) -> None:
        super().__init__(**options)
        self.positive_margin = check_number("positive_margin", positive_margin, least=-1, most=1)
        self.negative_margin = check_number("negative_margin", negative_margin, least=-1, most=1)
        self.positive_weight = check_number("positive_weight", positive_weight, least=0)
        self.negative_weight = check_number("negative_weight", negative_weight, least=0)

    def compute_pair_parts(self, pairs: Pairs) -> Parts:
        """Compute the two parts `[n]`."""
        similarities = pairs.similarities()
        missing = self.positive_margin - similarities
        excess = similarities - self.negative_margin
        too_far = ops.logical_and(pairs.positive, missing >= 0)
        too_near = ops.logical_and(pairs.negative, excess >= 0)
        return (
            self.positive_weight * pair_means(missing, too_far),
            self.negative_weight * pair_means(excess, too_near),
        )
