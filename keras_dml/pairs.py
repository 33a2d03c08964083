"""The arithmetic that the losses over pairs share: products, distances, masks, masked sums."""

import dataclasses

from keras import ops

from keras_dml.bounds import at_least
from keras_dml.close_pairs import squared_distances
from keras_dml.distribute import gather_candidates
from keras_dml.gradients import WithGradient, with_gradient
from keras_dml.gram import gram, mirrored, mirrored_gram, mirrored_sums
from keras_dml.matmul import matmul
from keras_dml.positives import Positives, find_positives, positives_of_classes, sums_over
from keras_dml.shares import log_sum_exp_and_shares, only
from keras_dml.types import Tensor

# Of which sums of millions of exponentials, and their quotients, stay within float32.
_LARGEST_EXPONENT = 64.0


@dataclasses.dataclass(frozen=True)
class Memory:
    """Rows of earlier batches, and of this one, as candidates that are constants.

    Attributes:
        embeddings: `[m, d]`, as the model gave them.
        class_ids: `[m]`, integers.
        filled: bool `[m]`, the slots that hold a row; the others are no candidates.
        own: int `[a]`, the slot of each anchor's own copy, which is neither its positive nor its
            negative; −1 for an anchor that has none.
    """

    embeddings: Tensor
    class_ids: Tensor
    filled: Tensor
    own: Tensor

    def prefix(self, length: int) -> "Memory":
        """The same with the first `length` dimensions alone."""
        return dataclasses.replace(self, embeddings=self.embeddings[:, :length])


