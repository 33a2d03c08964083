"""The normalised, temperature-scaled cross-entropy of positive pairs."""

from collections.abc import Sequence

import keras
from keras import ops

from keras_dml.checks import check_positive
from keras_dml.gradients import WithGradient, with_gradient
from keras_dml.losses.base import PairLoss
from keras_dml.losses.ice import matched_pairs
from keras_dml.losses.registry import register
from keras_dml.mining import Strategy
from keras_dml.pairs import (
    Pairs,
    are_bounded,
    log_or_zero,
    log_sum_exp,
    masked_exp,
    masked_sum,
    mean_over_pairs,
    pair_means,
)
from keras_dml.positives import Positives, at_columns, of_partners, spread
from keras_dml.types import Config, Parts, Tensor


@register("nt_xent")
@keras.saving.register_keras_serializable("keras_dml")
class NTXentLoss(PairLoss):
    """NT-Xent: each positive pair recognised among the anchor's negatives, a mean over pairs.

    On cosine similarities `S_ij`, with `E_i = log Σ_{k∈N_i} exp(S_ik / τ)`, the mean over the
    positive pairs (i, p) of the global batch of `−S_ip / τ + log(exp(S_ip / τ) + exp(E_i))`:

    - tightness `T_i ∝ Σ_{p∈P_i} −S_ip / τ`
    - contrastive `C_i ∝ Σ_{p∈P_i} log(exp(S_ip / τ) + exp(E_i))`

    with the factor n / (number of positive pairs). That is ICE with the scale 1/τ and its own
    gradient, averaged over pairs. SimCLR's denominator holds all images but the anchor, which is
    the same where each has one positive. Anchors without positives or without negatives have no
    term.

    Examples:
        >>> labels = np.array([0, 0, 1, 1])
        >>> z = np.array([[3, 4, 0], [4, 0, 3], [0, 3, 4], [0, 5, 0]], "float32") / 5
        >>> loss = NTXentLoss(temperature=0.5)
        >>> round(float(loss(labels, z)), 3)
        1.05

    Args:
        temperature: τ, above 0.
        reduction, name, dtype, mining: as in `PairLoss`.

    Raises:
        ValueError: `temperature` not above 0, or wrong shapes.

    Reference: Chen et al., "A Simple Framework for Contrastive Learning of Visual
    Representations", ICML 2020, Eq. 1, with positives by class.
    """

    def __init__(
        self,
        temperature: float = 0.07,
        reduction: str | None = "sum_over_batch_size",
        name: str | None = "nt_xent",
        dtype: str | None = None,
        mining: Strategy | Sequence[Strategy] | None = None,
    ) -> None:
        super().__init__(reduction=reduction, name=name, dtype=dtype, mining=mining)
        self.temperature = check_positive("temperature", temperature)

    @property
    def similarity_scale(self) -> float:
        """The scale of its similarities."""
        return 1.0 / self.temperature

    def compute_pair_parts(self, pairs: Pairs) -> Parts:
        """The two parts `[n]`."""
        logits, rivals, matched = self._compared(pairs)
        partition = rivals + ops.softplus(logits - rivals)
        return pair_means(-logits, matched), pair_means(partition, matched)

    def compute_pair_loss(self, pairs: Pairs) -> Tensor:
        """The loss `[n]` without the cancellation of its parts."""
        positives, scale = pairs.positives(), self.similarity_scale
        if pairs.complete and are_bounded(scale):
            logits = pairs.similarities_to_sum(scale)
            rivals = log_or_zero(pairs.sums(masked_exp(logits, pairs.negative)))
            sums = _sums_of_gaps(logits, rivals, positives, mirrored=True)
        else:
            logits = pairs.similarities(scale)
            sums = _sums_of_gaps(logits, log_sum_exp(logits, pairs.negative), positives)
        some, number = pairs.have_negatives(), ops.cast(positives.number, sums.dtype)
        return mean_over_pairs(ops.where(some, sums, 0.0), ops.where(some, number, 0.0))

    def _compared(self, pairs: Pairs) -> tuple[Tensor, Tensor, Tensor]:
        logits = pairs.similarities(self.similarity_scale)
        return logits, log_sum_exp(logits, pairs.negative)[:, None], matched_pairs(pairs)

    def get_config(self) -> Config:
        """The constructor's arguments."""
        return {**super().get_config(), "temperature": self.temperature}


def _sums_of_gaps(
    logits: Tensor, rivals: Tensor, positives: Positives, mirrored: bool = False
) -> Tensor:
    """`Σ_j softplus(e_i − s_ij)` `[a]` over the positives of each anchor.

    Of logits s `[a, c]` and rivals e `[a]`. What is no positive is not looked at where no anchor
    has many of them: a softplus takes as long as ten passes. `mirrored`: that the gradient at
    the logits is to be of both places of a pair, as of `keras_dml.gram.mirrored_sums`.
    """

    @with_gradient
    def sums(logits: Tensor, rivals: Tensor) -> WithGradient:
        def total(columns: Tensor | None, present: Tensor) -> Tensor:
            gaps = rivals[:, None] - at_columns(columns, logits)
            return masked_sum(ops.softplus(gaps), present)

        def gradient(upstream: Tensor) -> tuple[Tensor, Tensor]:
            def of_width(columns: Tensor | None, present: Tensor) -> tuple[Tensor, Tensor]:
                near = at_columns(columns, logits)

                def pushed(upstream: Tensor, rivals: Tensor) -> Tensor:
                    return ops.where(present, upstream * ops.sigmoid(rivals - near), 0.0)

                own = both = pushed(upstream[:, None], rivals[:, None])
                if mirrored:
                    both = both + pushed(
                        of_partners(columns, upstream), of_partners(columns, rivals)
                    )
                return spread(columns, -both, logits), ops.sum(own, axis=-1)

            return positives.by_width(of_width)

        return positives.by_width(total), gradient

    return sums(logits, rivals)
