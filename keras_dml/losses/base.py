"""The registry and the base classes of losses: of embeddings, of pairs, and of class cosines."""

import dataclasses
import inspect
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, TypedDict, TypeVar

import keras
import numpy as np
from keras import ops

from keras_dml import relations
from keras_dml._backend import private
from keras_dml._backend.configured import Configured
from keras_dml._backend.replicas import (
    gather_candidates,
    place_among_replicas,
    sum_over_replicas,
)
from keras_dml._common.errors import ArgumentError, ArgumentTypeError, argument_error, shape_error
from keras_dml._common.types import Config, Parts, Tensor, TensorLike
from keras_dml._pairwise.arithmetic import are_finite
from keras_dml._pairwise.arrays import (
    are_apart,
    as_embeddings,
    as_labels,
    check_class_range,
    check_embeddings,
    check_order,
    check_rows,
    checked_class_ids,
    checked_weights,
    known_numbers,
    known_shape,
    one_hot,
)
from keras_dml._pairwise.pairs import Candidates, Pairs, Strategy, normalize
from keras_dml.relations import RelationLike

# Rounding in half precision can exceed 1.
_LARGEST_COSINE = 1.01

REGISTERED: dict[str, type[Any]] = {}
"""Classes by name, in the order in which their modules were imported."""

Class = TypeVar("Class", bound=type[Any])


def register(name: str) -> Callable[[Class], Class]:
    """Return a decorator that registers a class as the loss of a name, and with Keras.

    The name is also the default `name` of the loss, unless the class sets `default_name`.

    Raises:
        ValueError: Another class has the name.
    """

    def add(cls: Class) -> Class:
        other = REGISTERED.get(name, cls)
        if (other.__module__, other.__qualname__) != (cls.__module__, cls.__qualname__):
            raise ValueError(
                f"name must be new, but got {name!r} for {cls.__qualname__}. "
                f"{other.__qualname__} of {other.__module__} has this name."
            )
        REGISTERED[name] = cls
        if "default_name" not in vars(cls):
            cls.default_name = name
        return keras.saving.register_keras_serializable("keras_dml")(cls)

    return add


class LossOptions(TypedDict, total=False):
    """The arguments of `EmbeddingLoss`, for the constructors of losses."""

    reduction: str | None
    name: str | None
    dtype: str | None


