"""Sums over positives of what their smooth ranks give: ranks that can be differentiated.

The smooth rank of a positive i of query q counts what is more similar to q than i is: of the other
positives `r⁺_i = 1 + Σ_j σ((S_qj − S_qi) / τ)`, of all other candidates `r_i` likewise. A candidate
counts 1 where it is much more similar, 0 where it is much less so, 1/2 in a tie. There are n³ such
numbers. Here one positive of every query is taken at a time, forward and once more backward, and
what its ranks give is added up at once: of n × n numbers no more are held than the similarities,
their gradient, and two matrices of the positive at hand. Time is O(n² p), p the largest number of
positives that a query has.
"""

from collections.abc import Callable
from typing import TypeAlias

from keras import ops

from keras_dml.gradients import WithGradient, with_gradient
from keras_dml.hinges import FEW_POSITIVES, INFINITY, _cond, _few, _first_positives, _spread
from keras_dml.types import Tensor

__all__ = ["OfRanks", "sums_over_positives"]

OfRanks: TypeAlias = Callable[[Tensor, Tensor], tuple[Tensor, Tensor, Tensor]]
"""From r⁺ and r `[a, 1]` of one positive of each query to m numbers of it, and to the derivatives
of these by r⁺ and by r, each `[a, m]` in the ranks' dtype."""


def sums_over_positives(
    similarities: Tensor, positive: Tensor, candidate: Tensor, of_ranks: OfRanks
) -> Tensor:
    """`Σ_{i∈P_q} f(r⁺_i, r_i)`: of each query q the sum over its positives.

    Args:
        similarities: S / τ, `[a, c]`.
        positive: bool `[a, c]`, the positives of each query.
        candidate: bool `[a, c]`, what they are ranked among; holds wherever `positive` does.
        of_ranks: f and its derivatives, finite from a rank of 1/2 on. No gradient reaches what it
            reads besides the ranks.

    Returns:
        `[a, m]`, 0 where there is no positive; differentiable once in `similarities`.
    """
    dtype = similarities.dtype
    most = ops.max(ops.sum(ops.cast(positive, "int32"), axis=-1))
    few, are_few = _few(positive, FEW_POSITIVES)
    first = _first_positives(positive, dtype, few)

    @with_gradient
    def sums(similarities: Tensor) -> WithGradient:
        # So what is no candidate counts 0, and needs no mask.
        everyone = ops.where(candidate, similarities, -INFINITY)

        def by_number_of_positives(of: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
            """`of` the columns `[a, k]` and the similarities of all positives."""

            def of_columns(columns: Tensor, present: Tensor) -> Tensor:
                found = ops.take_along_axis(everyone, columns, axis=-1)
                return of(columns, ops.where(present, found, -INFINITY))

            def of_all_columns() -> Tensor:
                return of_columns(*_first_positives(positive, dtype, ops.shape(positive)[1]))

            return _cond(are_few, lambda: of_columns(*first), of_all_columns)

        def values(_: Tensor, near: Tensor) -> Tensor:
            def add(number: Tensor, total: Tensor) -> tuple[Tensor, Tensor]:
                own = _similarity_of(number, near)
                ranks = (_rank(_above(own, others)) for others in (near, everyone))
                found, _, _ = of_ranks(*ranks)
                return number + 1, total + ops.where(own < INFINITY, found, 0.0)

            one = ops.ones_like(near[:, :1])
            start = ops.zeros((), "int32"), ops.zeros_like(of_ranks(one, one)[0])
            return ops.while_loop(lambda number, _: number < most, add, start)[1]

        def gradient(upstream: Tensor) -> Tensor:
            def slopes(columns: Tensor, near: Tensor) -> Tensor:
                numbers = ops.arange(ops.shape(near)[1], dtype="int32")

                def add(
                    number: Tensor, of_near: Tensor, of_everyone: Tensor
                ) -> tuple[Tensor, Tensor, Tensor]:
                    own = _similarity_of(number, near)
                    above = _above(own, near), _above(own, everyone)
                    _, *derivatives = of_ranks(*(_rank(counted) for counted in above))
                    by_near, by_everyone = (
                        counted * (1.0 - counted) * ops.sum(upstream * by, axis=-1, keepdims=True)
                        for counted, by in zip(above, derivatives, strict=True)
                    )
                    by_own = sum(
                        ops.sum(by, axis=-1, keepdims=True) for by in (by_near, by_everyone)
                    )
                    by_near = by_near - ops.where(numbers == number, by_own, 0.0)
                    return number + 1, of_near + by_near, of_everyone + by_everyone

                start = ops.zeros((), "int32"), ops.zeros_like(near), ops.zeros_like(everyone)
                found = ops.while_loop(lambda number, *_: number < most, add, start)
                _, of_near, of_everyone = found
                return of_everyone + _spread(columns, of_near, everyone)

            return by_number_of_positives(slopes)

        return by_number_of_positives(values), gradient

    return sums(similarities)


def _similarity_of(number: Tensor, near: Tensor) -> Tensor:
    """That of each row's positive of this number, `[a, 1]`; infinity where there are fewer."""
    own = ops.take(near, number, axis=1)[:, None]
    return ops.where(own > -INFINITY, own, INFINITY)


def _above(own: Tensor, others: Tensor) -> Tensor:
    """How much each of the `others` `[a, k]` is more similar; the positive itself is so by 1/2."""
    return ops.sigmoid(others - own)


def _rank(above: Tensor) -> Tensor:
    return 0.5 + ops.sum(above, axis=-1, keepdims=True)
