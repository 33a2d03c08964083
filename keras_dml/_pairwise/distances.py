"""Squared distances that stay exact for close pairs, and unit vectors.

`‖a − c‖² = ‖a‖² + ‖c‖² − 2 a·c` takes one matrix product for all pairs, and loses digits for close
pairs and far from the origin. Two things keep the digits:

- Embeddings are centered on the mean of the candidates, which changes no distance and no gradient.
- Pairs with `D² ≤ √ε (‖a‖² + ‖c‖²)` around the mean are close pairs (closer than 2 % to 3 % of
  their distance from the mean in float32). Their distances and gradients come from differences,
  `CHUNK · a` pairs at a time.

A batch without close pairs pays for one comparison of each distance.
"""

import dataclasses
from collections.abc import Callable

from keras import ops
from keras.backend import standardize_dtype

from keras_dml._backend.gradients import Backward, with_gradient
from keras_dml._common.types import Tensor
from keras_dml._pairwise.matmul import matmul
from keras_dml._pairwise.reductions import maximum, segment_sum
from keras_dml._pairwise.search import places_in

__all__ = ["normalize", "row_lengths", "safe_sqrt", "squared_distances"]

CHUNK = 2
_ROOT_EPSILON = {"float32": 3.5e-4, "float64": 1.5e-8}
# Where the range of float32 ends.
_ZERO = 1e-37


def normalize(x: Tensor) -> Tensor:
    """Return the rows of `x` `[n, d]` at length 1. A zero row stays 0 and has a zero gradient.

    Very long and very short rows are scaled first, so that squares neither overflow nor underflow.
    Equal rows have equal results.
    """
    largest = ops.max(ops.abs(ops.stop_gradient(x)), axis=-1, keepdims=True)
    zero = largest <= _ZERO  # False for NaN, which must stay visible
    # Tensors of the same dtype: 1e25 is infinite in the float16 that a number could become.
    down, up, one = (ops.full_like(largest, factor) for factor in (1e-25, 1e25, 1.0))
    scaled = x * ops.where(largest > 1e18, down, ops.where(largest < 1e-18, up, one))
    lengths = ops.where(zero, 1.0, row_lengths(ops.where(zero, 1.0, scaled)))
    return ops.where(zero, 0.0, scaled / lengths)


def row_lengths(x: Tensor, epsilon: float = 0.0) -> Tensor:
    """Compute the lengths `[n, 1]` of the rows of `x` `[n, d]`, as divisors.

    Equal rows have equal lengths, because no rounding depends on a row's position. TensorFlow
    replaces a division by a root with `rsqrt`, and XLA fuses a product with a sum. Both round
    differently at the end of a tensor. The bounds 0 and 1e-37, which change no result, prevent
    that.

    Args:
        x: `[n, d]`.
        epsilon: The smallest squared length.
    """
    squares = ops.sum(maximum(ops.square(x), 1e-37), axis=-1, keepdims=True)
    return maximum(ops.sqrt(maximum(squares, epsilon)), 0.0)


def safe_sqrt(x: Tensor) -> Tensor:
    """Return the square root of `x ≥ 0` with the gradient 0 at 0, where its slope is infinite."""
    positive = x > 0.0
    return ops.where(positive, ops.sqrt(ops.where(positive, x, 1.0)), x)


def squared_distances(anchors: Tensor, candidates: Tensor) -> Tensor:
    """Compute `‖a_i − c_j‖²` for all pairs, with a relative error of about 1e-3 at most in float32.

    The distance of equal rows is exactly 0. Two reverse-mode derivatives are right. The first one
    is as exact as the values, and the second one comes from plain matrix products.

    Args:
        anchors: `[a, d]`, float32 or float64.
        candidates: `[c, d]`. Pass the same tensor for pairs within one set, whose gradient takes
            one matrix product and not two.

    Returns:
        `[a, c]`.
    """
    if candidates is anchors:
        return _within(anchors)
    return _between(anchors, candidates)


@with_gradient
def _within(x: Tensor) -> tuple[Tensor, Backward]:
    distances, close = _exact(x, x)

    def backward(upstream: Tensor, x: Tensor) -> Tensor:
        return _pulls(upstream + ops.transpose(upstream), x, x, close)

    return distances, backward


@with_gradient
def _between(anchors: Tensor, candidates: Tensor) -> tuple[Tensor, Backward]:
    distances, close = _exact(anchors, candidates)

    def backward(upstream: Tensor, anchors: Tensor, candidates: Tensor) -> tuple[Tensor, Tensor]:
        turned = ops.transpose(upstream), candidates, anchors, ops.transpose(close)
        return _pulls(upstream, anchors, candidates, close), _pulls(*turned)

    return distances, backward


