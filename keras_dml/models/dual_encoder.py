"""Two encoders, whose embeddings a loss compares: photo and catalog, or image and text."""

from collections.abc import Mapping, Sequence
from typing import Any, Self

import keras
import numpy as np
from keras import ops

from keras_dml._backend.configured import Configured
from keras_dml._backend.replicas import place_among_replicas
from keras_dml._common.checks import check_bool, check_number, check_positive
from keras_dml._common.errors import ArgumentError, argument_error
from keras_dml._common.types import Config, Tensor, TensorLike
from keras_dml._pairwise.arrays import of_one_dtype
from keras_dml._pairwise.pairs import Sets
from keras_dml.losses.base import EmbeddingLoss, check_compared_loss
from keras_dml.models.distributed_model import TWO_SETS, TwoSets, refuse_arguments
from keras_dml.models.embeddings import check_embedding_model

_LARGEST_SCALE = 100.0


@keras.saving.register_keras_serializable("keras_dml")
class DualEncoder(Configured, TwoSets):
    """A model of two encoders that are trained to bring matching inputs together.

    Batches are `((queries, candidates), labels)`, or `((queries, candidates),)` without labels.
    With the loss L of queries against candidates (`PairLoss.between`), training minimizes

        (L(queries → candidates) + L(candidates → queries)) / 2

    or only the first part with `symmetric=False`. Candidates of all replicas are compared.

    Labels are one set for both sides, or a tuple (query labels, candidate labels), which need not
    have the same number of rows. The loss's relation decides which pairs match. Without labels, row
    i of the queries matches row i of the candidates and nothing else. Triplets are labels, too: the
    candidates are the positives and then the hard negatives, with labels −1 for the latter.
    `pipelines.HardCandidateSampler` adds the nearest candidates of the whole training set.

    Batches `((queries, candidates, stored), (query labels, candidate labels, stored labels))` have
    further candidates `stored`, embeddings `[s, d]` of an earlier state of the candidates' encoder.
    They are constants, to which only the queries are compared.

    With `NTXentLoss(temperature=1.0)` and `scale=14.3`, this is CLIP. With `scale=10.0`,
    `bias=-10.0`, and `PairwiseSigmoidLoss(scale=1.0, bias=0.0)`, it is SigLIP with the start of the
    paper, log t = log 10 and b = −10. Wrap the model in `CachedGradients` for large batches, or in
    `CrossBatchMemory` for candidates of earlier batches.

    Examples:
        >>> encoder = keras.Sequential([keras.layers.Input((8,)), keras.layers.Dense(4)])
        >>> model = DualEncoder(encoder, encoder)  # the same encoder for both: a siamese network
        >>> model.compile("adam", keras_dml.losses.NTXentLoss(temperature=0.07))
        >>> photos, catalog = np.random.default_rng(0).normal(size=(2, 16, 8)).astype("float32")
        >>> history = model.fit([photos, catalog], epochs=1, verbose=0)
        >>> model.encode_queries(photos).shape
        (16, 4)

    Args:
        query_encoder: A built `keras.Model` from inputs to embeddings `[n, d]`.
        candidate_encoder: The same for the candidates. It can be the same object.
        scale: Start of a learned factor of the cosines, above 0 and at most 100, or None for no
            factor. A step never makes the factor larger than 100. For losses of similarities.
        bias: Start of a learned number that is added to the scaled cosines, or None for none. A
            loss that is a softmax over similarities does not depend on it.
        symmetric: Whether the candidates are compared with the queries, too.
        name: Name of the model.

    Raises:
        TypeError: In `compile`, the loss is not a loss over pairs that can compare two sets, or it
            has no gradient of the queries and `symmetric` is False.
        ValueError: An encoder is not built or its output is not `[n, d]`, the lengths of the
            embeddings differ, `scale` is out of range, `bias` is not finite, or (in the first step)
            the loss is a loss of distances and `scale` or `bias` is set.

    References: Radford et al., "Learning Transferable Visual Models From Natural Language
    Supervision", ICML 2021, figure 3 and section 2.5 (the scale). Zhai et al., "Sigmoid Loss for
    Language Image Pre-Training", ICCV 2023.
    """

    def __init__(
        self,
        query_encoder: keras.Model,
        candidate_encoder: keras.Model,
        *,
        scale: float | None = None,
        bias: float | None = None,
        symmetric: bool = True,
        name: str = "dual_encoder",
        **kwargs: Any,
    ) -> None:
        # No autocast, because the encoders cast their inputs under mixed precision.
        super().__init__(name=name, autocast=False, **kwargs)
        lengths = (
            check_embedding_model("query_encoder", query_encoder),
            check_embedding_model("candidate_encoder", candidate_encoder),
        )
        if None not in lengths and lengths[0] != lengths[1]:
            raise ArgumentError(
                "query_encoder and candidate_encoder must have embeddings of the same length, but "
                f"got {lengths[0]} and {lengths[1]}."
            )
        self.query_encoder = query_encoder
        self.candidate_encoder = candidate_encoder
        self.symmetric = check_bool("symmetric", symmetric)
        self.scale = None if scale is None else check_positive("scale", scale)
        self.log_scale = None
        if self.scale is not None:
            if self.scale > _LARGEST_SCALE:
                raise argument_error("scale", f"at most {_LARGEST_SCALE:g}", scale)
            self.log_scale = self.add_weight(
                name="log_scale",
                shape=(),
                dtype="float32",
                initializer=keras.initializers.Constant(float(np.log(self.scale))),
                constraint=_AtMost(float(np.log(_LARGEST_SCALE))),
                autocast=False,
            )
        self.bias = None if bias is None else check_number("bias", bias)
        self.learned_bias = None
        if self.bias is not None:
            self.learned_bias = self.add_weight(
                name="bias",
                shape=(),
                dtype="float32",
                initializer=keras.initializers.Constant(self.bias),
                autocast=False,
            )
        self.built = True

    @property
    def output_shape(self) -> Any:
        """Output shape of the queries' encoder. The candidates' encoder has the same."""
        return self.query_encoder.output_shape

    def call(self, inputs: Sequence[Tensor], training: bool = False) -> tuple[Tensor, ...]:
        """Compute the embeddings of (queries, candidates). Stored candidates stay unchanged."""
        queries, candidates, *stored = inputs
        return (
            self.query_encoder(queries, training=training),
            self.candidate_encoder(candidates, training=training),
            *(ops.stop_gradient(ops.convert_to_tensor(rows)) for rows in stored),
        )

    def encode_queries(self, x: Any, batch_size: int = 128) -> np.ndarray:
        """Compute the embeddings of queries, `[n, d]`, batch by batch."""
        return self.query_encoder.predict(x, batch_size=batch_size, verbose=0)

    def encode_candidates(self, x: Any, batch_size: int = 128) -> np.ndarray:
        """Compute the embeddings of candidates, `[n, d]`, batch by batch."""
        return self.candidate_encoder.predict(x, batch_size=batch_size, verbose=0)

    def compile(
        self,
        optimizer: keras.Optimizer | str = "rmsprop",
        loss: EmbeddingLoss | None = None,
        *,
        symmetric: bool | None = None,
        **kwargs: Any,
    ) -> None:
        """Compile as in `keras.Model.compile`, with one loss over pairs.

        Args:
            optimizer: As in Keras.
            loss: A loss whose `takes_memory` is True.
            symmetric: As in the constructor. None leaves it unchanged.
            kwargs: As in Keras, without `metrics` and `loss_weights`. Evaluate the embeddings with
                `keras_dml.metrics.recall_at_k(queries, labels, gallery=candidates)`.
        """
        loss = check_compared_loss(loss)
        refuse_arguments(kwargs, ("metrics", "weighted_metrics", "loss_weights"), TWO_SETS)
        if symmetric is not None:
            self.symmetric = check_bool("symmetric", symmetric)
        if not self.symmetric and self.query_encoder is not self.candidate_encoder:
            loss.check_memory()  # the encoder of the queries needs a gradient of the anchors
        super().compile(optimizer=optimizer, loss=loss, **kwargs)

    def compute_loss(
        self,
        x: Any = None,
        y: Any = None,
        y_pred: Any = None,
        sample_weight: TensorLike | None = None,
        training: bool = True,
    ) -> Tensor:
        """Compute the loss of a batch, and the encoders' weight regularizers.

        Args:
            x: Unused.
            y: Labels, a tuple of labels, or None.
            y_pred: Embeddings (queries, candidates).
            sample_weight: Weight of each query, `[n]`, or None. With `symmetric`, also of each
                candidate.
            training: Unused.
        """
        return self.compute_loss_with(self.loss, y, y_pred, sample_weight)

    def compute_loss_with(
        self, loss: EmbeddingLoss, y: Any, y_pred: Any, sample_weight: TensorLike | None
    ) -> Tensor:
        """Compute the value of a loss for a batch, and the encoders' weight regularizers."""
        labels, queries, candidate_labels, candidates = self.sets_of(y, y_pred)
        scale, bias = self.factor(), self.offset()
        there = labels, queries, *_with_stored(candidate_labels, candidates, y, y_pred)
        value = loss.between(*there, sample_weight, scale=scale, bias=bias)
        if self.symmetric:
            back = (candidate_labels, candidates, labels, queries)
            value = 0.5 * (value + loss.between(*back, sample_weight, scale=scale, bias=bias))
        return self.with_regularizers(value)

    def factor(self) -> Tensor | None:
        """Return the learned factor of the similarities, or None."""
        return None if self.log_scale is None else ops.exp(self.log_scale.value)

    def offset(self) -> Tensor | None:
        """Return the learned number that is added to the scaled similarities, or None."""
        return None if self.learned_bias is None else ops.convert_to_tensor(self.learned_bias.value)

    def sets_of(self, y: Any, y_pred: Any, first: Tensor | int = 0) -> Sets:
        """Return labels and embeddings of both sets.

        Args:
            y: Labels, a tuple (query labels, candidate labels), or None. With stored candidates,
                their labels are third.
            y_pred: Embeddings (queries, candidates), and perhaps stored candidates, which are left
                out of the result.
            first: Label of the first row of the global batch, without labels.
        """
        queries, candidates, *stored = y_pred
        if y is None and not stored:
            rows = ops.shape(queries)[0]
            if isinstance(rows, int) and rows != ops.shape(candidates)[0]:
                raise ArgumentError(
                    "queries and candidates must have the same number of rows without labels, but "
                    f"got {rows} and {ops.shape(candidates)[0]} rows."
                )
            replica, _ = place_among_replicas()
            y = ops.arange(rows, dtype="int32") + ops.cast(replica * rows + first, "int32")
        labels = tuple(y) if isinstance(y, (tuple, list)) else (y, y)
        if stored and len(labels) != 3:
            raise ArgumentError(
                "y must be a tuple (query labels, candidate labels, stored labels) with stored "
                f"candidates, but got {'none' if y is None else f'labels of {len(labels)} sets'}."
            )
        if not stored and len(labels) != 2:
            raise ArgumentError(
                "y must be labels for both sets, or a tuple (query labels, candidate labels), but "
                f"got a tuple of {len(labels)}."
            )
        return Sets(labels[0], queries, labels[1], candidates)

    def get_config(self) -> Config:
        """Return the constructor's arguments. A shared encoder is stored once."""
        shared = self.candidate_encoder is self.query_encoder
        return {**super().get_config(), **({"candidate_encoder": None} if shared else {})}

    @classmethod
    def from_config(cls, config: Config, custom_objects: Mapping[str, Any] | None = None) -> Self:
        """Create a model from its configuration."""
        config = keras.saving.deserialize_keras_object(config, custom_objects)
        candidates = config["candidate_encoder"] or config["query_encoder"]
        return cls(**{**config, "candidate_encoder": candidates})


def _with_stored(
    labels: TensorLike, candidates: Tensor, y: Any, y_pred: Any
) -> tuple[TensorLike, Tensor]:
    """Return the labels and the embeddings of the candidates, and then of the stored ones."""
    if len(y_pred) == 2:
        return labels, candidates
    rows = ops.concatenate([candidates, ops.cast(y_pred[2], candidates.dtype)])
    # The labels of two sets can have different dtypes.
    of_both = of_one_dtype(*map(ops.convert_to_tensor, (labels, y[2])))
    return ops.concatenate(of_both), rows


@keras.saving.register_keras_serializable("keras_dml")
class _AtMost(Configured, keras.constraints.Constraint):
    """A constraint: weights of at most a number."""

    def __init__(self, most: float) -> None:
        self.most = most

    def __call__(self, w: Tensor) -> Tensor:
        return ops.minimum(w, self.most)
