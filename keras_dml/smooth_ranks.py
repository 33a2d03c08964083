"""Sums over positives of what their ranks give, where ranks can be differentiated.

The smooth rank of a positive i of query q counts what is more similar to q: of its other positives
`r⁺_i = 1 + Σ_j σ((S_qj − S_qi) / τ)`, of all candidates `r_i` likewise. A candidate counts 1 where
it is much more similar than i, 0 where it is much less so, 1/2 in a tie. There are n³ such numbers.
Here one positive of every query is taken at a time, and again for the gradient, so that one to two
n × n matrices of them are held at once; nothing of that size is kept but the similarities. Time is
O(n² p), p the largest number of positives that a query has.
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
of these by r⁺ and by r: `[a, m]` each."""


def sums_over_positives(
    similarities: Tensor, positive: Tensor, candidate: Tensor, of_ranks: OfRanks
) -> Tensor:
    """`Σ_{i∈P_q} f(r⁺_i, r_i)`, for each query q the sum over its positives.

    Args:
        similarities: S/τ `[a, c]`.
        positive: bool `[a, c]`, the positives of each query.
        candidate: bool `[a, c]`, what they are ranked among; holds wherever `positive` does.
        of_ranks: f with its derivatives, finite for all ranks of at least 1/2; no gradient reaches
            what else it reads.

    Returns:
        `[a, m]`, 0 where there is no positive; differentiable once, in `similarities`.
    """
    most = ops.max(ops.sum(ops.cast(positive, "int32"), axis=-1))
    few, are_few = _few(positive, FEW_POSITIVES)
    first = _first_positives(positive, similarities.dtype, few)

    def all_of_them() -> tuple[Tensor, Tensor]:
        return _first_positives(positive, similarities.dtype, ops.shape(positive)[1])

    @with_gradient
    def sums(similarities: Tensor) -> WithGradient:
        # What is no candidate counts 0, without a mask of its own.
        among_all = ops.where(candidate, similarities, -INFINITY)

        def values(columns: Tensor, present: Tensor) -> Tensor:
            near = _near(among_all, columns, present)

            def step(number: Tensor, total: Tensor) -> tuple[Tensor, Tensor]:
                own, above_near, above = _above(near, among_all, number)
                found, _, _ = of_ranks(_rank(above_near), _rank(above))
                return number + 1, total + ops.where(own < INFINITY, found, 0.0)

            nothing = ops.zeros_like(near[:, :1])
            start = ops.zeros_like(of_ranks(nothing + 1.0, nothing + 1.0)[0])
            _, total = ops.while_loop(
                lambda number, _: number < most, step, (ops.zeros((), "int32"), start)
            )
            return total

        def gradient(upstream: Tensor) -> Tensor:
            def slopes(columns: Tensor, present: Tensor) -> Tensor:
                near = _near(among_all, columns, present)
                numbers = ops.arange(ops.shape(near)[1], dtype="int32")

                def step(
                    number: Tensor, of_near: Tensor, of_all: Tensor
                ) -> tuple[Tensor, Tensor, Tensor]:
                    _, above_near, above = _above(near, among_all, number)
                    _, by_near, by_all = of_ranks(_rank(above_near), _rank(above))
                    to_near = _slopes(above_near, upstream, by_near)
                    to_all = _slopes(above, upstream, by_all)
                    to_own = ops.sum(to_near, axis=-1) + ops.sum(to_all, axis=-1)
                    to_near = to_near - ops.where(numbers == number, to_own[:, None], 0.0)
                    return number + 1, of_near + to_near, of_all + to_all

                _, of_near, of_all = ops.while_loop(
                    lambda number, *_: number < most,
                    step,
                    (ops.zeros((), "int32"), ops.zeros_like(near), ops.zeros_like(among_all)),
                )
                return of_all + _spread(columns, of_near, of_all)

            return _cond(are_few, lambda: slopes(*first), lambda: slopes(*all_of_them()))

        found = _cond(are_few, lambda: values(*first), lambda: values(*all_of_them()))
        return found, gradient

    return sums(similarities)


def _near(among_all: Tensor, columns: Tensor, present: Tensor) -> Tensor:
    """The positives' similarities `[a, k]`, minus infinity where a row has no more."""
    return ops.where(present, ops.take_along_axis(among_all, columns, axis=-1), -INFINITY)


def _above(near: Tensor, among_all: Tensor, number: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The positive of this number `[a, 1]`, and how much each other positive, and each candidate, is above it.

    Where a row has no such positive, infinity, and nothing is above it.
    """
    own = ops.take(near, number, axis=1)[:, None]
    own = ops.where(own > -INFINITY, own, INFINITY)
    return own, ops.sigmoid(near - own), ops.sigmoid(among_all - own)


def _rank(above: Tensor) -> Tensor:
    """The positive itself is among those counted, by 1/2."""
    return 0.5 + ops.sum(above, axis=-1, keepdims=True)


def _slopes(above: Tensor, upstream: Tensor, derivative: Tensor) -> Tensor:
    by_rank = ops.sum(upstream * derivative, axis=-1, keepdims=True)
    return above * (1.0 - above) * by_rank
