"""Squared distances from one matrix product, but those of close pairs from their differences.

`‖a − c‖² = ‖a‖² + ‖c‖² − 2 a·c` costs one product for all pairs and, far from the origin or for
close pairs, leaves few digits or none. Three things keep them:

- The mean of all candidates is taken off first. No distance and no gradient changes by it, and a
  batch that lies far from the origin, or has collapsed to a spot on the sphere, loses nothing.
- Pairs of which more than half of the digits are lost even so, `D² ≤ √ε (‖a‖² + ‖c‖²)` around the
  mean (nearer than 2 % to 3 % of their distance from the mean in float32), are close pairs: their
  differences are taken, `CHUNK` · n at a time, so that memory stays of order n·d.
- The gradient is made of the same two parts.

A batch without close pairs pays for a comparison of each distance, and one with k of them
O(n² + k·d) time more.
"""

import dataclasses
from collections.abc import Callable

from keras import ops
from keras.backend import standardize_dtype

from keras_dml.gradients import WithGradient, with_gradient
from keras_dml.gram import both_places
from keras_dml.hinges import places_in
from keras_dml.matmul import matmul
from keras_dml.types import Tensor

CHUNK = 2
_ROOT_EPSILON = {"float32": 3.5e-4, "float64": 1.5e-8}


def squared_distances(anchors: Tensor, candidates: Tensor, mirrored: bool = False) -> Tensor:
    """`‖a_i − c_j‖²` with a relative error of at most about 4 √ε (1e-3 in float32).

    Exactly 0 for coincident embeddings, and for a pair at distance D the error of a gradient with
    respect to D is about `ε ‖a‖ / D` of its length around the mean, below 1e-5 in float32. What
    stays lost is what the embeddings themselves no longer hold: rows at offset m from the origin
    are multiples of about ε m, and l2-normalised ones of about ε.

    Args:
        anchors: `[a, d]`, float32 or float64.
        candidates: `[c, d]`; the very tensor `anchors` for pairs within one set, whose gradient
            then takes one matrix product instead of two.
        mirrored: within one set, that the upstream is that of `keras_dml.gram.mirrored_sums`:
            symmetric, and of both places of a pair.

    Returns:
        `[a, c]`, differentiable once.
    """
    if candidates is not anchors:
        return _between(anchors, candidates)
    return _mirrored_within(anchors) if mirrored else _within(anchors)


@with_gradient
def _within(x: Tensor) -> WithGradient:
    return _of_one_set(x, both_places, (0, 0))


@with_gradient
def _mirrored_within(x: Tensor) -> WithGradient:
    # Of the two that a pair moves, each is once its anchor.
    return _of_one_set(x, matmul, (0,))


def _of_one_set(
    x: Tensor, product: Callable[[Tensor, Tensor], Tensor], gradient_of: tuple[int, ...]
) -> WithGradient:
    """By the product of the upstream, of both places of a pair, and the rows `[n, d + 1]`."""
    (centered,) = _centered(x)
    turned = -2.0 * centered
    distances, close, any_close = _forward(x, x, turned, centered, centered)

    def gradient(upstream: Tensor) -> Tensor:
        far = _of_far_pairs(upstream, close, any_close)
        # Times ones, for the sum of the upstream.
        moved = product(far, ops.concatenate([turned, ops.ones_like(turned[:, :1])], axis=-1))
        by_product = moved[:, :-1] - moved[:, -1:] * turned
        (of_x,) = _with_close_pairs((by_product,), gradient_of, x, x, close, any_close, upstream)
        return of_x

    return distances, gradient


@with_gradient
def _between(anchors: Tensor, candidates: Tensor) -> WithGradient:
    c, a = _centered(candidates, anchors)
    distances, close, any_close = _forward(anchors, candidates, -2.0 * a, a, c)

    def gradient(upstream: Tensor) -> tuple[Tensor, ...]:
        far = _of_far_pairs(upstream, close, any_close)
        turned = ops.transpose(far)
        to_a = 2.0 * (ops.sum(far, axis=1, keepdims=True) * a - matmul(far, c))
        to_c = 2.0 * (ops.sum(turned, axis=1, keepdims=True) * c - matmul(turned, a))
        return _with_close_pairs(
            (to_a, to_c), (0, 1), anchors, candidates, close, any_close, upstream
        )

    return distances, gradient


def _centered(candidates: Tensor, *others: Tensor) -> list[Tensor]:
    """The candidates and the others around the candidates' mean."""
    # A first row taken off beforehand: the mean of what lies far away has a rounding error that is
    # large beside the differences, and XLA takes it more than once, each time with another one.
    first = candidates[:1]
    shifted = [rows - first for rows in (candidates, *others)]
    # By a product, which reads columns faster than a sum.
    number = ops.cast(ops.maximum(ops.shape(candidates)[0], 1), candidates.dtype)
    mean = matmul(ops.transpose(ops.ones_like(candidates[:, :1]) / number), shifted[0])
    return [rows - mean for rows in shifted]


