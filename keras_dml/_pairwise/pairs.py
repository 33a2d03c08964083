"""The pairs of a batch: their masks, similarities, and distances, and means over them."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol, TypeAlias

from keras import ops
from keras.backend import standardize_dtype

from keras_dml._backend.gradients import with_gradient
from keras_dml._backend.replicas import gather_candidates
from keras_dml._common.errors import argument_error
from keras_dml._common.types import Tensor, TensorLike
from keras_dml._pairwise.arithmetic import (
    count,
    cumsum,
    gram,
    masked_max,
    masked_min,
    masked_sum,
    matmul,
    maximum,
    places_in,
    segment_sum,
)
from keras_dml._pairwise.masks import Masks, checked_masks, same_class

CHUNK = 2
_ROOT_EPSILON = {"float32": 3.5e-4, "float64": 1.5e-8}
# Where the range of float32 ends.
_ZERO = 1e-37

Compare: TypeAlias = Callable[[Tensor, Tensor], Masks]
"""A function of the labels of anchors and candidates that returns the masks of a relation."""


class _HasMasks(Protocol):
    def masks(self, similarities: Tensor, pairs: "Pairs") -> Masks:
        """Return the masks of the positives and the negatives to keep."""


Strategy: TypeAlias = _HasMasks | Callable[[Tensor, Tensor, Tensor], Masks]
"""A `keras_dml.mining.Mining`, or a function (similarities, positive, negative) -> `Masks`."""


@dataclasses.dataclass(frozen=True)
class Candidates:
    """Candidates outside the batch: rows of another set, or a memory of earlier batches.

    Attributes:
        embeddings: `[m, d]`, as the model returned them, without a gradient in a memory.
        labels: Class ids `[m]`, integers, or the labels of a relation, m rows.
        filled: Bool `[m]`, the slots that hold a row. Other slots are not candidates.
        own: int `[a]`, the slot of each anchor's copy, which is neither its positive nor its
            negative. −1 for an anchor without a copy.
        scale: A factor of the similarities, or None.
    """

    embeddings: Tensor
    labels: Tensor
    filled: Tensor
    own: Tensor
    scale: Tensor | float | None = None


class Sets(NamedTuple):
    """The two sets of a batch: labels and embeddings of the queries and of the candidates."""

    query_labels: TensorLike
    queries: Tensor
    candidate_labels: TensorLike
    candidates: Tensor


@dataclasses.dataclass(frozen=True)
class Pairs:
    """The pairs of a batch: anchors of this replica with candidates of all replicas or others.

    A loss over pairs receives them in `compute_pair_parts` (`keras_dml.losses.PairLoss`). All
    methods are differentiable in the embeddings.

    Examples:
        >>> labels = keras.ops.convert_to_tensor([0, 0, 1])
        >>> pairs = Pairs.of_batch(labels, keras.ops.eye(3))
        >>> np.array(pairs.positive)
        array([[False,  True, False],
               [ True, False, False],
               [False, False, False]])
        >>> np.array(pairs.similarities())[0]
        array([1., 0., 0.], dtype=float32)

    Attributes:
        anchors: Embeddings `[a, d]`, of unit length unless the loss sets `normalize` to False.
        candidates: Embeddings `[c, d]`. On one device the same tensor as `anchors`.
        positive: Bool `[a, c]`, another image of the anchor's class.
        negative: Bool `[a, c]`, an image of another class.
        itself: Bool `[a, c]`, the anchor itself.
        scale: A factor of the similarities, or None.
    """

    anchors: Tensor
    candidates: Tensor
    positive: Tensor
    negative: Tensor
    itself: Tensor
    scale: Tensor | float | None = None

    @classmethod
    def of_batch(
        cls, labels: Tensor, embeddings: Tensor, compare: Compare | None = None
    ) -> "Pairs":
        """Pair labels and embeddings `[n, d]` with the candidates of all replicas.

        Args:
            labels: Class ids `[n]`, or the labels of a relation, n rows.
            embeddings: `[n, d]`.
            compare: The masks of a relation. None: equal and unequal class ids.
        """
        candidates, first_row = gather_candidates(embeddings)
        candidate_labels, _ = gather_candidates(labels)
        rows = ops.arange(ops.shape(embeddings)[0], dtype="int32") + first_row
        columns = ops.arange(ops.shape(candidates)[0], dtype="int32")
        itself = ops.equal(rows[:, None], columns[None, :])
        masks = (compare or same_class)(labels, candidate_labels)
        return cls._among(embeddings, candidates, masks, itself, ops.logical_not(itself))

    @classmethod
    def of_candidates(
        cls, labels: Tensor, embeddings: Tensor, candidates: Candidates, compare: Compare
    ) -> "Pairs":
        """Pair labels (n rows) and embeddings `[n, d]` with candidates outside the batch."""
        columns = ops.arange(ops.shape(candidates.embeddings)[0], dtype=candidates.own.dtype)
        itself = ops.equal(candidates.own[:, None], columns[None, :])
        other = ops.logical_and(candidates.filled[None, :], ops.logical_not(itself))
        masks = compare(labels, candidates.labels)
        return cls._among(embeddings, candidates.embeddings, masks, itself, other)

    @classmethod
    def _among(
        cls, anchors: Tensor, candidates: Tensor, masks: Masks, itself: Tensor, other: Tensor
    ) -> "Pairs":
        """Pair anchors and candidates, with the masks of a relation where `other` is true."""
        positive, negative = (ops.logical_and(mask, other) for mask in masks)
        return cls(anchors, candidates, positive, negative, itself)

    def similarities(self) -> Tensor:
        """Compute the inner products `S_ij = a_i · c_j`, times `scale` if it is set, `[a, c]`."""
        if self.candidates is self.anchors and self.scale is None:
            return gram(self.anchors)
        anchors = self.anchors
        if self.scale is not None:
            anchors = anchors * ops.cast(self.scale, anchors.dtype)
        return matmul(anchors, ops.transpose(self.candidates))

    def squared_distances(self) -> Tensor:
        """Compute `D_ij² = ‖a_i − c_j‖²`, `[a, c]`, exact for close pairs.

        Raises:
            ValueError: `scale`, a factor of similarities, is set.
        """
        if self.scale is not None:
            wanted = "None for a loss of distances, because it is a factor of similarities"
            raise argument_error("scale", wanted, self.scale)
        return squared_distances(self.anchors, self.candidates)

    def distances(self) -> Tensor:
        """Compute `D_ij = ‖a_i − c_j‖`, `[a, c]`. The gradient of the distance 0 is 0."""
        return safe_sqrt(self.squared_distances())

    def others(self) -> Tensor:
        """Return the mask of positives and negatives, bool `[a, c]`."""
        return ops.logical_or(self.positive, self.negative)

    def have_positives(self) -> Tensor:
        """Return which anchors have a positive, bool `[a]`."""
        return ops.any(self.positive, axis=-1)

    def have_negatives(self) -> Tensor:
        """Return which anchors have a negative, bool `[a]`."""
        return ops.any(self.negative, axis=-1)

    def matched(self) -> Tensor:
        """Return the positives of the anchors that have a negative, bool `[a, c]`."""
        return ops.logical_and(self.positive, self.have_negatives()[:, None])

    def informative(self, similarities: Tensor, epsilon: float) -> Masks:
        """Return the positives below the highest negative + ε, and negatives above the lowest − ε.

        Examples:
            >>> pairs = Pairs.of_batch(keras.ops.convert_to_tensor([0, 0, 0]), keras.ops.eye(3))
            >>> similarities = np.array([[1, 0.9, 0.2], [0.9, 1, 0.8], [0.2, 0.8, 1]], "float32")
            >>> positive, negative = pairs.informative(similarities, epsilon=0.1)
            >>> bool(keras.ops.any(positive)), bool(keras.ops.any(negative))
            (False, False)

        Reference: Wang et al., "Multi-Similarity Loss With General Pair Weighting for Deep Metric
        Learning", CVPR 2019, Eq. 11-12.
        """
        highest = masked_max(similarities, self.negative)
        lowest = masked_min(similarities, self.positive)
        return (
            ops.logical_and(self.positive, similarities < highest + epsilon),
            ops.logical_and(self.negative, similarities > lowest - epsilon),
        )

    def mined(self, strategies: Sequence[Strategy], unit: bool) -> "Pairs":
        """Return the pairs that the mining strategies keep, applied in order.

        Args:
            strategies: Strategies of `keras_dml.mining`, or functions.
            unit: Whether the embeddings have length 1.

        Raises:
            ValueError: A strategy does not return two masks with the shape `[a, c]`.
        """
        if not strategies:
            return self
        similarities = self.similarities() if unit else 1.0 - 0.5 * self.squared_distances()
        similarities = ops.stop_gradient(similarities)
        pairs = self
        for strategy in strategies:
            masks: Any
            if hasattr(strategy, "masks"):
                masks = strategy.masks(similarities, pairs)
            else:
                masks = strategy(similarities, pairs.positive, pairs.negative)
            shape = tuple(similarities.shape)
            positive, negative = checked_masks("mining", strategy, masks, shape)
            pairs = dataclasses.replace(
                pairs,
                positive=ops.logical_and(pairs.positive, positive),
                negative=ops.logical_and(pairs.negative, negative),
            )
        return pairs


def mean_over_anchors(values: Tensor, kept: Tensor) -> Tensor:
    """Scale values `[n]` so that Keras' mean over all anchors is the mean over the kept ones.

    Kept anchors are counted over all replicas. The others become 0.
    """
    kept = ops.cast(kept, values.dtype)
    everywhere, _ = gather_candidates(kept)
    number = maximum(ops.sum(everywhere), 1.0)
    return ops.where(kept > 0, values * (_size(everywhere) / number), 0.0)


def mean_over_pairs(sums: Tensor, weights: Tensor) -> Tensor:
    """Scale sums `[n]` so that Keras' mean over anchors is the mean over the pairs of all replicas.

    Args:
        sums: Each anchor's sum over its pairs, `[n]`.
        weights: Each anchor's number (or weight) of pairs, `[n]`.

    Returns:
        `sums · n / Σ weights`, with n and the sum over all replicas. 0 without pairs.
    """
    everywhere, _ = gather_candidates(weights)
    total = ops.sum(everywhere)
    scale = ops.where(total > 0, _size(everywhere) / ops.where(total > 0, total, 1.0), 0.0)
    return sums * scale


def pair_means(values: Tensor, kept: Tensor) -> Tensor:
    """Return values `[n]` whose Keras mean is the mean of `values` `[a, c]` over the kept pairs."""
    return mean_over_pairs(masked_sum(values, kept), count(kept, values.dtype))


def _size(values: Tensor) -> Tensor:
    return ops.cast(ops.shape(values)[0], values.dtype)


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
