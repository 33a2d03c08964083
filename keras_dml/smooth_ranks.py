"""Sums over positives of what their smooth ranks give: ranks that can be differentiated.

The smooth rank of a positive i of query q counts what is more similar to q than i is: of the other
positives `r⁺_i = 1 + Σ_j σ((S_qj − S_qi) / τ)`, and `r_i = r⁺_i` plus the same of the negatives.
What is much more similar counts 1, what is much less so 0, and a tie 1/2. There are n³ such
numbers. Here one positive of every query is taken at a time, forward and once more backward, and
what its ranks give is added up at once: no more n × n numbers are held than the similarities, their
gradient, and some matrices of the positive at hand. Time is O(n² p), p the largest number of
positives that a query has.
"""

from collections.abc import Callable
from typing import TypeAlias

from keras import ops

from keras_dml.gradients import WithGradient, with_gradient
from keras_dml.hinges import INFINITY
from keras_dml.positives import Positives, cond, spread
from keras_dml.types import Tensor

__all__ = ["OfRanks", "sums_over_positives"]

OfRanks: TypeAlias = Callable[[Tensor, Tensor], tuple[Tensor, Tensor, Tensor]]
"""From r⁺ and r `[a, 1]` of one positive of each query to m numbers of it, and to the derivatives
of these by r⁺ and by r, each `[a, m]` in the ranks' dtype."""


def sums_over_positives(
    similarities: Tensor, positives: Positives, negative: Tensor, of_ranks: OfRanks
) -> Tensor:
    """`Σ_{i∈P_q} f(r⁺_i, r_i)`: of each query q the sum over its positives.

    Args:
        similarities: S / τ, `[a, c]`.
        positives: where those of each query stand.
        negative: bool `[a, c]`, what they are ranked among besides; nowhere a positive.
        of_ranks: f and its derivatives, finite from a rank of 1/2 on. No gradient reaches what it
            reads besides the ranks.

    Returns:
        `[a, m]`, 0 where there is no positive; differentiable once in `similarities`.
    """

    @with_gradient
    def sums(similarities: Tensor) -> WithGradient:
        most = positives.most
        # So what is no negative counts 0, and needs no mask.
        far = ops.where(negative, similarities, -INFINITY)

        def by_number_of_positives(of: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
            """`of` the columns `[a, k]` and the similarities of all positives."""

            def of_columns(columns: Tensor, present: Tensor) -> Tensor:
                near = ops.take_along_axis(similarities, columns, axis=-1)
                return of(columns, ops.where(present, near, -INFINITY))

            def of_all_columns() -> Tensor:
                every = ops.cast(positives.mask, similarities.dtype)
                present, columns = ops.top_k(every, ops.shape(every)[1])
                return of_columns(columns, present > 0)

            return cond(
                positives.are_few(),
                lambda: of_columns(*positives.few()),
                of_all_columns,
            )

        def values(_: Tensor, near: Tensor) -> Tensor:
            def add(number: Tensor, total: Tensor) -> tuple[Tensor, Tensor]:
                own = _similarity_of(number, near)
                found, _, _ = of_ranks(*_ranks(_above(own, near), _above(own, far)))
                return number + 1, total + ops.where(own < INFINITY, found, 0.0)

            one = ops.ones((ops.shape(near)[0], 1), near.dtype)  # also of no candidates
            start = ops.zeros((), "int32"), ops.zeros_like(of_ranks(one, one)[0])
            return ops.while_loop(lambda number, _: number < most, add, start)[1]

        def gradient(upstream: Tensor) -> Tensor:
            def slopes(columns: Tensor, near: Tensor) -> Tensor:
                numbers = ops.arange(ops.shape(near)[1], dtype="int32")

                def add(
                    number: Tensor, of_near: Tensor, of_far: Tensor
                ) -> tuple[Tensor, Tensor, Tensor]:
                    own = _similarity_of(number, near)
                    near_above, far_above = _above(own, near), _above(own, far)
                    _, by_near, by_all = of_ranks(*_ranks(near_above, far_above))
                    # A positive counts in both ranks.
                    by_near = ops.sum(upstream * (by_near + by_all), axis=-1, keepdims=True)
                    by_far = ops.sum(upstream * by_all, axis=-1, keepdims=True)
                    to_near = near_above * (1.0 - near_above) * by_near
                    to_far = far_above * (1.0 - far_above) * by_far
                    to_own = ops.sum(to_near, axis=-1) + ops.sum(to_far, axis=-1)
                    to_near = to_near - ops.where(numbers == number, to_own[:, None], 0.0)
                    return number + 1, of_near + to_near, of_far + to_far

                start = ops.zeros((), "int32"), ops.zeros_like(near), ops.zeros_like(far)
                _, of_near, of_far = ops.while_loop(lambda number, *_: number < most, add, start)
                return of_far + spread(columns, of_near, far)

            return by_number_of_positives(slopes)

        return by_number_of_positives(values), gradient

    return sums(similarities)


def _similarity_of(number: Tensor, near: Tensor) -> Tensor:
    """That of each row's positive of this number, `[a, 1]`; infinity where there are fewer."""
    own = ops.take(near, number, axis=1)[:, None]
    return ops.where(own > -INFINITY, own, INFINITY)


def _above(own: Tensor, others: Tensor) -> Tensor:
    """How much each of the `others` `[a, k]` is more similar: the positive itself is by 1/2."""
    return ops.sigmoid(others - own)


def _ranks(near_above: Tensor, far_above: Tensor) -> tuple[Tensor, Tensor]:
    """The positive's rank among the positives, and among all: `[a, 1]`."""
    among_positives = 0.5 + ops.sum(near_above, axis=-1, keepdims=True)
    return among_positives, among_positives + ops.sum(far_above, axis=-1, keepdims=True)
