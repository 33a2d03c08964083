"""The base classes of losses over pairs."""

import dataclasses
import warnings
from typing import ClassVar

import keras
import numpy as np
from keras import ops

from keras_dml import relations
from keras_dml._backend.replicas import place_among_replicas
from keras_dml._common.errors import ArgumentTypeError, argument_error
from keras_dml._common.types import Config, Parts, Tensor, TensorLike
from keras_dml._pairwise.arrays import known_numbers
from keras_dml._pairwise.pairs import Candidates, MiningLike, Pairs, Strategy, normalize
from keras_dml.losses.base import EmbeddingLoss, LossOptions, given
from keras_dml.relations import RelationLike


class PairOptions(LossOptions, total=False):
    """The arguments of `PairLoss`, for the constructors of losses."""

    mining: MiningLike
    relation: RelationLike


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

    def __init__(
        self,
        reduction: str | None = "sum_over_batch_size",
        *,
        name: str | None = None,
        dtype: str | None = None,
        # In quotes, because `help` then shows these short names.
        mining: "MiningLike" = None,
        relation: "RelationLike" = None,
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
        return self.compute_pair_loss(self.pairs_of(class_ids, embeddings, *given(candidates)))

    def compute_parts(
        self, class_ids: Tensor, embeddings: Tensor, candidates: Candidates | None = None
    ) -> Parts:
        """Compute the two parts `[n]` of the loss of `compute_loss`."""
        return self.compute_pair_parts(self.pairs_of(class_ids, embeddings, *given(candidates)))

    def pairs_of(
        self, class_ids: Tensor, embeddings: Tensor, candidates: Candidates | None = None
    ) -> Pairs:
        """Prepare the embeddings `[n, d]`, pair them, and apply the mining strategies.

        The candidates are the embeddings of all replicas, or images outside the batch.
        """
        embeddings = self.prepare(embeddings)
        if candidates is None:
            if self.relation.of_classes:
                _warn_without_positives(class_ids)
            return self.mined(Pairs.of_batch(class_ids, embeddings, self.relation.compare))
        # The embeddings can be a prefix of the candidates.
        rows = candidates.embeddings[:, : embeddings.shape[1]]
        rows = self.prepare(ops.cast(rows, embeddings.dtype))
        candidates = dataclasses.replace(candidates, embeddings=rows)
        pairs = Pairs.of_candidates(class_ids, embeddings, candidates, self.relation.compare)
        return dataclasses.replace(self.mined(pairs), scale=candidates.scale, bias=candidates.bias)

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


def _warn_without_positives(class_ids: Tensor) -> None:
    """Warn if class ids are known and all of them differ."""
    known = known_numbers(class_ids) if place_among_replicas()[1] == 1 else None
    if known is None or len(known) < 2 or len(np.unique(known)) < len(known):
        return
    # Python shows equal warnings of one line once.
    warnings.warn(
        "A batch had no two images of a class, so a loss over pairs had no positive pairs in it. "
        "Use pipelines.BalancedSampler with images_per_class of at least 2.",
        stacklevel=2,
    )


def _checked_mining(mining: MiningLike) -> tuple[Strategy, ...]:
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
