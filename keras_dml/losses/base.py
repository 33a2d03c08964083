"""What every loss shares: its labels and embeddings, its two parts, its configuration."""

import dataclasses
from collections.abc import Sequence
from typing import ClassVar, Self

import keras
from keras import ops

from keras_dml._pairwise.distances import normalize
from keras_dml._pairwise.pairs import Memory, Pairs
from keras_dml.checks import (
    as_embeddings,
    check_embeddings,
    check_rows,
    check_sample_weight,
    checked_class_ids,
    numbers_of,
)
from keras_dml.class_ids import are_apart, as_labels
from keras_dml.distribute import place_among_replicas
from keras_dml.errors import ArgumentError, ArgumentTypeError
from keras_dml.matmul import matmul
from keras_dml.mining import Strategy, check_mining, mined, mining_from_config
from keras_dml.types import Config, Parts, Tensor, TensorLike


class EmbeddingLoss(keras.losses.Loss):
    """A metric-learning loss as a tightness part plus a contrastive part.

    Called as `loss(class_ids, embeddings)`; works in `model.compile(loss=...)`. Class ids that
    come as integers are compared as integers, hashes of 64 bits too. (JAX without `jax_enable_x64`
    has 32: a direct call refuses what they cannot hold, `fit` has cut it off before the loss.)
    Class ids that come as floats must be whole numbers, and small enough for their dtype: below 2²⁴
    in float32.

    A batch without images has a loss of 0, and no gradient.

    Sample weights and Keras' masks weigh anchors. An image of weight 0, or masked, has no value of
    its own, but stays a candidate: others are compared with it, and its embedding has a gradient
    from them. To leave an image out, leave it out of the batch.

    Examples:
        >>> labels, z = np.array([0, 0, 1, 1]), np.eye(4, dtype="float32")
        >>> tightness, contrastive = keras_dml.losses.SupConLoss(reduction=None).parts(labels, z)
        >>> np.round(tightness + contrastive, 3)
        array([1.099, 1.099, 1.099, 1.099], dtype=float32)

    Args:
        reduction: a Keras reduction, by default `"sum_over_batch_size"` (the mean over anchors).
            Within a `tf.distribute` strategy Keras divides means by the number of replicas, so
            that their sum, and the sum of the gradients, is that of the global batch.
        name: name of the loss.
        dtype: of the embeddings' arithmetic, float32 (the default, unless `keras.config.floatx()`
            is float64) or float64. Half precision would lose the differences between distances;
            models under a mixed-precision policy, and all where floatx is a half, keep their
            losses in float32.

    Attributes:
        kind: how a model is trained by it: `"pairs"`, by its embeddings alone (which may come from
            several levels, each with this loss); `"classifier"`, by the logits of a classifier over
            them; `"beside_classifier"`, by its embeddings while a classifier learns beside it;
            `"proxies"`, by the cosines of `keras_dml.models.ProxyHead` over them;
            `"statistics_network"`, in turns with a network that the loss is made of
            (`keras_dml.models.RankMI`).
        boundaries: how many learned boundaries it reads behind each embedding, those of a layer
            `keras_dml.models.Boundary`.
        takes_memory: whether it compares anchors with candidates alone, never candidates with each
            other or with sums over classes: then rows of earlier batches can be its candidates
            (`keras_dml.models.CrossBatchMemory`).
        trained_by: module and name of the class whose constructor takes what a command line gives
            for this loss, a literal; None: the loss's own.

    Raises:
        ValueError: for embeddings that are not finite, or class ids that are NaN, no whole
            numbers, or floats too large to be told apart (in a compiled graph, which cannot raise,
            the loss is then NaN), a half-precision `dtype`, class ids that are None, or not `[n]`
            or `[n, 1]`, embeddings that are not `[n, d]`, or different n.

    Reference: Boudiaf et al., "A Unifying Mutual Information View of Metric Learning:
    Cross-Entropy vs. Pairwise Losses", ECCV 2020, Table 2.
    """

    kind: ClassVar[str] = "pairs"
    boundaries: int = 0
    takes_memory: ClassVar[bool] = False
    trained_by: ClassVar[str | None] = None

    def __init__(
        self,
        reduction: str | None = "sum_over_batch_size",
        name: str | None = None,
        dtype: str | None = None,
    ) -> None:
        if dtype is None and keras.config.floatx() in ("float16", "bfloat16"):
            dtype = "float32"
        super().__init__(name=name, reduction=reduction, dtype=dtype)
        if self.dtype not in ("float32", "float64"):
            raise ArgumentError(
                "dtype must be float32 or float64, since half precision merges distances. "
                f"Received: dtype={dtype}"
            )

    def __call__(
        self, y_true: TensorLike, y_pred: TensorLike, sample_weight: TensorLike | None = None
    ) -> Tensor:
        """The reduced loss; integers in `y_true` stay integers."""
        labels, embeddings = as_labels(y_true), as_embeddings(y_pred)
        check_sample_weight(sample_weight, embeddings)
        return LabelsAsTheyAre(self, labels)((), embeddings, sample_weight)

    def call(self, y_true: TensorLike, y_pred: TensorLike) -> Tensor:
        """The loss of each anchor, `[n]`."""
        labels, embeddings = self._checked(y_true, y_pred)
        if _has_no_rows(embeddings):
            return ops.sum(embeddings, axis=-1)
        return _nan_unless_sound(self.compute_loss(labels, embeddings), labels, embeddings)

    def parts(self, y_true: TensorLike, y_pred: TensorLike) -> Parts:
        """The tightness and the contrastive part of each anchor.

        Args:
            y_true: class ids, `[n]` or `[n, 1]`, integer or float.
            y_pred: embeddings (or logits) `[n, d]`.

        Returns:
            `(tightness, contrastive)`, each `[n]`; their sum is the loss.
        """
        labels, embeddings = self._checked(y_true, y_pred)
        if _has_no_rows(embeddings):
            return ops.sum(embeddings, axis=-1), ops.sum(embeddings, axis=-1)
        tightness, contrastive = self.compute_parts(labels, embeddings)
        return (
            _nan_unless_sound(tightness, labels, embeddings),
            _nan_unless_sound(contrastive, labels, embeddings),
        )

    def _checked(self, y_true: TensorLike, y_pred: TensorLike) -> tuple[Tensor, Tensor]:
        labels = as_labels(y_true)
        embeddings = ops.convert_to_tensor(as_embeddings(y_pred), dtype=self.dtype)
        check_embeddings(embeddings)
        labels = self.checked_labels(labels)
        check_rows(labels, embeddings)
        return labels, embeddings

    def checked_labels(self, labels: Tensor) -> Tensor:
        """`y_true` as class ids `[n]`; a loss that takes other labels too overrides this."""
        return checked_class_ids(labels)

    def compute_loss(self, class_ids: Tensor, embeddings: Tensor) -> Tensor:
        """The loss `[n]`; overridden where it is more exact, or cheaper, than its parts' sum."""
        tightness, contrastive = self.compute_parts(class_ids, embeddings)
        return tightness + contrastive

    def compute_parts(self, class_ids: Tensor, embeddings: Tensor) -> Parts:
        """The two parts from checked class ids `[n]` and embeddings `[n, d]`."""
        raise NotImplementedError

    def check_memory(self) -> None:
        """Refuse what rows of earlier batches cannot be candidates of.

        Raises:
            TypeError: `takes_memory` is False.
        """
        if not self.takes_memory:
            raise ArgumentTypeError(
                "loss must compare anchors with candidates alone, for these to come from a memory, "
                "not candidates with each other, with class sums or with learned classes. "
                f"Received: loss={self!r}"
            )

    def compute_memory_loss(self, class_ids: Tensor, embeddings: Tensor, memory: Memory) -> Tensor:
        """The loss `[n]` of anchors against a memory, where the loss `takes_memory`."""
        raise NotImplementedError

    def compute_memory_parts(self, class_ids: Tensor, embeddings: Tensor, memory: Memory) -> Parts:
        """The two parts of `compute_memory_loss`."""
        raise NotImplementedError

    def get_config(self) -> Config:
        """The constructor's arguments."""
        return {**super().get_config(), "dtype": self.dtype}


