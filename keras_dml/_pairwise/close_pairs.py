"""Squared distances that are exact for close pairs, too, and their derivatives."""

from collections.abc import Callable

from keras import ops
from keras.backend import standardize_dtype

from keras_dml._backend.gradients import with_gradient
from keras_dml._common.types import Tensor
from keras_dml._pairwise.arithmetic import cumsum, gram, matmul, places_in, segment_sum

CHUNK = 2
_ROOT_EPSILON = {"float32": 3.5e-4, "float64": 1.5e-8}


def squared_distances(anchors: Tensor, candidates: Tensor) -> Tensor:
    """Compute `‖a_i − c_j‖²` for all pairs, with a relative error of about 1e-3 at most in float32.

    `‖a − c‖² = ‖a‖² + ‖c‖² − 2 a·c` takes one matrix product for all pairs, and loses digits for
    close pairs and far from the origin. Two things keep the digits:

    - Embeddings are centered on the mean of the candidates, which changes no distance and no
      gradient.
    - Pairs with `D² ≤ √ε (‖a‖² + ‖c‖²)` around the mean are close pairs (closer than 2 % to 3 % of
      their distance from the mean in float32). Their distances and gradients come from differences,
      `CHUNK · a` pairs at a time. A batch without close pairs pays for one comparison of each
      distance.

    The distance of equal rows is exactly 0. The gradient is as exact as the values. Two
    reverse-mode derivatives are right.

    Args:
        anchors: `[a, d]`, float32 or float64.
        candidates: `[c, d]`. Pass the same tensor for pairs within one set.

    Returns:
        `[a, c]`.
    """
    a, c = _centered(anchors, candidates)
    a_squares, c_squares = ops.sum(ops.square(a), axis=-1), ops.sum(ops.square(c), axis=-1)
    lengths = a_squares[:, None] + c_squares[None, :]
    products = gram(a) if c is a else matmul(a, ops.transpose(c))
    distances = lengths - 2.0 * products
    limits = _ROOT_EPSILON[standardize_dtype(distances.dtype)] * ops.stop_gradient(lengths)
    # Within one set, each image is close to itself, and its distance is 0 already.
    diagonal = ops.shape(anchors)[0] if candidates is anchors else 0
    diagonal = ops.convert_to_tensor(diagonal, dtype="int32")
    return _with_close_pairs(distances, limits, anchors, candidates, diagonal)


def _from_differences(
    distances: Tensor, limits: Tensor, anchors: Tensor, candidates: Tensor, diagonal: Tensor
) -> Tensor:
    """Replace the distances of the close pairs."""
    close = distances <= limits

    def put(far: Tensor, pairs: Tensor, difference: Tensor, _: Tensor) -> Tensor:
        return ops.scatter_update(far, pairs, ops.sum(ops.square(difference), axis=-1))

    far = ops.where(close, 0.0, distances)
    return _over_close_pairs(anchors, candidates, close, diagonal, put, far)


def _gradient_of_differences(
    upstream: Tensor,
    distances: Tensor,
    limits: Tensor,
    anchors: Tensor,
    candidates: Tensor,
    diagonal: Tensor,
) -> tuple[Tensor | None, ...]:
    close = distances <= limits
    pulls = _pulls_of_close_pairs(upstream, anchors, candidates, close, diagonal)
    return ops.where(close, 0.0, upstream), None, *_split(pulls, anchors), None


_with_close_pairs = with_gradient(_from_differences, _gradient_of_differences)


def _pulls(
    weights: Tensor, anchors: Tensor, candidates: Tensor, close: Tensor, diagonal: Tensor
) -> Tensor:
    """Compute the gradients of the anchors and of the candidates from the close pairs.

    They are `2 Σ_j w_ij (a_i − c_j)` for an anchor and `2 Σ_i w_ij (c_j − a_i)` for a candidate,
    `[a + c, d]`.
    """
    height, width = ops.shape(close)[0], ops.shape(close)[1]

    def add(total: Tensor, pairs: Tensor, difference: Tensor, exists: Tensor) -> Tensor:
        rows, columns = pairs[:, 0], pairs[:, 1]
        weight = ops.take(ops.reshape(weights, (-1,)), rows * width + columns)
        pulls = 2.0 * ops.where(exists, weight, 0.0)[:, None] * difference
        rows = ops.concatenate([rows, height + columns])
        return total + segment_sum(ops.concatenate([pulls, -pulls]), rows, height + width)

    none = ops.zeros_like(ops.concatenate([anchors, candidates]))
    return _over_close_pairs(anchors, candidates, close, diagonal, add, none)


