"""Smooth ranks, which can be differentiated."""

from keras import ops

from keras_dml._common.types import Tensor


def smooth_ranks(
    similarities: Tensor, positive: Tensor, negative: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Compute the smooth rank of each positive of a query.

    Among the query's positives it is `r⁺_i = 1 + Σ_{j≠i} σ(S_qj − S_qi)`, and among all
    candidates it is `r_i = r⁺_i + Σ_{k∈N_q} σ(S_qk − S_qi)`, for similarities divided by the
    temperature. A candidate that is much more similar counts 1, and a tie counts 1/2.

    Args:
        similarities: S / τ, `[a, c]`.
        positive, negative: Bool `[a, c]`.

    Returns:
        r⁺, r − r⁺, and which entries are positives, each `[a, c]`. Memory is O(n³).
    """
    above = ops.sigmoid(similarities[:, None, :] - similarities[:, :, None])

    def total(mask: Tensor) -> Tensor:
        return ops.sum(ops.where(mask[:, None, :], above, 0.0), axis=-1)

    # The positive itself counts 1/2.
    return 0.5 + total(positive), total(negative), positive