@dataclasses.dataclass(frozen=True)
class Pairs:
    """The pairs of a batch: anchors of this replica, candidates of all replicas or of a memory.

    Attributes:
        anchors: embeddings `[a, d]`.
        candidates: embeddings `[c, d]`; on one device the very tensor `anchors`.
        positive: bool `[a, c]`, another image of the same class.
        negative: bool `[a, c]`, an image of another class.
        first_row: the row of the first anchor among the candidates; 0 on one device.
        own: int `[a]`, the candidate that is the anchor itself (−1: none); None: from `first_row`
            on, one after the other.
        squared_length: of what has length 1 to those who ask for similarities and distances.
        class_ids: `[a]` where the pairs are `complete`, else None.
    """

    anchors: Tensor
    candidates: Tensor
    positive: Tensor
    negative: Tensor
    first_row: Tensor | int = 0
    own: Tensor | None = None
    class_ids: Tensor | None = None
    squared_length: float = 1.0

    @classmethod
    def of_batch(cls, class_ids: Tensor, embeddings: Tensor) -> "Pairs":
        """Pairs of class ids `[n]` and embeddings `[n, d]` against those of all replicas."""
        candidates, offset = gather_candidates(embeddings)
        candidate_ids, _ = gather_candidates(class_ids)
        rows = ops.arange(ops.shape(embeddings)[0], dtype="int32") + offset
        columns = ops.arange(ops.shape(candidates)[0], dtype="int32")
        same_class = ops.equal(class_ids[:, None], candidate_ids[None, :])
        another = ops.not_equal(rows[:, None], columns[None, :])
        return cls(
            anchors=embeddings,
            candidates=candidates,
            positive=ops.logical_and(same_class, another),
            negative=ops.logical_not(same_class),
            first_row=offset,
            class_ids=class_ids if candidates is embeddings else None,
        )

    @classmethod
    def of_memory(cls, class_ids: Tensor, embeddings: Tensor, memory: Memory) -> "Pairs":
        """Pairs of class ids `[n]` and embeddings `[n, d]` against what a memory holds."""
        # A memory keeps whole numbers, whatever the labels came as.
        class_ids = ops.cast(class_ids, memory.class_ids.dtype)
        columns = ops.arange(ops.shape(memory.embeddings)[0], dtype=memory.own.dtype)
        itself = ops.equal(memory.own[:, None], columns[None, :])
        other = ops.logical_and(memory.filled[None, :], ops.logical_not(itself))
        same_class = ops.equal(class_ids[:, None], memory.class_ids[None, :])
        return cls(
            anchors=embeddings,
            candidates=memory.embeddings,
            positive=ops.logical_and(same_class, other),
            negative=ops.logical_and(ops.logical_not(same_class), other),
            own=memory.own,
        )

    @property
    def complete(self) -> bool:
        """Whether the candidates are the anchors, each with all others its positives or negatives.

        Then all that is made of pairs is symmetric, and class ids say all that masks do.
        """
        return self.class_ids is not None

    def positives(self, and_itself: bool = False) -> Positives:
        """Where the positives of each anchor stand; `and_itself`: the anchor as one of them."""
        mask = self._positive(and_itself)
        if self.class_ids is None:
            return find_positives(mask)
        return positives_of_classes(self.class_ids, mask, and_itself)

    def sums_over_positives(
        self, values: Tensor, mirrored: bool, and_itself: bool = False
    ) -> tuple[Tensor, Tensor]:
        """Each anchor's sum of `values` `[a, c]` over its positives, and their number (int32).

        `mirrored`: of `similarities_to_sum` where the pairs are complete.
        """
        if self.complete:
            positives = self.positives(and_itself)
            return sums_over(positives, values, mirrored), positives.number
        # To find them in a mask would take longer than their sum.
        mask = self._positive(and_itself)
        return masked_sum(values, mask), count(mask, "int32")

    def _positive(self, and_itself: bool) -> Tensor:
        return ops.logical_or(self.positive, self.itself()) if and_itself else self.positive

    def have_negatives(self) -> Tensor:
        """Whether each anchor has a negative, bool `[a]`."""
        if self.class_ids is None:
            return ops.any(self.negative, axis=-1)
        # All have one, or none has.
        some = ops.any(ops.not_equal(self.class_ids, self.class_ids[:1]))
        return ops.broadcast_to(some, ops.shape(self.class_ids))

    def others(self) -> Tensor:
        """Bool `[a, c]`: the positives and the negatives."""
        if self.complete:
            return ops.logical_not(self.itself())  # for which no class is looked at
        return ops.logical_or(self.positive, self.negative)

    def itself(self) -> Tensor:
        """Bool `[a, c]`: where a candidate is the anchor itself."""
        rows = self.own
        if rows is None:
            rows = ops.arange(ops.shape(self.anchors)[0], dtype="int32") + self.first_row
        columns = ops.arange(ops.shape(self.candidates)[0], dtype=rows.dtype)
        return ops.equal(rows[:, None], columns[None, :])

    def similarities(self, scale: float = 1.0) -> Tensor:
        """Inner products `S_ij = a_i · c_j`, times a `scale` above 0: `[a, c]`.

        The scale goes into the embeddings, which are fewer numbers than their products, unless they
        have a length that makes it so.
        """
        root = (scale / self.squared_length) ** 0.5
        anchors = self.anchors if root == 1.0 else self.anchors * root
        if self.candidates is self.anchors:
            return gram(anchors)
        candidates = self.candidates if root == 1.0 else self.candidates * root
        return matmul(anchors, ops.transpose(candidates))

    def similarities_to_sum(self, scale: float = 1.0) -> Tensor:
        """`similarities` that go nowhere but, elementwise, into `sums`: the gradient costs less."""
        if not self.complete:
            return self.similarities(scale)
        return mirrored_gram(self.anchors, scale / self.squared_length)

    def sums(self, values: Tensor, mask: Tensor | None = None) -> Tensor:
        """Each anchor's sum of `values` `[a, c]`, or of those that a bool `mask` keeps: `[a]`.

        Of what is made of `similarities_to_sum`, by functions and masks that are symmetric where
        the pairs are complete.
        """
        if not self.complete:
            return ops.sum(values, axis=-1) if mask is None else masked_sum(values, mask)
        return mirrored_sums(values if mask is None else ops.where(mask, values, 0.0))

    def of_sums(self, upstream: Tensor) -> Tensor:
        """What the gradient `[a]` at `sums` is at each of the values summed."""
        return mirrored(upstream) if self.complete else upstream[:, None]

    def squared_distances_to_sum(self) -> Tensor:
        """`squared_distances` that go nowhere but, elementwise, into `sums`."""
        return self._unscaled(
            squared_distances(self.anchors, self.candidates, mirrored=self.complete)
        )

    def squared_distances(self) -> Tensor:
        """`D_ij² = ‖a_i − c_j‖²`, `[a, c]`, exactly 0 for coincident embeddings.

        Wherever the batch lies and however close a pair is: `keras_dml.close_pairs`.
        """
        return self._unscaled(squared_distances(self.anchors, self.candidates))

    def _unscaled(self, values: Tensor) -> Tensor:
        return values if self.squared_length == 1.0 else values / self.squared_length


