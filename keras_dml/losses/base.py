"""The base class of all losses."""

import functools
import inspect
from typing import Any, ClassVar, TypedDict, cast

import keras
from keras import ops

from keras_dml._backend.configured import Configured
from keras_dml._backend.replicas import gather_candidates, place_among_replicas
from keras_dml._common.errors import ArgumentError, ArgumentTypeError, argument_error
from keras_dml._common.types import Parts, Tensor, TensorLike
from keras_dml._pairwise.arithmetic import are_finite
from keras_dml._pairwise.arrays import (
    are_apart,
    as_embeddings,
    as_labels,
    check_embeddings,
    check_order,
    check_rows,
    checked_class_ids,
)
from keras_dml._pairwise.pairs import Candidates
from keras_dml.losses.reduction import reduced


class LossOptions(TypedDict, total=False):
    """The arguments of `EmbeddingLoss`, for the constructors of losses."""

    reduction: str | None
    name: str | None
    dtype: str | None


class EmbeddingLoss(Configured, keras.losses.Loss):
    """A metric-learning loss: the sum of a tightness part and a contrastive part.

    Call it as `loss(class_ids, embeddings)`, or pass it to `model.compile(loss=...)`. Integer class
    ids are compared as integers, so 64-bit hashes work. (JAX without `jax_enable_x64` has 32 bits.
    A direct call refuses larger ids, and `fit` truncates them before the loss sees them.) Class ids
    that are floats must be whole numbers that their dtype can represent: below 2²⁴ for float32.

    A batch without images has the loss 0 and no gradient.

    Sample weights and Keras masks weight anchors. An image with weight 0 has no loss value, but it
    stays a candidate for other anchors and receives a gradient from them. To exclude an image,
    remove it from the batch.

    Examples:
        >>> labels, z = np.array([0, 0, 1, 1]), np.eye(4, dtype="float32")
        >>> tightness, contrastive = keras_dml.losses.SupConLoss(reduction=None).parts(labels, z)
        >>> np.round(tightness + contrastive, 3)
        array([1.099, 1.099, 1.099, 1.099], dtype=float32)

    Args:
        reduction: A Keras reduction. The default `"sum_over_batch_size"` is the mean over anchors.
            Within a `tf.distribute` strategy, means are divided by the number of replicas, or by
            the sum of the weights or masks of all replicas, so the sums over the replicas equal the
            value and the gradient of the global batch.
        name: Name of the loss. None is `default_name`, or without one the name of the class.
        dtype: Dtype of the arithmetic, `"float32"` or `"float64"`. The default is float32, or
            float64 if `keras.config.floatx()` is float64. Half precision would merge distances, so
            losses of mixed-precision models stay in float32.

    Attributes:
        kind: What the loss trains. `"pairs"`: embeddings. `"classifier"`: the logits of a
            classifier on the embeddings. `"beside_classifier"`: embeddings, next to a classifier
            with its own cross-entropy. `"proxies"`: the cosines of a `keras_dml.layers.ProxyHead`.
            `"statistics_network"`: embeddings in alternation with a network that the loss uses
            (`keras_dml.models.RankMI`).
        boundaries: The number of learned boundaries after each embedding, from a layer
            `keras_dml.layers.Boundary`.
        takes_memory: Whether images outside the batch can be candidates: another set (`between`),
            or rows of earlier batches (`keras_dml.models.CrossBatchMemory`). True for losses that
            compare only anchors with candidates, and neither candidates with each other nor with
            sums over classes.
        measured: Names of methods `(y_true, y_pred) -> numbers` that `keras_dml.metrics.LossPart`
            can record in addition to the two parts.
        default_name: The `name` of a registered loss.

    Raises:
        ValueError: Embeddings are not finite or not `[n, d]`. Class ids are missing, NaN, not
            whole, too large for their dtype, or not `[n]` or `[n, 1]`. The two numbers of rows
            differ. Or `dtype` is a half precision. A compiled graph cannot raise, and there the
            loss is NaN.

    Reference: Boudiaf et al., "A Unifying Mutual Information View of Metric Learning:
    Cross-Entropy vs. Pairwise Losses", ECCV 2020, Table 2.
    """

    kind: ClassVar[str] = "pairs"
    boundaries: int = 0
    takes_memory: ClassVar[bool] = False
    measured: ClassVar[tuple[str, ...]] = ()
    default_name: ClassVar[str | None] = None

    def __init__(
        self,
        reduction: str | None = "sum_over_batch_size",
        *,
        name: str | None = None,
        dtype: str | None = None,
    ) -> None:
        if dtype is None and keras.config.floatx() in ("float16", "bfloat16"):
            dtype = "float32"
        super().__init__(name=name or self.default_name, reduction=reduction, dtype=dtype)
        if self.dtype not in ("float32", "float64"):
            advice = "Half precision merges distances."
            raise argument_error("dtype", "float32 or float64", dtype, advice=advice)

    def __call__(
        self,
        y_true: TensorLike,
        y_pred: TensorLike,
        sample_weight: TensorLike | None = None,
        candidates: Candidates | None = None,
    ) -> Tensor:
        """Compute the reduced loss. Integers in `y_true` stay integers."""
        check_order(y_true, y_pred)
        given_embeddings = as_embeddings(y_pred)
        with keras.name_scope(self.name):
            embeddings = ops.cast(given_embeddings, self.dtype)
            values = self.call(y_true, embeddings, *given(candidates))
        # Keras reads the mask of the embeddings that the model returned.
        return reduced(self, values, given_embeddings, sample_weight)

    def call(
        self, y_true: TensorLike, y_pred: TensorLike, candidates: Candidates | None = None
    ) -> Tensor:
        """Compute the loss of each anchor, `[n]`."""
        labels, embeddings = self._checked(y_true, y_pred)
        if _is_empty(embeddings):
            return ops.sum(embeddings, axis=-1)
        sound = self.are_sound(labels, embeddings)
        return _nan_unless(sound, self.compute_loss(labels, embeddings, *given(candidates)))

    def parts(
        self, y_true: TensorLike, y_pred: TensorLike, candidates: Candidates | None = None
    ) -> Parts:
        """Compute the tightness part and the contrastive part of each anchor.

        Args:
            y_true: Class ids, `[n]` or `[n, 1]`, integer or float.
            y_pred: Embeddings (or logits) `[n, d]`.
            candidates: The candidates of a loss that `takes_memory`. None: the images of the batch.

        Returns:
            `(tightness, contrastive)`, each `[n]`. Their sum is the loss.
        """
        labels, embeddings = self._checked(y_true, y_pred)
        if _is_empty(embeddings):
            return ops.sum(embeddings, axis=-1), ops.sum(embeddings, axis=-1)
        sound = self.are_sound(labels, embeddings)
        tightness, contrastive = self.compute_parts(labels, embeddings, *given(candidates))
        return _nan_unless(sound, tightness), _nan_unless(sound, contrastive)

    def between(
        self,
        query_labels: "TensorLike",
        queries: "TensorLike",
        candidate_labels: "TensorLike",
        candidates: "TensorLike",
        sample_weight: "TensorLike | None" = None,
        *,
        scale: "Tensor | float | None" = None,
        bias: "Tensor | float | None" = None,
    ) -> Tensor:
        """Compute the reduced loss of queries against candidates of another set.

        No query is one of the candidates. With `tf.distribute`, candidates come from all replicas.
        Gradients reach both sets.

        Examples:
            >>> loss = keras_dml.losses.NTXentLoss(temperature=1.0)
            >>> photos, catalog = np.eye(2, dtype="float32"), np.eye(2, dtype="float32")
            >>> round(float(loss.between([0, 1], photos, [0, 1], catalog)), 3)
            0.313

        Args:
            query_labels: Class ids `[q]`, or the labels of the relation, q rows.
            queries: Embeddings `[q, d]`.
            candidate_labels: Class ids `[c]`, or the labels of the relation, c rows.
            candidates: Embeddings `[c, d]`.
            sample_weight: Weight of each query, `[q]`, or None.
            scale: A factor of the similarities, for losses of similarities. It can be learned.
            bias: A number that is added to the similarities times `scale`. It can be learned.
                Mining sees the similarities without the factor and without the bias.

        Raises:
            TypeError: The loss compares candidates with each other (`takes_memory` is False).
            ValueError: As in the call, d differs between the two sets, or a loss of distances has a
                `scale` or a `bias`.
        """
        self.check_candidates()
        labels, embeddings = self._checked(candidate_labels, candidates)
        queries = as_embeddings(queries)
        width = ops.shape(queries)[-1]
        if embeddings.shape[-1] != width:
            raise ArgumentError(
                "queries and candidates must have embeddings of the same length, but got "
                f"{width} and {embeddings.shape[-1]}."
            )
        rows, _ = gather_candidates(embeddings)
        row_labels, _ = gather_candidates(labels)
        filled = ops.ones(ops.shape(rows)[:1], "bool")
        own = ops.full(ops.shape(queries)[:1], -1, "int32")
        others = Candidates(rows, row_labels, filled, own, scale, bias)
        value = self(query_labels, queries, sample_weight, others)
        # A compiled graph cannot raise an error for candidates that are not finite.
        return ops.where(self.are_sound(labels, embeddings), value, float("nan"))

    def _checked(self, y_true: TensorLike, y_pred: TensorLike) -> tuple[Tensor, Tensor]:
        labels = self.checked_labels(y_true)
        embeddings = ops.cast(as_embeddings(y_pred), self.dtype)
        check_embeddings(embeddings)
        check_rows(labels, embeddings)
        return labels, embeddings

    def checked_labels(self, y_true: TensorLike) -> Tensor:
        """Convert `y_true` to class ids `[n]`. Override this for other labels."""
        return checked_class_ids(as_labels(y_true))

    def are_valid(self, labels: Tensor) -> Tensor | bool:
        """Return whether checked labels are valid, for graphs, which cannot raise errors."""
        return are_apart(labels)

    def are_sound(self, labels: Tensor, embeddings: Tensor) -> Tensor:
        """Return whether the batch, or each image, can have a loss: bool `[]` or `[n]`."""
        return ops.logical_and(self.are_valid(labels), are_finite(embeddings))

    def compute_loss(self, class_ids: Tensor, embeddings: Tensor) -> Tensor:
        """Compute the loss `[n]`. Override this if it is more exact than the sum of the parts."""
        tightness, contrastive = self.compute_parts(class_ids, embeddings)
        return tightness + contrastive

    def compute_parts(self, class_ids: Tensor, embeddings: Tensor) -> Parts:
        """Compute the two parts from checked class ids `[n]` and embeddings `[n, d]`."""
        raise NotImplementedError

    def check_candidates(self) -> None:
        """Raise an error if images outside the batch cannot be candidates.

        Raises:
            TypeError: `takes_memory` is False, or a method of a subclass does not take candidates.
        """
        if not self.takes_memory:
            wanted = "a loss that compares anchors only with candidates"
            advice = "It must not use pairs of candidates, class sums, or learned classes."
            raise argument_error("loss", wanted, self, ArgumentTypeError, advice=advice)
        _check_signatures(cast(Any, type(self)))  # mypy does not accept a class as hashable

    def check_memory(self) -> None:
        """Raise an error if rows of earlier batches, which are constants, cannot be candidates.

        Raises:
            TypeError: As in `check_candidates`.
        """
        self.check_candidates()


