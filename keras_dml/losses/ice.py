"""The instance cross-entropy loss."""

import dataclasses
from typing import Literal, Unpack

from keras import ops

from keras_dml._common.checks import check_choice, check_positive
from keras_dml._common.errors import ArgumentTypeError, argument_error
from keras_dml._common.types import Parts, Tensor
from keras_dml._pairwise.arithmetic import count, log_add_exp, log_sum_exp, masked_sum, maximum
from keras_dml._pairwise.pairs import Pairs
from keras_dml.losses.pair_loss import PairLoss, PairOptions
from keras_dml.losses.registry import register


@register("ice")
class InstanceCrossEntropyLoss(PairLoss):
    """Instance cross-entropy (ICE): each positive against all negatives of its anchor.

    With cosine similarities `S_ij`, a scale s and `E_a = log Σ_{j∈N_a} exp(s S_aj)`, anchor a and
    positive i have the matching probability `p_ai = exp(s S_ai) / (exp(s S_ai) + exp(E_a))`. The
    loss of the anchor is `Σ_{i∈P_a} −log p_ai`; its parts, as in any cross-entropy, are the
    logit and the partition:

    - tightness `T_a = −Σ_{i∈P_a} s S_ai`
    - contrastive `C_a = Σ_{i∈P_a} log(exp(s S_ai) + exp(E_a))`

    An anchor without positives or without negatives has the value 0 and no gradient.

    With `reweight`, the gradient is not the value's own: with N images in the global batch and the
    mean over anchors, anchor a pulls its positive i by `w_ai f_a` and pushes its negative j by
    `w_aj f_a` with

    - `w_ai = 1/(2N) · (1 − p_ai) / Σ_{k∈P_a} (1 − p_ak)`
    - `w_aj = 1/(2N) · exp(s S_aj − E_a)`

    The positives of an anchor together have the same weight as its negatives, and all anchors have
    the same weight. So `pair_reduction` changes only the value, and the scale only the relative
    weights. Logarithms keep the weights of very easy positives from becoming 0/0. The value does
    not have to fall at every step. The weights are constants for the gradient (`stop_gradient`),
    and so for second derivatives. `parts` have their own gradients.

    In `between`, positives and negatives are candidates, so only candidates have a gradient. The
    queries have one with `anchor_gradient`, without `reweight`, or in a symmetric
    `keras_dml.models.DualEncoder`, which also compares the candidates with the queries. Rows of a
    memory are constants, so the first two also allow a memory.

    Examples:
        >>> labels = np.array([0, 0, 1, 1])
        >>> z = np.array([[3, 4, 0], [4, 0, 3], [0, 3, 4], [0, 5, 0]], "float32") / 5
        >>> loss = InstanceCrossEntropyLoss(scale=16)
        >>> round(float(loss(labels, z)), 3)
        2.331

    Args:
        scale: s, above 0. The paper finds that s = 1 does not converge.
        reweight: Whether the gradient is the one above. If False, it is the derivative of the
            value.
        anchor_gradient: Whether anchors move, too. The paper's Eq. 15 moves only the positives and
            the negatives of an anchor. With True, the gradient is the derivative of the mean over
            anchors of `L_a / (2 s Σ_{i∈P_a} (1 − p_ai))` with a constant divisor.
        pair_reduction: `"sum"` over the anchor's positives as in the paper, or `"mean"`.
        reduction, name, dtype, mining, relation: as in `PairLoss`.

    Raises:
        ValueError: `scale` not above 0, unknown `pair_reduction`, `anchor_gradient` without
            `reweight`, or wrong shapes.

    Reference: Wang et al., "Instance Cross Entropy for Deep Metric Learning", 2019: Eq. 3-5 with
    the scale of Eq. 11; the gradient is Eq. 11-15.
    """

    def __init__(
        self,
        scale: float = 64.0,
        *,
        reweight: bool = True,
        anchor_gradient: bool = False,
        pair_reduction: Literal["sum", "mean"] = "sum",
        **options: Unpack[PairOptions],
    ) -> None:
        super().__init__(**options)
        self.scale = check_positive("scale", scale)
        self.reweight = bool(reweight)
        self.anchor_gradient = bool(anchor_gradient)
        self.pair_reduction = check_choice("pair_reduction", pair_reduction, ("sum", "mean"))
        if self.anchor_gradient and not self.reweight:
            advice = "The anchors have a gradient already."
            raise argument_error("anchor_gradient", "False without reweight", True, advice=advice)

    def check_memory(self) -> None:
        """Raise an error if the gradient moves only candidates, which are constants in a memory.

        Raises:
            TypeError: The loss is reweighted without `anchor_gradient`.
        """
        super().check_memory()
        if self.reweight and not self.anchor_gradient:
            wanted = "True, or reweight False, so that the anchors have a gradient"
            advice = "Candidates from a memory are constants."
            raise argument_error("anchor_gradient", wanted, False, ArgumentTypeError, advice=advice)

    def compute_pair_parts(self, pairs: Pairs) -> Parts:
        """Compute the two parts `[n]`."""
        logits, negatives = self._logits(pairs, pairs.similarities())
        partition = log_add_exp(negatives, logits)
        return self._reduced(-logits, pairs), self._reduced(partition, pairs)

    def compute_pair_loss(self, pairs: Pairs) -> Tensor:
        """Compute the loss `[n]` without the cancellation of its parts, and with its gradient."""
        if not self.reweight:
            logits, negatives = self._logits(pairs, pairs.similarities())
            return self._reduced(ops.softplus(negatives - logits), pairs)
        if not self.anchor_gradient:
            pairs = dataclasses.replace(pairs, anchors=ops.stop_gradient(pairs.anchors))
        similarities = pairs.similarities()
        logits, negatives = self._logits(pairs, ops.stop_gradient(similarities))
        log_other = -ops.softplus(logits - negatives)  # log(1 − p)
        pull = ops.softmax(ops.where(pairs.matched(), log_other, -1e30), axis=-1)
        push = ops.where(pairs.negative, ops.exp(logits - negatives), 0.0)
        moved = ops.sum((push - pull) * similarities, axis=-1)
        moved = ops.where(ops.any(pairs.matched(), axis=-1), 0.5 * moved, 0.0)
        value = self._reduced(ops.softplus(negatives - logits), pairs)
        return value + (moved - ops.stop_gradient(moved))

    def _logits(self, pairs: Pairs, similarities: Tensor) -> tuple[Tensor, Tensor]:
        """Compute `s S` `[a, c]` and `E` `[a, 1]`."""
        logits = self.scale * similarities
        return logits, log_sum_exp(logits, pairs.negative)[:, None]

    def _reduced(self, values: Tensor, pairs: Pairs) -> Tensor:
        total = masked_sum(values, pairs.matched())
        if self.pair_reduction == "mean":
            total = total / maximum(count(pairs.positive, total.dtype), 1.0)
        return total