def normalize(x: Tensor, length: float = 1.0) -> Tensor:
    """Rows of a tensor `x` `[n, d]` at a `length`; a zero row stays 0 and has a zero gradient.

    Rows whose squares would overflow or underflow (numbers beyond 1e18, or none above 1e-18) are
    first brought nearer to 1; to all others nothing is done. Zero is what has no number above
    1e-37, where float32 ends.
    """
    scale = 1.0 / length**2

    @with_gradient
    def normalized(x: Tensor) -> WithGradient:
        squares = ops.sum(ops.square(x), axis=-1, keepdims=True)

        def as_it_is() -> tuple[Tensor, Tensor]:
            inverse = length * ops.rsqrt(squares)
            return x * inverse, inverse

        def brought_nearer() -> tuple[Tensor, Tensor]:
            largest = ops.maximum(
                ops.max(x, axis=-1, keepdims=True), -ops.min(x, axis=-1, keepdims=True)
            )
            zero = largest <= 1e-37  # not the other way round, which would hide a NaN
            # Tensors: a number is one of floatx first on PyTorch, in float16 an infinity or 0.
            up, down = (ops.full_like(largest, power) for power in (1e25, 1e-25))
            nearer_to_1 = ops.where(largest < 1e-18, up, ops.ones_like(largest))
            nearer_to_1 = ops.where(largest > 1e18, down, nearer_to_1)
            nearer = x * nearer_to_1
            squares = ops.sum(ops.square(nearer), axis=-1, keepdims=True)
            inverse = ops.where(zero, 0.0, length * ops.rsqrt(ops.where(zero, 1.0, squares)))
            return nearer * inverse, inverse * nearer_to_1

        ordinary = ops.all(ops.logical_and(squares > 1e-30, squares < 1e36))
        rows, inverse = ops.cond(ordinary, as_it_is, brought_nearer)

        def gradient(upstream: Tensor) -> Tensor:
            along = scale * ops.sum(upstream * rows, axis=-1, keepdims=True)
            return (upstream - along * rows) * inverse

        return rows, gradient

    return normalized(x)


@with_gradient
def safe_sqrt(x: Tensor) -> WithGradient:
    """Square root of `x ≥ 0` with gradient 0, not infinity, at 0."""
    root = ops.sqrt(x)
    return root, lambda upstream: ops.divide_no_nan(0.5 * upstream, root)


class Exponents:
    """`scale · S_ij` of unit vectors, for sums of exponentials over each anchor's candidates.

    Where the pairs are complete and the scale is no larger than float32 bears, exponentials are
    taken once for all sums, and as they are, not in relation to a row's largest: so they are
    symmetric, and the gradient takes no transposition.
    """

    def __init__(self, pairs: Pairs, scale: float) -> None:
        self._pairs = pairs
        self._others = pairs.others()
        self._powers = None
        if pairs.complete and are_bounded(scale):
            self._values = pairs.similarities_to_sum(scale)
            self._powers = masked_exp(self._values, self._others)
        else:
            self._values = pairs.similarities(scale)

    def positives(self) -> tuple[Tensor, Tensor]:
        """The sum of each anchor's positives' exponents, and how many these are, int32: `[a]`."""
        mirrored = self._powers is not None
        return self._pairs.sums_over_positives(self._values, mirrored)

    def log_sum_exp(self, mask: Tensor | None = None) -> Tensor:
        """`log Σ exp(scale · S_ij)` `[a]` over those, or over all other images; 0 where none is."""
        if self._powers is None:
            return log_sum_exp(self._values, self._others if mask is None else mask)
        return log_or_zero(self._pairs.sums(self._powers, mask))


def are_bounded(*exponents: float) -> bool:
    """Whether the exponentials of numbers up to `exponents`, either sign, and their sums fit."""
    return all(abs(exponent) <= _LARGEST_EXPONENT for exponent in exponents)


def log_or_zero(sums: Tensor) -> Tensor:
    """`log s` of sums of exponentials; 0 where nothing was summed."""
    return ops.log(ops.where(sums > 0.0, sums, 1.0))