def _gradient_of_pulls(
    upstream: Tensor,
    weights: Tensor,
    anchors: Tensor,
    candidates: Tensor,
    close: Tensor,
    diagonal: Tensor,
) -> tuple[Tensor | None, ...]:
    a, c = _centered(anchors, candidates)
    to_a, to_c = _split(upstream, anchors)
    along = ops.sum(a * to_a, axis=-1)[:, None] + ops.sum(c * to_c, axis=-1)[None, :]
    across = matmul(a, ops.transpose(to_c)) + matmul(to_a, ops.transpose(c))
    kept = ops.where(close, weights, 0.0)
    to_anchors = ops.sum(kept, axis=1)[:, None] * to_a - matmul(kept, to_c)
    turned = ops.transpose(kept)
    to_candidates = ops.sum(turned, axis=1)[:, None] * to_c - matmul(turned, to_a)
    to_weights = ops.where(close, 2.0 * (along - across), 0.0)
    return to_weights, 2.0 * to_anchors, 2.0 * to_candidates, None, None


_pulls_of_close_pairs = with_gradient(_pulls, _gradient_of_pulls)


def _split(both: Tensor, anchors: Tensor) -> tuple[Tensor, Tensor]:
    """Split `[a + c, d]` into the rows of the anchors and the rows of the candidates."""
    height = ops.shape(anchors)[0]
    return both[:height], both[height:]


def _centered(anchors: Tensor, candidates: Tensor) -> tuple[Tensor, Tensor]:
    """Subtract the candidates' mean from both."""
    # The first row goes first: far from the origin the mean's rounding error is as large as the
    # differences, and XLA computes the mean more than once, with different errors.
    first = ops.stop_gradient(candidates[:1])
    c = candidates - first
    number = ops.cast(ops.maximum(ops.shape(c)[0], 1), c.dtype)
    mean = ops.stop_gradient(ops.sum(c, axis=0, keepdims=True) / number)
    c = c - mean
    return c if candidates is anchors else anchors - first - mean, c


def _over_close_pairs(
    anchors: Tensor,
    candidates: Tensor,
    close: Tensor,
    diagonal: Tensor,
    body: Callable[[Tensor, Tensor, Tensor, Tensor], Tensor],
    carried: Tensor,
) -> Tensor:
    """Update a tensor for the close pairs, one chunk of them after another.

    Bisection of a running count finds the pairs, so that no shape depends on their number.

    Args:
        anchors: `[a, d]`.
        candidates: `[c, d]`.
        close: Bool `[a, c]`.
        diagonal: Number of the pairs of an image with itself, which need no update.
        body: From `carried` and m pairs to the new `carried`: their rows and columns `[m, 2]`,
            anchor minus candidate `[m, d]`, and whether the pair exists. Other pairs repeat the
            last one.
        carried: The tensor to update.
    """
    height, width = ops.shape(close)[0], ops.shape(close)[1]
    number = ops.sum(ops.cast(close, "int32"))
    slots = ops.arange(CHUNK * height, dtype="int32")

    def all_chunks() -> Tensor:
        running = cumsum(ops.reshape(ops.cast(close, "int32"), (-1,)))

        def chunk(start: Tensor, carried: Tensor) -> tuple[Tensor, Tensor]:
            wanted = start + slots
            place = places_in(running, ops.minimum(wanted, number - 1))
            row, column = place // width, place % width
            difference = ops.take(anchors, row, axis=0) - ops.take(candidates, column, axis=0)
            pairs = ops.stack([row, column], axis=-1)
            return start + CHUNK * height, body(carried, pairs, difference, wanted < number)

        start = ops.zeros((), "int32")
        return ops.while_loop(lambda start, _: start < number, chunk, (start, carried))[1]

    return ops.cond(number > diagonal, all_chunks, lambda: carried)