class PairLoss(EmbeddingLoss):
    """A loss over pairs: anchors of this replica against the candidates of all replicas.

    Embeddings are compared l2-normalised, unless a loss sets `self.normalize` to False. One that
    compares candidates with each other says `takes_memory = False`.

    Examples:
        >>> loss = keras_dml.losses.SupConLoss(mining=keras_dml.mining.SemiHard())
        >>> isinstance(loss, PairLoss), len(loss.strategies)
        (True, 1)

    Args:
        mining: which of the pairs it sees: a strategy of `keras_dml.mining`, a function from
            (similarities, positive, negative) to the masks that stay, or a list of these, one after
            the other; None: all. Of the losses that take it.
        reduction, name, dtype: as in `EmbeddingLoss`.

    Raises:
        TypeError: `mining` is none of these.
        ValueError: as `EmbeddingLoss` does; when called, if a function's masks have another shape.
    """

    takes_memory: ClassVar[bool] = True
    normalize = True
    fused = True

    def __init__(
        self,
        reduction: str | None = "sum_over_batch_size",
        name: str | None = None,
        dtype: str | None = None,
        mining: Strategy | Sequence[Strategy] | None = None,
    ) -> None:
        super().__init__(reduction=reduction, name=name, dtype=dtype)
        self.strategies = check_mining(mining)

    def compute_loss(self, class_ids: Tensor, embeddings: Tensor) -> Tensor:
        """The loss `[n]` from checked class ids `[n]` and embeddings `[n, d]`."""
        return self.compute_pair_loss(self.pairs_of(class_ids, embeddings))

    def compute_parts(self, class_ids: Tensor, embeddings: Tensor) -> Parts:
        """The two parts from checked class ids `[n]` and embeddings `[n, d]`."""
        return self.compute_pair_parts(self.pairs_of(class_ids, embeddings))

    def compute_memory_loss(self, class_ids: Tensor, embeddings: Tensor, memory: Memory) -> Tensor:
        """The loss `[n]` of anchors against a memory."""
        return self.compute_pair_loss(self.pairs_of(class_ids, embeddings, memory))

    def compute_memory_parts(self, class_ids: Tensor, embeddings: Tensor, memory: Memory) -> Parts:
        """The two parts of `compute_memory_loss`."""
        return self.compute_pair_parts(self.pairs_of(class_ids, embeddings, memory))

    def pairs_of(
        self, class_ids: Tensor, embeddings: Tensor, memory: Memory | None = None
    ) -> Pairs:
        """The pairs of class ids `[n]` and embeddings `[n, d]`, which are prepared for it.

        Candidates are those of all replicas, or what a memory holds.
        """
        embeddings = self.prepare(embeddings)
        if memory is None:
            pairs = Pairs.of_batch(class_ids, embeddings)
        else:
            stored = self.prepare(ops.cast(memory.embeddings, embeddings.dtype))
            memory = dataclasses.replace(memory, embeddings=stored)
            pairs = Pairs.of_memory(class_ids, embeddings, memory)
        return mined(pairs, self.strategies, unit=self.normalize)

    def prepare(self, embeddings: Tensor) -> Tensor:
        """What the pairs are made of: the embeddings, l2-normalised if `self.normalize`."""
        return normalize(embeddings) if self.normalize else embeddings

    def compute_pair_loss(self, pairs: Pairs) -> Tensor:
        """The loss `[n]`; overridden where it is more exact, or cheaper, than its parts' sum."""
        tightness, contrastive = self.compute_pair_parts(pairs)
        return tightness + contrastive

    def compute_pair_parts(self, pairs: Pairs) -> Parts:
        """The two parts `[n]` from the batch's `keras_dml.losses.Pairs`."""
        raise NotImplementedError

    def get_config(self) -> Config:
        """The constructor's arguments."""
        strategies = keras.saving.serialize_keras_object(list(self.strategies))
        return {**super().get_config(), **({"mining": strategies} if self.strategies else {})}

    @classmethod
    def from_config(cls, config: Config) -> Self:
        """The loss of this configuration."""
        if "mining" in config:
            config = {**config, "mining": mining_from_config(config["mining"])}
        return cls(**config)