def masked_exp(exponents: Tensor, mask: Tensor) -> Tensor:
    """`exp(e)` where the bool `mask` keeps it, 0 elsewhere."""

    @with_gradient
    def of_kept(exponents: Tensor) -> WithGradient:
        powers = ops.where(mask, ops.exp(exponents), 0.0)
        return powers, lambda upstream: upstream * powers

    return of_kept(exponents)


def masked_sum(values: Tensor, mask: Tensor) -> Tensor:
    """Sum over the last axis of the `values` that the bool `mask` keeps."""

    @with_gradient
    def of_kept(values: Tensor) -> WithGradient:
        total = ops.sum(ops.where(mask, values, 0.0), axis=-1)
        return total, lambda upstream: ops.where(mask, upstream[..., None], 0.0)

    return of_kept(values)


def count(mask: Tensor, dtype: str) -> Tensor:
    """How many entries of the bool `mask` are true along the last axis, as `dtype`."""
    return ops.sum(ops.cast(mask, dtype), axis=-1)


def log_one_plus_sum_exp(exponents: Tensor, mask: Tensor) -> Tensor:
    """`log(1 + Σ_{mask} exp(e))` over the last axis, without overflow; 0 where nothing is kept."""
    return ops.softplus(_log_sum_exp(exponents, mask))


def log_sum_exp(exponents: Tensor, mask: Tensor) -> Tensor:
    """`log Σ_{mask} exp(e)` over the last axis, without overflow; 0 where nothing is kept."""
    logarithm = _log_sum_exp(exponents, mask)
    some = ops.broadcast_to(ops.any(mask, axis=-1), ops.shape(logarithm))
    return ops.where(some, logarithm, 0.0)


def _log_sum_exp(exponents: Tensor, mask: Tensor) -> Tensor:
    """`log Σ_{mask} exp(e)`, around -1e30 where nothing is kept.

    By the softmax, which backends compute in one pass, and which is its gradient.
    """

    @with_gradient
    def of_kept(exponents: Tensor) -> WithGradient:
        logarithm, shares = log_sum_exp_and_shares(only(exponents, mask))
        return logarithm, lambda upstream: upstream[..., None] * shares

    return of_kept(exponents)


def log_add_exp(a: Tensor, b: Tensor) -> Tensor:
    """`log(exp(a) + exp(b))` with a gradient that is smooth where a = b, too.

    Not `ops.logaddexp`, which Keras computes in float32 on JAX.
    """
    return a + ops.softplus(b - a)


def mean(values: Tensor) -> Tensor:
    """The mean of all numbers of a tensor.

    Not `ops.mean`, which Keras computes in float32 on JAX.
    """
    return ops.sum(values) / ops.cast(ops.size(values), values.dtype)


def kept_weights(kept: Tensor, dtype: str) -> Tensor:
    """Weights `[n]` that turn Keras' mean over all anchors into the mean over the `kept` ones.

    n / n_kept for an anchor that the bool `kept` `[n]` keeps, with both counted over all replicas,
    and 0 for the others; all 0 where none is kept.
    """
    kept = ops.cast(kept, dtype)
    of_all, _ = gather_candidates(kept)
    total = ops.cast(ops.shape(of_all)[0], dtype)
    return kept * (total / at_least(ops.sum(of_all), 1.0))


def mean_over_pairs(sums: Tensor, weights: Tensor) -> Tensor:
    """Values `[n]` whose Keras mean over anchors is a mean over the pairs of the global batch.

    Args:
        sums: each anchor's sum over its pairs, `[n]`.
        weights: each anchor's number (or weight) of pairs, `[n]`.

    Returns:
        `sums · n / Σ weights`, n and the sum over all replicas; 0 where there are no pairs.
    """
    of_all, _ = gather_candidates(weights)
    total = ops.sum(of_all)
    anchors = ops.cast(ops.shape(of_all)[0], weights.dtype)
    return sums * ops.where(total > 0, anchors / ops.where(total > 0, total, 1.0), 0.0)


def pair_means(values: Tensor, kept: Tensor) -> Tensor:
    """Values `[n]` whose Keras mean over anchors is that of `values` `[a, c]` over `kept` pairs."""
    return mean_over_pairs(masked_sum(values, kept), count(kept, values.dtype))