def check_compared_loss(loss: object) -> EmbeddingLoss:
    """Return a loss that can compare anchors with candidates outside the batch.

    Raises:
        TypeError: It is not such a loss.
    """
    if not isinstance(loss, EmbeddingLoss):
        wanted = "a loss object of keras_dml.losses that compares pairs"
        raise argument_error("loss", wanted, loss, ArgumentTypeError)
    loss.check_candidates()
    return loss


def given(candidates: Candidates | None) -> tuple[Candidates, ...]:
    """Return the last argument of methods that losses without candidates do not have."""
    return () if candidates is None else (candidates,)


def _is_empty(embeddings: Tensor) -> bool:
    # Replicas exchange rows, so replicas without rows must continue, too.
    return embeddings.shape[0] == 0 and place_among_replicas()[1] == 1


def _nan_unless(sound: Tensor, values: Tensor) -> Tensor:
    # Masks and comparisons would turn NaN embeddings or merged classes into a plausible number.
    return ops.where(sound, values, ops.full_like(values, float("nan")))


@functools.cache
def _check_signatures(cls: type[EmbeddingLoss]) -> None:
    """Raise an error if a method of a class does not take candidates."""
    for name in ("call", "parts", "compute_loss", "compute_parts", "pairs_of"):
        signature = inspect.signature(getattr(cls, name, lambda *batch: None))
        try:
            signature.bind("self", "labels", "embeddings", "candidates")
        except TypeError as error:
            raise ArgumentTypeError(
                f"{name} of {cls.__name__} must take (labels, embeddings, candidates=None) for "
                f"candidates outside the batch, but got the arguments {signature}. Pass the "
                f"candidates to super().{name}, or override compute_pair_loss and "
                "compute_pair_parts."
            ) from error