class LabelsAsTheyAre(keras.losses.Loss):
    """Keras' reduction, weights and masks around a loss, without Keras' cast of labels to floats.

    Args:
        loss: a Keras loss. labels: what its `call` gets for `y_true`; ours is then `()`.
    """

    def __init__(self, loss: keras.losses.Loss, labels: TensorLike) -> None:
        super().__init__(name=loss.name, reduction=loss.reduction, dtype=loss.dtype)
        self.loss = loss
        self.labels = labels

    def __call__(
        self, y_true: TensorLike, y_pred: TensorLike, sample_weight: TensorLike | None = None
    ) -> Tensor:
        """As Keras' own, of weights that are numbers."""
        if sample_weight is not None:
            sample_weight = numbers_of("sample_weight", sample_weight, "weights")
        value = super().__call__(y_true, y_pred, sample_weight)
        # Keras does not reduce what has no rows.
        reduces = self.reduction not in (None, "none")
        return ops.sum(value) if reduces and tuple(value.shape) == (0,) else value

    def call(self, y_true: TensorLike, y_pred: TensorLike) -> Tensor:
        """The loss of its own labels."""
        return self.loss.call(self.labels, y_pred)


def _has_no_rows(embeddings: Tensor) -> bool:
    """Whether there is nothing to compute; replicas, which exchange rows, go on together."""
    return embeddings.shape[0] == 0 and place_among_replicas()[1] == 1


def _nan_unless_sound(values: Tensor, labels: Tensor, embeddings: Tensor) -> Tensor:
    # Masks and comparisons would turn NaN embeddings, or merged classes, into an innocent number.
    sound = is_sound(labels, embeddings)
    return ops.where(sound, values, ops.full_like(values, float("nan")))


def is_sound(labels: Tensor, embeddings: Tensor) -> Tensor:
    """Whether all embeddings are finite and all labels told apart: a bool tensor."""
    # A sum is finite if all of it is and it is not too large. A product with a column of small
    # numbers reads the rows once, and is done in a fifth of the time of looking at each number.
    small = ops.full_like(embeddings[:1], 1e-10)
    sums = matmul(embeddings, ops.transpose(small))
    return ops.logical_and(are_apart(labels), ops.all(ops.isfinite(sums)))
