"""The contrastive loss."""

from typing import Literal, Unpack

from keras import ops

from keras_dml._common.checks import check_choice, check_number, check_positive, check_whole
from keras_dml._common.types import Parts, Tensor
from keras_dml._pairwise.arithmetic import count, masked_sum, maximum
from keras_dml._pairwise.pairs import Pairs, safe_sqrt
from keras_dml.losses.pair_loss import PairLoss, PairOptions
from keras_dml.losses.registry import register


@register("contrastive")
class ContrastiveLoss(PairLoss):
    """Contrastive loss: positives together, negatives at least a margin apart.

    With `D_ij = ‖z_i − z_j‖`, positives `P_i` and negatives `N_i` of anchor i:

    - tightness `T_i = Σ_{j∈P_i} max(0, D_ij − m₊)^p`, with m₊ = 0 and p = 2 `Σ_{j∈P_i} D_ij²`
    - contrastive `C_i = Σ_{j∈N_i} max(0, m − D_ij)^p`

    A negative that coincides with its anchor contributes m^p and has a zero gradient. An anchor
    without positives has `T_i = 0`, and an anchor without negatives has `C_i = 0`.

    Examples:
        >>> labels = np.array([0, 0, 1, 1])
        >>> z = np.array([[3, 4, 0], [4, 0, 3], [0, 3, 4], [0, 5, 0]], "float32") / 5
        >>> loss = ContrastiveLoss(margin=1.0, normalize=True)
        >>> round(float(loss(labels, z)), 3)
        0.988

    Args:
        margin: m, above 0, the smallest distance that negatives should have.
        normalize: Whether distances are between l2-normalized embeddings.
        pair_reduction: `"sum"` over j as in the paper, or `"mean"`, which divides each part by the
            number of its pairs, so that it does not grow with the batch.
        positive_margin: m₊, the distance up to which a positive costs nothing. With a negative
            number, a positive costs something at every distance.
        power: p, the exponent of the hinges, a whole number of at least 1. With 1, a pair pulls or
            pushes equally at every distance.
        reduction, name, dtype, mining, relation: as in `PairLoss`.

    Raises:
        ValueError: `margin` not above 0, `positive_margin` not finite, unknown `pair_reduction`,
            `power` below 1, or wrong shapes.

    Reference: Boudiaf et al. 2020, Eq. 2, after Hadsell et al. 2006; with two margins and p = 1
    Musgrave et al. 2020, "A Metric Learning Reality Check".
    """

    def __init__(
        self,
        margin: float = 1.0,
        *,
        normalize: bool = False,
        pair_reduction: Literal["sum", "mean"] = "sum",
        positive_margin: float = 0.0,
        power: int = 2,
        **options: Unpack[PairOptions],
    ) -> None:
        super().__init__(**options)
        self.margin = check_positive("margin", margin)
        self.normalize = bool(normalize)
        self.pair_reduction = check_choice("pair_reduction", pair_reduction, ("sum", "mean"))
        self.positive_margin = check_number("positive_margin", positive_margin)
        self.power = check_whole("power", power, least=1)

    def compute_pair_parts(self, pairs: Pairs) -> Parts:
        """Compute the two parts `[n]`."""
        squares = pairs.squared_distances()
        distances = safe_sqrt(squares)
        # The square of the root would have the second derivative 0 at D = 0.
        squared = self.positive_margin == 0.0 and self.power == 2
        pulled = squares if squared else self._hinges(distances - self.positive_margin)
        tightness = masked_sum(pulled, pairs.positive)
        contrastive = masked_sum(self._hinges(self.margin - distances), pairs.negative)
        if self.pair_reduction == "mean":
            tightness = tightness / maximum(count(pairs.positive, tightness.dtype), 1.0)
            contrastive = contrastive / maximum(count(pairs.negative, tightness.dtype), 1.0)
        return tightness, contrastive

    def _hinges(self, values: Tensor) -> Tensor:
        hinges = ops.relu(values)
        # The second derivative of power(h, 1) is NaN at 0.
        if self.power == 2:
            return ops.square(hinges)  # a fourth of the time of a power
        return hinges if self.power == 1 else ops.power(hinges, self.power)
