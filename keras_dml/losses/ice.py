"""The instance cross-entropy loss."""

from collections.abc import Sequence
from typing import Literal

import keras
from keras import ops

from keras_dml.bounds import at_least
from keras_dml.checks import check_choice, check_positive
from keras_dml.errors import ArgumentError, ArgumentTypeError
from keras_dml.gradients import WithGradient, with_gradient
from keras_dml.losses.base import PairLoss
from keras_dml.losses.registry import register
from keras_dml.matmul import matmul
from keras_dml.mining import Strategy
from keras_dml.pairs import Pairs, are_bounded, count, log_sum_exp, masked_sum
from keras_dml.positives import at_columns, spread
from keras_dml.shares import LEFT_OUT, log_sum_exp_and_shares, only
from keras_dml.types import Config, Parts, Tensor


@register("ice")
@keras.saving.register_keras_serializable("keras_dml")
class InstanceCrossEntropyLoss(PairLoss):
    """Instance cross-entropy (ICE): each positive recognised among all of the anchor's negatives.

    With cosine similarities `S_ij`, a scale s and `E_a = log Σ_{j∈N_a} exp(s S_aj)`, anchor a and
    positive i have the matching probability `p_ai = exp(s S_ai) / (exp(s S_ai) + exp(E_a))`. The
    loss of the anchor is `Σ_{i∈P_a} −log p_ai`; its parts, as those of any cross-entropy, are the
    logit and the partition:

    - tightness `T_a = −Σ_{i∈P_a} s S_ai`
    - contrastive `C_a = Σ_{i∈P_a} log(exp(s S_ai) + exp(E_a))`

    An anchor without positives or without negatives has the value 0 and no gradient.

    With `reweight`, the gradient is not the value's own: with N images in the global batch and the
    mean over anchors, anchor a pulls its positive i by `w_ai f_a` and pushes its negative j by
    `w_aj f_a` with

    - `w_ai = 1/(2N) · (1 − p_ai) / Σ_{k∈P_a} (1 − p_ak)`
    - `w_aj = 1/(2N) · exp(s S_aj − E_a)`

    so that the positives of an anchor weigh as much as its negatives, and all anchors the same.
    `pair_reduction` therefore changes the value only, and the scale only the relative weights. The
    weights are computed from logarithms: very easy positives would make them 0/0. Minimised by
    its gradient, the value need not fall at every step. `parts` keep their own gradients.

    Examples:
        >>> labels = np.array([0, 0, 1, 1])
        >>> z = np.array([[3, 4, 0], [4, 0, 3], [0, 3, 4], [0, 5, 0]], "float32") / 5
        >>> loss = InstanceCrossEntropyLoss(scale=16)
        >>> round(float(loss(labels, z)), 3)
        2.331

    Args:
        scale: s, above 0. The paper finds that s = 1 does not converge.
        reweight: set the gradient as above; otherwise differentiate the value.
        anchor_gradient: the paper's Eq. 15 moves the positives and the negatives of an anchor but
            not, as an anchor, the anchor itself. If true it moves too: then the gradient is that of
            the mean over anchors of `L_a / (2 s Σ_{i∈P_a} (1 − p_ai))` with a constant divisor.
        pair_reduction: `"sum"` over the anchor's positives as in the paper, or `"mean"`.
        reduction, name, dtype, mining: as in `PairLoss`.

    Raises:
        ValueError: `scale` not above 0, unknown `pair_reduction`, `anchor_gradient` without
            `reweight`, or wrong shapes.

    Reference: Wang et al., "Instance Cross Entropy for Deep Metric Learning", 2019: Eq. 3-5 with
    the scale of Eq. 11; the gradient is Eq. 11-15.
    """

    def __init__(
        self,
        scale: float = 64.0,
        reweight: bool = True,
        anchor_gradient: bool = False,
        pair_reduction: Literal["sum", "mean"] = "sum",
        reduction: str | None = "sum_over_batch_size",
        name: str | None = "ice",
        dtype: str | None = None,
        mining: Strategy | Sequence[Strategy] | None = None,
    ) -> None:
        super().__init__(reduction=reduction, name=name, dtype=dtype, mining=mining)
        self.scale = check_positive("scale", scale)
        self.reweight = bool(reweight)
        self.anchor_gradient = bool(anchor_gradient)
        self.pair_reduction = check_choice("pair_reduction", pair_reduction, ("sum", "mean"))
        if self.anchor_gradient and not self.reweight:
            raise ArgumentError(
                "anchor_gradient must be False when reweight is False: the value's own gradient "
                f"moves the anchors. Received: anchor_gradient={anchor_gradient}, "
                f"reweight={reweight}"
            )

    def check_memory(self) -> None:
        """Refuse the gradient that moves candidates alone, which in a memory are constants.

        Raises:
            TypeError: the loss is reweighted without `anchor_gradient`.
        """
        if self.reweight and not self.anchor_gradient:
            raise ArgumentTypeError(
                "anchor_gradient must be True, or reweight False, for candidates from a memory, "
                "which nothing moves: the gradient would be 0. "
                f"Received: reweight={self.reweight}, anchor_gradient={self.anchor_gradient}"
            )

    @property
    def similarity_scale(self) -> float:
        """The scale of its similarities."""
        return self.scale

    def compute_pair_parts(self, pairs: Pairs) -> Parts:
        """The two parts `[n]`."""
        logits = pairs.similarities(self.scale)
        matched = matched_pairs(pairs)
        rivals = log_sum_exp(logits, pairs.negative)[:, None]
        partition = rivals + ops.softplus(logits - rivals)
        return self._over_positives(-logits, matched), self._over_positives(partition, matched)

    def compute_pair_loss(self, pairs: Pairs) -> Tensor:
        """The loss `[n]` without the cancellation of its parts, and with the gradient it sets."""
        if not self.reweight:
            logits, matched = pairs.similarities(self.scale), matched_pairs(pairs)
            gaps = log_sum_exp(logits, pairs.negative)[:, None] - logits
            return self._over_positives(ops.softplus(gaps), matched)

        positives = pairs.positives()

        @with_gradient
        def reweighted(logits: Tensor) -> WithGradient:
            rivals, sums, push = self._against_negatives(logits, pairs.negative)

            def gaps_and_terms(columns: Tensor | None, present: Tensor) -> tuple[Tensor, Tensor]:
                gaps = rivals[:, None] - at_columns(columns, logits)
                # Without negatives left out, too: a term of 0.
                gaps = only(gaps, present)
                return gaps, ops.softplus(gaps)  # −log p

            def total(columns: Tensor | None, present: Tensor) -> Tensor:
                return ops.sum(gaps_and_terms(columns, present)[1], axis=-1)

            def gradient(upstream: Tensor) -> Tensor:
                some = ops.logical_and(positives.number > 0, rivals > 0.5 * LEFT_OUT)
                halves = upstream * ops.cast(some, rivals.dtype) * (0.5 / self.scale)

                def pulled(columns: Tensor | None, present: Tensor) -> Tensor:
                    gaps, terms = gaps_and_terms(columns, present)
                    # log(1 − p) = gap + log p: exact where 1 − p itself would underflow.
                    pull = ops.softmax(gaps - terms, axis=-1)
                    return spread(columns, halves[:, None] * pull, logits)

                return (halves / sums)[:, None] * push - positives.by_width(pulled)

            return self._reduced(positives.by_width(total), pairs.positive), gradient

        return reweighted(self._logits(pairs))

    def _against_negatives(self, logits: Tensor, negative: Tensor) -> tuple[Tensor, ...]:
        """`E` `[a]` of the negatives, and numbers `[a]` and `[a, c]` of which these, divided by
        those, are the negatives' shares; E is around `LEFT_OUT` where there is none."""
        if not are_bounded(self.scale):
            rivals, shares = log_sum_exp_and_shares(only(logits, negative))
            return rivals, ops.ones_like(rivals), shares
        powers = ops.where(negative, ops.exp(logits), 0.0)
        sums = ops.sum(powers, axis=-1)
        some = sums > 0.0
        sums = ops.where(some, sums, 1.0)
        return only(ops.log(sums), some), sums, powers

    def _logits(self, pairs: Pairs) -> Tensor:
        """`s S` `[a, c]`, of which the anchors, as anchors, get a gradient if they are to."""
        if self.anchor_gradient:
            return pairs.similarities(self.scale)
        anchors = ops.stop_gradient(pairs.anchors) * (self.scale / pairs.squared_length)

        @with_gradient
        def against_anchors(candidates: Tensor) -> WithGradient:
            logits = matmul(anchors, ops.transpose(candidates))
            return logits, lambda upstream: matmul(ops.transpose(upstream), anchors)

        return against_anchors(pairs.candidates)

    def _over_positives(self, values: Tensor, matched: Tensor) -> Tensor:
        return self._reduced(masked_sum(values, matched), matched)

    def _reduced(self, total: Tensor, matched: Tensor) -> Tensor:
        if self.pair_reduction == "mean":
            total = total / at_least(count(matched, total.dtype), 1.0)
        return total

    def get_config(self) -> Config:
        """The constructor's arguments."""
        return {
            **super().get_config(),
            "scale": self.scale,
            "reweight": self.reweight,
            "anchor_gradient": self.anchor_gradient,
            "pair_reduction": self.pair_reduction,
        }


def matched_pairs(pairs: Pairs) -> Tensor:
    """The positive pairs whose anchor has negatives to tell them from."""
    return ops.logical_and(pairs.positive, pairs.have_negatives()[:, None])
