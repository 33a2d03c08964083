"""Ranks that can be differentiated: for each positive, a smooth count of what is more similar.

A candidate counts by `σ((S_qj − S_qi) / τ)`, 1 where it is much more similar to the query q than
the positive i is, 0 where it is much less so, 1/2 in a tie. There are n³ such numbers; here one
positive of every query is taken at a time, so that no more than O(n²) of them are held, forward and
backward. Time is O(n² p), p the largest number of positives that a query has.
"""

from collections.abc import Callable

from keras import ops

from keras_dml.types import Tensor

__all__ = ["smooth_ranks"]


def smooth_ranks(
    similarities: Tensor, positive: Tensor, candidate: Tensor, temperature: float
) -> tuple[Tensor, Tensor]:
    """The smooth rank of each positive among its query's positives, and among all candidates.

    Of a positive i of query q, `r⁺_i = 1 + Σ_j σ((S_qj − S_qi) / τ)` over the query's other
    positives j, and `r_i` likewise over all candidates j ≠ i.

    Args:
        similarities: S `[a, c]`.
        positive: bool `[a, c]`, the positives of each query.
        candidate: bool `[a, c]`, what they are ranked among; holds wherever `positive` does.
        temperature: τ, above 0.

    Returns:
        `(r⁺, r)`, each `[a, c]`, 0 where there is no positive; differentiable in `similarities`.
    """
    masks = ops.stack([positive, candidate], axis=0)
    # The place of each positive among the positives of its row: 1 for the first, 0 for no positive.
    order = ops.cumsum(ops.cast(positive, "int32"), axis=-1) * ops.cast(positive, "int32")

    def count(s: Tensor, number: Tensor) -> tuple[Tensor, Tensor]:
        """Where the positive of this number is in each row, and how the others count there."""
        here = ops.equal(order, number + 1)
        own = ops.sum(ops.where(here, s, ops.zeros_like(s)), axis=-1, keepdims=True)
        compared = ops.logical_and(masks, ops.logical_not(here)[None])
        compared = ops.logical_and(compared, ops.any(here, axis=-1, keepdims=True)[None])
        weights = ops.sigmoid((s - own) / temperature)
        return here, ops.where(compared, weights[None], ops.zeros_like(weights)[None])

    @ops.custom_gradient
    def ranks(s: Tensor) -> tuple[Tensor, Callable[..., Tensor]]:
        most = ops.max(order)

        def rank(number: Tensor, total: Tensor) -> tuple[Tensor, Tensor]:
            here, counted = count(s, number)
            sums = 1.0 + ops.sum(counted, axis=-1, keepdims=True)
            return number + 1, ops.where(here[None], sums, total)

        def gradient(*args: Tensor, upstream: Tensor | None = None) -> Tensor:
            if upstream is None:
                (upstream,) = args

            def pull(number: Tensor, total: Tensor) -> tuple[Tensor, Tensor]:
                here, counted = count(s, number)
                at_positive = ops.where(here[None], upstream, ops.zeros_like(upstream))
                given = ops.sum(at_positive, axis=-1, keepdims=True)
                slopes = ops.sum(given * counted * (1.0 - counted), axis=0) / temperature
                own = ops.sum(slopes, axis=-1, keepdims=True)
                return number + 1, total + slopes - ops.where(here, own, ops.zeros_like(s))

            _, total = ops.while_loop(
                lambda number, _: number < most, pull, (ops.zeros((), "int32"), ops.zeros_like(s))
            )
            return total

        start = ops.cast(ops.zeros_like(masks), s.dtype)
        _, total = ops.while_loop(
            lambda number, _: number < most, rank, (ops.zeros((), "int32"), start)
        )
        return total, gradient

    among_positives, among_all = ops.unstack(ranks(similarities), 2, axis=0)
    return among_positives, among_all