def _pulls(weights: Tensor, anchors: Tensor, candidates: Tensor, close: Tensor) -> Tensor:
    """Compute `2 Σ_j w_ij (a_i − c_j)` `[a, d]`, with differences for close pairs."""

    @with_gradient
    def pulls(weights: Tensor, anchors: Tensor, candidates: Tensor) -> tuple[Tensor, Backward]:
        a, c = _centered(anchors, candidates)
        far = ops.where(close, 0.0, weights)
        total = ops.sum(far, axis=-1, keepdims=True) * a - matmul(far, c)
        flat = ops.reshape(weights, (-1,))

        def add(total: Tensor, pairs: _SomePairs) -> Tensor:
            weights = ops.where(pairs.exists, ops.take(flat, pairs.place), 0.0)
            moved = weights[:, None] * pairs.difference
            return total + segment_sum(moved, pairs.row, ops.shape(total)[0])

        total = _over_close_pairs(anchors, candidates, close, add, total)

        def backward(
            upstream: Tensor, weights: Tensor, anchors: Tensor, candidates: Tensor
        ) -> tuple[Tensor, Tensor, Tensor]:
            a, c = _centered(anchors, candidates)
            along = ops.sum(upstream * a, axis=-1, keepdims=True)
            to_weights = 2.0 * (along - matmul(upstream, ops.transpose(c)))
            to_anchors = 2.0 * ops.sum(weights, axis=-1, keepdims=True) * upstream
            return to_weights, to_anchors, -2.0 * matmul(ops.transpose(weights), upstream)

        return 2.0 * total, backward

    return pulls(weights, anchors, candidates)


def _centered(anchors: Tensor, candidates: Tensor) -> tuple[Tensor, Tensor]:
    """Subtract the candidates' mean from both."""
    # The first row goes first: far from the origin the mean's rounding error is as large as the
    # differences, and XLA computes the mean more than once, with different errors.
    first = ops.stop_gradient(candidates[:1])
    a, c = anchors - first, candidates - first
    number = ops.cast(ops.maximum(ops.shape(c)[0], 1), c.dtype)
    mean = ops.stop_gradient(ops.sum(c, axis=0, keepdims=True) / number)
    return a - mean, c - mean


def _exact(anchors: Tensor, candidates: Tensor) -> tuple[Tensor, Tensor]:
    """Compute the squared distances, and which pairs are close."""
    a, c = _centered(anchors, candidates)
    a_squares = ops.sum(ops.square(a), axis=-1)[:, None]
    c_squares = ops.sum(ops.square(c), axis=-1)[None, :]
    lengths = a_squares + c_squares
    distances = lengths - 2.0 * matmul(a, ops.transpose(c))
    close = distances <= _ROOT_EPSILON[standardize_dtype(distances.dtype)] * lengths

    def put(flat: Tensor, pairs: _SomePairs) -> Tensor:
        squares = ops.sum(ops.square(pairs.difference), axis=-1)
        return ops.scatter_update(flat, pairs.place[:, None], squares)

    flat = ops.reshape(ops.where(close, 0.0, distances), (-1,))
    flat = _over_close_pairs(anchors, candidates, close, put, flat)
    return ops.reshape(flat, ops.shape(distances)), close


@dataclasses.dataclass(frozen=True)
class _SomePairs:
    """Close pairs `[m]`. Where `exists` is false, the last pair is repeated.

    Attributes:
        row: The anchor of each pair.
        place: The place in the flat table of all pairs.
        difference: Anchor minus candidate, `[m, d]`.
        exists: Bool `[m]`.
    """

    row: Tensor
    place: Tensor
    difference: Tensor
    exists: Tensor


def _over_close_pairs(
    anchors: Tensor,
    candidates: Tensor,
    close: Tensor,
    body: Callable[[Tensor, _SomePairs], Tensor],
    carried: Tensor,
) -> Tensor:
    """Update `carried` by `body(carried, pairs)` for one chunk of the close pairs after another.

    Bisection of a running count finds the pairs, so that no shape depends on their number.
    """
    height, width = ops.shape(close)[0], ops.shape(close)[1]
    running = ops.cumsum(ops.reshape(ops.cast(close, "int32"), (-1,)))
    number = ops.sum(ops.cast(close, "int32"))
    slots = ops.arange(CHUNK * height, dtype="int32")

    def chunk(start: Tensor, carried: Tensor) -> tuple[Tensor, Tensor]:
        wanted = start + slots
        place = places_in(running, ops.minimum(wanted, number - 1))
        row, column = place // width, place % width
        difference = ops.take(anchors, row, axis=0) - ops.take(candidates, column, axis=0)
        pairs = _SomePairs(row, place, difference, exists=wanted < number)
        return start + CHUNK * height, body(carried, pairs)

    def all_chunks() -> Tensor:
        start = ops.zeros((), "int32")
        return ops.while_loop(lambda start, _: start < number, chunk, (start, carried))[1]

    # Within one set each image is close to itself, and its distance is 0 already.
    alone = height if candidates is anchors else 0
    return ops.cond(number > alone, all_chunks, lambda: carried)