class PairOptions(LossOptions, total=False):
    """The arguments of `PairLoss`, for the constructors of losses."""

    mining: Strategy | Sequence[Strategy] | None
    relation: RelationLike


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
            with its own cross-entropy. `"proxies"`: the cosines of a `keras_dml.models.ProxyHead`.
            `"statistics_network"`: embeddings in alternation with a network that the loss uses
            (`keras_dml.models.RankMI`).
        boundaries: The number of learned boundaries after each embedding, from a layer
            `keras_dml.models.Boundary`.
        takes_memory: Whether images outside the batch can be candidates: another set (`between`),
            or rows of earlier batches (`keras_dml.models.CrossBatchMemory`). True for losses that
            compare only anchors with candidates, and neither candidates with each other nor with
            sums over classes.
        measured: Names of methods `(y_true, y_pred) -> numbers` that `keras_dml.metrics.LossPart`
            can record in addition to the two parts.
        default_name: The `name` of a registered loss.
        trained_by: Module and name of the class whose constructor has the command-line arguments of
            this loss, a literal. None if the loss has them.

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
    trained_by: ClassVar[str | None] = None
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
        labels = self.checked_labels(y_true)
        loss = LabelsAsTheyAre(self, labels, *_given(candidates))
        return loss((), as_embeddings(y_pred), sample_weight)

    def call(
        self, y_true: TensorLike, y_pred: TensorLike, candidates: Candidates | None = None
    ) -> Tensor:
        """Compute the loss of each anchor, `[n]`."""
        return self._evaluated(
            lambda *batch: (self.compute_loss(*batch),), y_true, y_pred, candidates
        )[0]

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
        tightness, contrastive = self._evaluated(self.compute_parts, y_true, y_pred, candidates)
        return tightness, contrastive

    def between(
        self,
        query_labels: TensorLike,
        queries: TensorLike,
        candidate_labels: TensorLike,
        candidates: TensorLike,
        sample_weight: TensorLike | None = None,
        *,
        scale: Tensor | float | None = None,
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
                Mining sees the similarities without the factor.

        Raises:
            TypeError: The loss compares candidates with each other (`takes_memory` is False).
            ValueError: As in the call, d differs between the two sets, or a loss of distances has a
                `scale`.
        """
        self.check_candidates()
        labels, embeddings = self._checked(candidate_labels, candidates)
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
        others = Candidates(rows, row_labels, filled, own, scale)
        value = self(query_labels, queries, sample_weight, others)
        # A compiled graph cannot raise an error for candidates that are not finite.
        return ops.where(self.are_sound(labels, embeddings), value, float("nan"))

    def _evaluated(
        self,
        compute: Callable[..., tuple[Tensor, ...]],
        y_true: TensorLike,
        y_pred: TensorLike,
        candidates: Candidates | None = None,
    ) -> tuple[Tensor, ...]:
        """Compute values `[n]` from a checked batch: NaN for an invalid one, 0 for an empty one."""
        labels, embeddings = self._checked(y_true, y_pred)
        # Replicas exchange rows, so replicas without rows must continue, too.
        if embeddings.shape[0] == 0 and place_among_replicas()[1] == 1:
            return ops.sum(embeddings, axis=-1), ops.sum(embeddings, axis=-1)
        # Masks and comparisons would turn NaN embeddings or merged classes into a plausible number.
        sound = self.are_sound(labels, embeddings)
        values = compute(labels, embeddings, *_given(candidates))
        return tuple(ops.where(sound, each, ops.full_like(each, float("nan"))) for each in values)

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
        for name in ("call", "parts", "compute_loss", "compute_parts", "pairs_of"):
            signature = inspect.signature(getattr(self, name, lambda *batch: None))
            try:
                signature.bind("labels", "embeddings", "candidates")
            except TypeError as error:
                raise ArgumentTypeError(
                    f"{name} of {type(self).__name__} must take (labels, embeddings, "
                    "candidates=None) for candidates outside the batch, but got the arguments "
                    f"{signature}. Pass the candidates to super().{name}, or "
                    "override compute_pair_loss and compute_pair_parts."
                ) from error

    def check_memory(self) -> None:
        """Raise an error if rows of earlier batches, which are constants, cannot be candidates.

        Raises:
            TypeError: As in `check_candidates`.
        """
        self.check_candidates()


class PairLoss(EmbeddingLoss):
    """A loss over pairs: anchors of this replica against the candidates of all replicas.

    A subclass overrides `compute_pair_parts`. Embeddings are l2-normalized unless the subclass sets
    `normalize` to False.

    Examples:
        >>> class AlignmentAndUniformity(PairLoss):
        ...     def compute_pair_parts(self, pairs):
        ...         squares, ops = pairs.squared_distances(), keras.ops
        ...         near = ops.where(pairs.positive, squares, 0.0)
        ...         spread = ops.where(pairs.others(), ops.exp(-2.0 * squares), 0.0)
        ...         return ops.sum(near, axis=-1), ops.log(ops.mean(spread, axis=-1))
        >>> loss = AlignmentAndUniformity()
        >>> round(float(loss(np.array([0, 0, 1, 1]), np.eye(4, dtype="float32"))), 3)
        -2.288

    Args:
        mining: The pairs that the loss sees: a strategy of `keras_dml.mining`, a function from
            (similarities, positive, negative) to the two masks to keep, or a list of them, applied
            in order. None keeps all pairs. Not every loss has this argument.
        relation: Which candidates are positives and negatives: a relation of
            `keras_dml.relations`, or a function from the labels of anchors and candidates to the
            two masks. `y_true` is then its labels. None: class ids (`SameClass`). Not every loss
            has this argument.
        reduction, name, dtype: As in `EmbeddingLoss`.

    Attributes:
        normalize: Whether the pairs have unit embeddings.
        fused: Whether the loss uses a fused implementation, which takes less memory than its
            formula. True only for losses that have one. Set it to False on a loss to use the
            formula, which can be differentiated twice.

    Raises:
        TypeError: `mining` is neither a strategy, nor a function, nor a list of them.
        ValueError: As in `EmbeddingLoss`, or the masks of a mining function have another shape.
    """

    takes_memory: ClassVar[bool] = True
    normalize = True
    fused = False
    # Whether a batch with positives was seen, so that no further batch is looked at.
    _has_positives = False

    def __init__(
        self,
        reduction: str | None = "sum_over_batch_size",
        *,
        name: str | None = None,
        dtype: str | None = None,
        mining: Strategy | Sequence[Strategy] | None = None,
        relation: RelationLike = None,
    ) -> None:
        super().__init__(reduction=reduction, name=name, dtype=dtype)
        self.strategies = _checked_mining(mining)
        self.relation = relations.get(relation)

    def checked_labels(self, y_true: TensorLike) -> Tensor:
        """Convert `y_true` to the relation's labels, n rows."""
        return self.relation.checked_labels(y_true)

    def are_valid(self, labels: Tensor) -> Tensor | bool:
        """Return whether the labels are valid for the relation."""
        return self.relation.are_valid(labels)

    def compute_loss(
        self, class_ids: Tensor, embeddings: Tensor, candidates: Candidates | None = None
    ) -> Tensor:
        """Compute the loss `[n]` of checked labels and embeddings."""
        return self.compute_pair_loss(self.pairs_of(class_ids, embeddings, *_given(candidates)))

    def compute_parts(
        self, class_ids: Tensor, embeddings: Tensor, candidates: Candidates | None = None
    ) -> Parts:
        """Compute the two parts `[n]` of the loss of `compute_loss`."""
        return self.compute_pair_parts(self.pairs_of(class_ids, embeddings, *_given(candidates)))

    def pairs_of(
        self, class_ids: Tensor, embeddings: Tensor, candidates: Candidates | None = None
    ) -> Pairs:
        """Prepare the embeddings `[n, d]`, pair them, and apply the mining strategies.

        The candidates are the embeddings of all replicas, or images outside the batch.
        """
        embeddings = self.prepare(embeddings)
        if candidates is None:
            if self.relation.of_classes and not self._has_positives:
                self._has_positives = _has_positives(class_ids)
            return self.mined(Pairs.of_batch(class_ids, embeddings, self.relation.compare))
        self._has_positives = True  # they can be outside the batch
        # The embeddings can be a prefix of the candidates.
        rows = candidates.embeddings[:, : embeddings.shape[1]]
        rows = self.prepare(ops.cast(rows, embeddings.dtype))
        candidates = dataclasses.replace(candidates, embeddings=rows)
        pairs = Pairs.of_candidates(class_ids, embeddings, candidates, self.relation.compare)
        return dataclasses.replace(self.mined(pairs), scale=candidates.scale)

    def mined(self, pairs: Pairs) -> Pairs:
        """Return the pairs that the mining strategies keep."""
        return pairs.mined(self.strategies, unit=self.normalize)

    def prepare(self, embeddings: Tensor) -> Tensor:
        """Return the embeddings that the pairs have: l2-normalized if `normalize` is True."""
        return normalize(embeddings) if self.normalize else embeddings

    def compute_pair_loss(self, pairs: Pairs) -> Tensor:
        """Compute the loss `[n]`. Override this if it is more exact than the sum of the parts."""
        tightness, contrastive = self.compute_pair_parts(pairs)
        return tightness + contrastive

    def compute_pair_parts(self, pairs: Pairs) -> Parts:
        """Compute the two parts `[n]` from the pairs of a batch."""
        raise NotImplementedError

    def get_config(self) -> Config:
        """Return the constructor's arguments."""
        config = super().get_config()
        if isinstance(self.relation, relations.SameClass):
            config.pop("relation", None)
        if self.strategies:
            config["mining"] = keras.saving.serialize_keras_object(list(self.strategies))
        return config


class WholeBatchLoss(PairLoss):
    """A loss over pairs that does more than compare each anchor with its candidates.

    For example, it compares candidates with each other. So it has neither mining nor a relation,
    and rows of earlier batches cannot be its candidates.

    Args:
        reduction, name, dtype: As in `EmbeddingLoss`.
    """

    takes_memory = False

    def __init__(
        self,
        reduction: str | None = "sum_over_batch_size",
        *,
        name: str | None = None,
        dtype: str | None = None,
    ) -> None:
        super().__init__(reduction, name=name, dtype=dtype)


class ProxyLoss(EmbeddingLoss):
    """A loss on the cosines of each image to K classes, from `keras_dml.models.ProxyHead`.

    Call it as `loss(class_ids, cosines)` with class ids `[n]` in 0 … K − 1 and cosines `[n, K]`.
    The loss has no weights, because the head contains the proxies.

    Examples:
        >>> head = keras_dml.models.ProxyHead(num_classes=3)
        >>> cosines = head(np.eye(4, dtype="float32"))
        >>> isinstance(keras_dml.losses.NormSoftmaxLoss(), ProxyLoss), tuple(cosines.shape)
        (True, (4, 3))

    Args:
        reduction, name, dtype: As in `EmbeddingLoss`.

    Attributes:
        head: Arguments of the loss's head that differ from the defaults of `ProxyHead`.

    Raises:
        ValueError: There are fewer than two classes, a class id is out of range, `y_pred` has
            numbers beyond 1 (embeddings in place of cosines), or as in `EmbeddingLoss`. A compiled
            graph cannot raise, and there the loss of such an image is NaN.
    """

    kind = "proxies"
    head: ClassVar[Mapping[str, int | float | str]] = {}

    def are_sound(self, labels: Tensor, embeddings: Tensor) -> Tensor:
        """Return which images `[n]` have cosines and one of the K classes."""
        are_known = ops.any(one_hot(labels, embeddings.shape[1]), axis=-1)
        are_cosines = ops.all(ops.abs(embeddings) <= _LARGEST_COSINE, axis=-1)
        sound = ops.logical_and(are_known, are_cosines)
        return ops.logical_and(sound, super().are_sound(labels, embeddings))

    def compute_loss(self, class_ids: Tensor, embeddings: Tensor) -> Tensor:
        """Compute the loss `[n]` from class ids `[n]` and cosines `[n, K]`."""
        return self.compute_cosine_loss(_own_class(class_ids, embeddings), embeddings)

    def compute_parts(self, class_ids: Tensor, embeddings: Tensor) -> Parts:
        """Compute the two parts from class ids `[n]` and cosines `[n, K]`."""
        return self.compute_cosine_parts(_own_class(class_ids, embeddings), embeddings)

    def compute_cosine_loss(self, own: Tensor, cosines: Tensor) -> Tensor:
        """Compute the loss `[n]`. Override this if it is more exact than the sum of the parts."""
        tightness, contrastive = self.compute_cosine_parts(own, cosines)
        return tightness + contrastive

    def compute_cosine_parts(self, own: Tensor, cosines: Tensor) -> Parts:
        """Compute the two parts `[n]`.

        Args:
            own: bool `[n, K]`, True at each image's class.
            cosines: `[n, K]`.
        """
        raise NotImplementedError


class LabelsAsTheyAre(keras.losses.Loss):
    """A loss with fixed labels, which Keras would otherwise cast to floats.

    Keras' reduction, sample weights, and masks apply. Call it with `()` as `y_true`.

    Args:
        loss: A Keras loss.
        labels: The labels that the `call` of `loss` receives.
        more: Further arguments of `call`, after the embeddings.
    """

    def __init__(self, loss: keras.losses.Loss, labels: TensorLike, *more: Any) -> None:
        # On PyTorch, Keras divides by the number of rows in float32.
        self.divides = (
            keras.backend.backend() == "torch"
            and loss.dtype == "float64"
            and loss.reduction in ("sum_over_batch_size", "mean")
        )
        reduction = None if self.divides else loss.reduction
        super().__init__(name=loss.name, reduction=reduction, dtype=loss.dtype)
        self.loss = loss
        self.labels = labels
        self.more = more

    def __call__(
        self, y_true: TensorLike, y_pred: TensorLike, sample_weight: TensorLike | None = None
    ) -> Tensor:
        """Compute the reduced loss with weights that are numbers."""
        if sample_weight is not None:
            images = (known_shape(y_pred) or (None,))[0]
            sample_weight = checked_weights(sample_weight, images)
        if self.reduction == "mean_with_sample_weight":
            return self._mean(y_pred, sample_weight, of_weights=True)
        # Keras divides by the images of this replica that the mask keeps.
        is_mean = self.reduction in ("sum_over_batch_size", "mean")
        if is_mean and private.get_keras_mask(y_pred) is not None and place_among_replicas()[1] > 1:
            return self._mean(y_pred, sample_weight, of_weights=False)
        value = super().__call__(y_true, y_pred, sample_weight)
        if self.divides:
            return ops.sum(value) / max(value.shape[0], 1)
        # Keras does not reduce a batch without rows.
        reduces = self.reduction not in (None, "none")
        return ops.sum(value) if reduces and tuple(value.shape) == (0,) else value

    def _mean(
        self, y_pred: TensorLike, sample_weight: TensorLike | None, of_weights: bool
    ) -> Tensor:
        """Compute this replica's part of a mean over the images or weights of all replicas."""
        self.reduction = "sum"
        total = super().__call__((), y_pred, sample_weight)
        ones = _Ones(reduction="sum", dtype=self.dtype)
        weights = ones((), y_pred, sample_weight if of_weights else None)
        everywhere = sum_over_replicas(weights)
        return ops.divide_no_nan(ops.sum(total), everywhere)

    def call(self, y_true: TensorLike, y_pred: TensorLike) -> Tensor:
        """Compute the loss of each anchor from the fixed labels."""
        return self.loss.call(self.labels, y_pred, *self.more)


class _Ones(keras.losses.Loss):
    """A loss of 1 for each image, whose sum is the sum of the weights that Keras applies."""

    def call(self, y_true: TensorLike, y_pred: TensorLike) -> Tensor:
        """Return 1 for each image."""
        return ops.ones(ops.shape(y_pred)[:1], self.dtype)


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


def _has_positives(class_ids: Tensor) -> bool:
    """Return whether two class ids are equal, and warn once if they are known and none are."""
    known = known_numbers(class_ids) if place_among_replicas()[1] == 1 else None
    if known is None or len(known) < 2:
        return False
    if len(np.unique(known)) < len(known):
        return True
    # Python shows equal warnings of one line once.
    warnings.warn(
        "A batch had no two images of a class, so a loss over pairs had no positive pairs in it. "
        "Use pipelines.BalancedSampler with images_per_class of at least 2.",
        stacklevel=2,
    )
    return False


def _given(candidates: Candidates | None) -> tuple[Candidates, ...]:
    """Return the last argument of methods that losses without candidates do not have."""
    return () if candidates is None else (candidates,)


def _checked_mining(mining: Strategy | Sequence[Strategy] | None) -> tuple[Strategy, ...]:
    """Return the strategies in order, or raise `TypeError`."""
    strategies = tuple(mining) if isinstance(mining, (list, tuple)) else (mining,)
    for strategy in strategies if mining is not None else ():
        if isinstance(strategy, (type, keras.losses.Loss)) or not (
            callable(strategy) or hasattr(strategy, "masks")
        ):
            wanted = (
                "a strategy of keras_dml.mining such as Hard(), a function from (similarities, "
                "positive, negative) to the two masks of the pairs to keep, or a list of these"
            )
            raise argument_error("mining", wanted, mining, ArgumentTypeError)
    return () if mining is None else strategies


def _own_class(class_ids: Tensor, cosines: Tensor) -> Tensor:
    num_classes = cosines.shape[1]
    if num_classes is None or num_classes < 2:
        raise shape_error("y_pred", "the cosines to at least 2 classes", cosines)
    # On PyTorch, and eagerly on JAX, a training step knows the cosines without their gradient.
    sizes = ops.abs(ops.stop_gradient(cosines))
    finite = ops.where(ops.isfinite(sizes), sizes, ops.zeros_like(sizes))
    largest = known_numbers(ops.max(finite)) if cosines.shape[0] else None
    if largest is not None and largest > _LARGEST_COSINE:
        raise ArgumentError(
            f"y_pred must be cosines to the classes, but got {largest} in absolute value. End the "
            "model with a keras_dml.models.ProxyHead instead of a Dense layer, or use the model "
            "that keras_dml.models.proxy_model(embedding, num_classes) returns."
        )
    check_class_range(class_ids, num_classes, "num_classes of keras_dml.models.proxy_model")
    return one_hot(class_ids, num_classes)
