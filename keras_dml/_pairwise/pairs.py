"""The pairs of a batch: their masks, similarities, and distances, and means over them."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol, TypeAlias

from keras import ops

from keras_dml._backend.replicas import gather_candidates
from keras_dml._common.errors import argument_error
from keras_dml._common.types import Tensor, TensorLike
from keras_dml._pairwise.arithmetic import (
    count,
    gram,
    masked_max,
    masked_min,
    masked_sum,
    matmul,
    maximum,
    row_lengths,
)
from keras_dml._pairwise.close_pairs import squared_distances
from keras_dml._pairwise.masks import Masks, checked_masks, same_class

# Where the range of float32 ends.
_ZERO = 1e-37

Compare: TypeAlias = Callable[[Tensor, Tensor], Masks]
"""A function of the labels of anchors and candidates that returns the masks of a relation."""


class _HasMasks(Protocol):
    def masks(self, similarities: Tensor, pairs: "Pairs") -> Masks:
        """Return the masks of the positives and the negatives to keep."""


Strategy: TypeAlias = _HasMasks | Callable[[Tensor, Tensor, Tensor], Masks]
"""A `keras_dml.mining.Mining`, or a function (similarities, positive, negative) -> `Masks`."""

MiningLike: TypeAlias = Strategy | Sequence[Strategy] | None
"""A strategy, a list of strategies that are applied in order, or None for all pairs."""


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
        bias: A number that is added to the similarities times `scale`, or None.
    """

    embeddings: Tensor
    labels: Tensor
    filled: Tensor
    own: Tensor
    scale: Tensor | float | None = None
    bias: Tensor | float | None = None


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
        bias: A number that is added to the similarities times `scale`, or None.
    """

    anchors: Tensor
    candidates: Tensor
    positive: Tensor
    negative: Tensor
    itself: Tensor
    scale: Tensor | float | None = None
    bias: Tensor | float | None = None

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
        """Compute the inner products `S_ij = a_i · c_j`, `[a, c]`, or `scale · S_ij + bias`."""
        if self.candidates is self.anchors and self.scale is None and self.bias is None:
            return gram(self.anchors)
        anchors = self.anchors
        if self.scale is not None:
            anchors = anchors * ops.cast(self.scale, anchors.dtype)
        products = matmul(anchors, ops.transpose(self.candidates))
        return products if self.bias is None else products + ops.cast(self.bias, products.dtype)

    def squared_distances(self) -> Tensor:
        """Compute `D_ij² = ‖a_i − c_j‖²`, `[a, c]`, exact for close pairs.

        Raises:
            ValueError: `scale` or `bias`, which change similarities, is set.
        """
        if self.scale is not None:
            wanted = "None for a loss of distances, because it is a factor of similarities"
            raise argument_error("scale", wanted, self.scale)
        if self.bias is not None:
            wanted = "None for a loss of distances, because it is added to similarities"
            raise argument_error("bias", wanted, self.bias)
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


def safe_sqrt(x: Tensor) -> Tensor:
    """Return the square root of `x ≥ 0` with the gradient 0 at 0, where its slope is infinite."""
    positive = x > 0.0
    return ops.where(positive, ops.sqrt(ops.where(positive, x, 1.0)), x)
