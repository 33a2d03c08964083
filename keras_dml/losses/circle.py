"""The circle loss."""

from typing import Unpack

from keras import ops

from keras_dml._common.checks import check_positive
from keras_dml._common.types import Parts, Tensor
from keras_dml._pairwise.arithmetic import log_add_exp, log_sum_exp
from keras_dml._pairwise.pairs import Pairs, mean_over_anchors
from keras_dml.losses.pair_loss import PairLoss, PairOptions
from keras_dml.losses.registry import register


class CircleOptions(PairOptions, total=False):
    """The arguments of `PairLoss`, and the name of `scale` in `keras.losses.Circle`."""

    gamma: float


@register("circle")
class CircleLoss(PairLoss):
    """Circle loss: weights each similarity by its distance from its optimum.

    On cosine similarities `S_ij`, with the weights `a⁺_ij = max(0, 1 + m − S_ij)` and
    `a⁻_ij = max(0, S_ij + m)`, which are constants for the gradient,
    `A_i = log Σ_{j∈P_i} exp(−γ a⁺_ij (S_ij − 1 + m))` and
    `B_i = log Σ_{j∈N_i} exp(γ a⁻_ij (S_ij − m))`, the loss is `log(1 + exp(A_i + B_i))`:

    - tightness `T_i = A_i`
    - contrastive `C_i = log(exp(−A_i) + exp(B_i))`

    The mean leaves out anchors without positives or without negatives: their value is 0, and the
    other values are multiplied by n / n_kept, counted over the global batch. The weights are
    constants for the gradient (`stop_gradient`), and so for second derivatives.

    Examples:
        >>> labels = np.array([0, 0, 1, 1])
        >>> z = np.array([[3, 4, 0], [4, 0, 3], [0, 3, 4], [0, 5, 0]], "float32") / 5
        >>> loss = CircleLoss(margin=0.25, scale=64)
        >>> round(float(loss(labels, z)), 3)
        33.799

    Args:
        margin: m, above 0. Positives should be above 1 − m, and negatives below m.
        scale: γ, above 0. The paper uses 80 and m = 0.4 for fine-grained retrieval, and 128
            (persons) and 256 (faces) with m = 0.25. `gamma=`, its name in `keras.losses.Circle`,
            sets it, too, and wins over `scale`.
        reduction, name, dtype, mining, relation: as in `PairLoss`.

    Raises:
        ValueError: `margin` or `scale` not above 0, or wrong shapes.

    Reference: Sun et al., "Circle Loss: A Unified Perspective of Pair Similarity Optimization",
    CVPR 2020, Eq. 5 to 8.
    """

    def __init__(
        self, margin: float = 0.4, *, scale: float = 80.0, **options: Unpack[CircleOptions]
    ) -> None:
        scale = options.pop("gamma", scale)
        super().__init__(**options)  # type: ignore[misc]  # `gamma` is not in it anymore
        self.margin = check_positive("margin", margin)
        self.scale = check_positive("scale", scale)

    def compute_pair_parts(self, pairs: Pairs) -> Parts:
        """Compute the two parts `[n]`."""
        pulling, pushing, kept = self._exponents(pairs)
        contrastive = log_add_exp(-pulling, pushing)
        return mean_over_anchors(pulling, kept), mean_over_anchors(contrastive, kept)

    def compute_pair_loss(self, pairs: Pairs) -> Tensor:
        """Compute the loss `[n]` without the cancellation of its parts."""
        pulling, pushing, kept = self._exponents(pairs)
        return mean_over_anchors(ops.softplus(pulling + pushing), kept)

    def _exponents(self, pairs: Pairs) -> tuple[Tensor, Tensor, Tensor]:
        """Compute A, B, and which anchors have both kinds of pairs, each `[n]`."""
        similarities = pairs.similarities()
        pull = ops.stop_gradient(ops.relu(1.0 + self.margin - similarities))
        push = ops.stop_gradient(ops.relu(similarities + self.margin))
        pulling = -self.scale * pull * (similarities - 1.0 + self.margin)
        pushing = self.scale * push * (similarities - self.margin)
        return (
            log_sum_exp(pulling, pairs.positive),
            log_sum_exp(pushing, pairs.negative),
            ops.logical_and(pairs.have_positives(), pairs.have_negatives()),
        )