def _forward(
    anchors: Tensor, candidates: Tensor, turned: Tensor, a: Tensor, c: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """The distances, which pairs are close, and whether any are but each image and itself.

    The centered `turned`, −2 a, and `c` go into the product, the anchors and candidates into the
    differences: a difference of close numbers is exact, one of centered and rounded ones is not.
    """
    a_squares = ops.sum(ops.square(a), axis=-1, keepdims=True)
    c_squares = a_squares if c is a else ops.sum(ops.square(c), axis=-1, keepdims=True)
    # The squares of both as two more columns: sums of n × n that the product takes with it.
    of_a = ops.concatenate([turned, a_squares, ops.ones_like(a_squares)], axis=-1)
    of_c = ops.concatenate([c, ops.ones_like(c_squares), c_squares], axis=-1)
    distances = matmul(of_a, ops.transpose(of_c))
    root_epsilon = _ROOT_EPSILON[standardize_dtype(distances.dtype)]
    close = distances <= root_epsilon * a_squares + ops.transpose(root_epsilon * c_squares)
    distances = ops.where(close, 0.0, distances)
    # An image and itself are always close, and 0 already.
    any_close = ops.sum(ops.cast(close, "int32")) > ops.shape(close)[0]

    def some() -> Tensor:
        def put(pairs: _SomePairs, difference: Tensor, flat: Tensor) -> tuple[Tensor]:
            values = ops.sum(ops.square(difference), axis=-1)
            return (ops.scatter_update(flat, pairs.place[:, None], values),)

        flat = ops.reshape(distances, (-1,))
        (flat,) = _over_close_pairs(anchors, candidates, close, put, (flat,))
        return ops.reshape(flat, ops.shape(distances))

    return ops.cond(any_close, some, lambda: distances), close, any_close


def _of_far_pairs(upstream: Tensor, close: Tensor, any_close: Tensor) -> Tensor:
    """The upstream without that of close pairs, which does not go through the product.

    What each image has with itself may stay: it moves the image by nothing.
    """
    return ops.cond(any_close, lambda: ops.where(close, 0.0, upstream), lambda: upstream)


def _with_close_pairs(
    gradients: tuple[Tensor, ...],
    gradient_of: tuple[int, ...],
    anchors: Tensor,
    candidates: Tensor,
    close: Tensor,
    any_close: Tensor,
    upstream: Tensor,
) -> tuple[Tensor, ...]:
    """The `gradients`, plus what close pairs do.

    To which of them what a pair does to its anchor is added, and what to its candidate, says
    `gradient_of`; one number: to its anchor alone.
    """

    def some() -> tuple[Tensor, ...]:
        upstreams = ops.reshape(upstream, (-1,))

        def add(pairs: _SomePairs, difference: Tensor, *sums: Tensor) -> tuple[Tensor, ...]:
            weights = ops.where(pairs.exists, 2.0 * ops.take(upstreams, pairs.place), 0.0)
            moved = weights[:, None] * difference
            totals = list(sums)
            ends = (pairs.row, moved), (pairs.column, -moved)
            for place, (rows, move) in zip(gradient_of, ends, strict=False):
                added = ops.segment_sum(move, rows, ops.shape(totals[place])[0])
                totals[place] = totals[place] + added
            return tuple(totals)

        return _over_close_pairs(anchors, candidates, close, add, gradients)

    return ops.cond(any_close, some, lambda: gradients)


@dataclasses.dataclass(frozen=True)
class _SomePairs:
    """Pairs `[m]` by their row, their column, and their place in the flat table of all pairs.

    Where `exists` is false the last pair is repeated.
    """

    row: Tensor
    column: Tensor
    place: Tensor
    exists: Tensor


def _over_close_pairs(
    anchors: Tensor,
    candidates: Tensor,
    close: Tensor,
    body: Callable[..., tuple[Tensor, ...]],
    carried: tuple[Tensor, ...],
) -> tuple[Tensor, ...]:
    """`carried`, led through `body(pairs, difference, *carried)` for one chunk after the other.

    `difference` is `[m, d]`, of the pairs' anchors and candidates. The close pairs are found by
    bisection of their running count, so that nothing is sorted and no shape depends on them.
    """
    height, width = ops.shape(close)[0], ops.shape(close)[1]
    in_row = ops.cumsum(ops.cast(close, "int32"), axis=-1)
    of_rows = ops.sum(ops.cast(close, "int32"), axis=-1)
    rows_before = ops.cumsum(of_rows) - of_rows
    running = ops.reshape(in_row + rows_before[:, None], (-1,))
    number = ops.sum(of_rows)
    numbers = ops.arange(CHUNK * height, dtype="int32")

    def chunk(start: Tensor, *carried: Tensor) -> tuple[Tensor, ...]:
        wanted = start + numbers
        place = places_in(running, ops.minimum(wanted, number - 1))
        row, column = place // width, place % width
        difference = ops.take(anchors, row, axis=0) - ops.take(candidates, column, axis=0)
        pairs = _SomePairs(row, column, place, wanted < number)
        return start + CHUNK * height, *body(pairs, difference, *carried)

    start = ops.zeros((), "int32")
    _, *carried = ops.while_loop(lambda start, *_: start < number, chunk, (start, *carried))
    return tuple(carried)
