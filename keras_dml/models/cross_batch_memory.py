"""A model whose loss compares each batch with embeddings of earlier batches."""

import types
from collections.abc import Mapping, Sequence
from typing import Any

import keras
from keras import ops

from keras_dml._backend.replicas import gather_candidates
from keras_dml._common.checks import check_bool, check_number, check_whole, check_wholes
from keras_dml._common.errors import argument_error
from keras_dml._common.types import Config, Tensor, TensorLike
from keras_dml._pairwise.arrays import widest_integers
from keras_dml._pairwise.pairs import Candidates, Sets
from keras_dml.losses.base import EmbeddingLoss, check_compared_loss
from keras_dml.metrics.loss_part import LossPart
from keras_dml.models.distributed_model import TWO_SETS, Wrapper, refuse_arguments
from keras_dml.models.embeddings import check_embedding_model


@keras.saving.register_keras_serializable("keras_dml")
class CrossBatchMemory(Wrapper):
    """An embedding model whose loss also compares with the embeddings of earlier batches.

    After the first steps of training, embeddings change slowly. The stored embeddings of the last M
    images then approximate the current ones, and provide tens of thousands of candidates for the
    cost of a queue. A training step

    - computes the embeddings z of the batch,
    - writes the embeddings of all replicas into the memory, as constants, in place of the oldest,
    - minimizes `L(batch) + w · L(anchors against the memory)`.

    The memory also contains the rows of the batch. An anchor's own row, identified by its slot, is
    neither its positive nor its negative. The other rows of the batch are constants in the memory.
    The first memory term thus has the value of the batch's loss, and only the anchors' part of its
    gradient. Means are over the batch's anchors, and sample weights weight the anchors. Evaluation
    (`training=False`) neither reads nor writes the memory, and returns the batch's loss.

    Works with plain `compile` and `fit`, under every `tf.distribute` strategy on TensorFlow (with
    rows in the same order as on one device), and on JAX. A `LossPart` of the loss among the metrics
    records its part of the whole sum, and the parts add up to the loss. Evaluate and save the
    wrapped model for use. A `.keras` file of this model also contains the memory, so that training
    resumes as if it had not stopped.

    Around a `DualEncoder`, the memory stores candidates, and the queries are its anchors. Labels of
    a relation are rows of a fixed shape, `label_shape`.

    Each replica needs M · d · 4 bytes (55,000 × 128: 28 MB), and the loss has n · M numbers.

    Examples:
        >>> model = CrossBatchMemory(embedding, memory_size=8192, start_step=500)
        >>> model.compile("adam", keras_dml.losses.ContrastiveLoss(normalize=True))
        >>> history = model.fit(batches, epochs=10)
        >>> embedding.save("embedding.keras")

    Args:
        model: A built `keras.Model` from images to embeddings `[n, d]`.
        memory_size: M, the number of rows in the memory: at least the global batch size, at most
            the size of the training set.
        weight: w, the weight of the memory's term relative to the batch's term, at least 0.
        start_step: First step, counted from 0, whose embeddings are written to the memory. Before
            it, the memory's term is 0, because embeddings change too fast at the start of training.
        batch_term: Whether the sum includes the batch's loss. The paper's algorithm has only the
            memory's term (which requires start_step 0).
        label_shape: Shape of one row of labels, for a loss with a relation: `(G,)` for G tags.
        name: Name of the model.

    Attributes:
        memory: `[M, d]` float32, in the form that the loss receives.
        memory_class_ids: `[M]` integers, or M rows of labels.
        written: Number of rows ever written. The next row goes to slot `written mod M`.
        step: Number of training steps so far.

    Raises:
        TypeError: In `compile`, the loss does not support a memory: it compares candidates with
            each other or with sums over classes, or has learned classes.
        ValueError: An argument is out of range, the model is not built or its output is not
            `[n, d]`, the batch has more than M images (the loss is NaN in a graph with unknown
            batch size), class ids are fractions (likewise), or `loss_weights` is set.

    References: Wang et al., "Cross-Batch Memory for Embedding Learning", CVPR 2020, Algorithm 1.
    Their code has both terms, weight 1, and starts at step 1,000.
    """

    is_outermost = True

    def __init__(
        self,
        model: keras.Model,
        memory_size: int,
        *,
        weight: float = 1.0,
        start_step: int = 1000,
        batch_term: bool = True,
        label_shape: Sequence[int] = (),
        name: str = "cross_batch_memory",
        **kwargs: Any,
    ) -> None:
        super().__init__(model, name, **kwargs)
        dimensions = check_embedding_model("model", model)
        if dimensions is None:
            wanted = "a model with a known embedding size, such as keras.Model(inputs, outputs)"
            raise argument_error("model", wanted, model)
        self.memory_size = check_whole("memory_size", memory_size, least=1)
        self.weight = check_number("weight", weight, least=0)
        self.start_step = check_whole("start_step", start_step, least=0)
        self.batch_term = check_bool("batch_term", batch_term)
        if self.start_step and not self.batch_term:
            advice = "Nothing would train before the start step."
            raise argument_error("start_step", "0 without batch_term", start_step, advice=advice)
        scalar = isinstance(label_shape, (tuple, list)) and not label_shape
        self.label_shape = () if scalar else check_wholes("label_shape", label_shape, least=1)
        whole = widest_integers()  # the dtype of class ids

        def state(name: str, shape: tuple[int, ...], dtype: str) -> keras.Variable:
            return self.add_weight(
                name=name,
                shape=shape,
                dtype=dtype,
                initializer="zeros",
                trainable=False,
                autocast=False,
                aggregation="only_first_replica",
            )

        self.memory = state("memory", (self.memory_size, dimensions), "float32")
        self.memory_class_ids = state(
            "memory_class_ids", (self.memory_size, *self.label_shape), whole
        )
        self.written = state("written", (), whole)
        self.step = state("step", (), whole)
        self._watch([], None)
        self.built = True

    def compile(
        self,
        optimizer: keras.Optimizer | str = "rmsprop",
        loss: EmbeddingLoss | None = None,
        metrics: Sequence[Any] | Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        """Compile as in `keras.Model.compile`, with one loss over pairs.

        Args:
            optimizer: As in Keras.
            loss: A loss whose `takes_memory` is True.
            metrics: As in Keras. A `LossPart` of this loss records the part of the whole sum.
            kwargs: As in Keras, without `loss_weights`.

        Raises:
            TypeError, ValueError: See the class.
        """
        loss = check_compared_loss(loss)
        loss.check_memory()
        if self.two_sets is not None:
            refuse_arguments({"metrics": metrics}, ["metrics"], TWO_SETS)
        self.check_layers()
        refuse_arguments(
            kwargs, ["loss_weights"], "Set weight, the weight of the memory, in the constructor"
        )
        parts, others = _parts_of(loss, metrics)
        super().compile(optimizer=optimizer, loss=loss, metrics=others, **kwargs)
        self._watch(parts, metrics)

    def _watch(self, parts: Sequence[LossPart], given: Any) -> None:
        """Store the loss parts that this model records itself, and the metrics of `compile`.

        Keras does not track a namespace. Otherwise it would keep the metrics of every `compile`.
        """
        self._watched = types.SimpleNamespace(parts=parts, given=given)

    def get_compile_config(self) -> Config:
        """Return the arguments of `compile`, or an empty dictionary before `compile`."""
        if not self.compiled:
            return {}
        return {
            **super().get_compile_config(),
            "metrics": keras.saving.serialize_keras_object(self._watched.given),
        }

    @property
    def metrics(self) -> list[keras.metrics.Metric]:
        """The metrics of every Keras model, and the parts of the loss."""
        return [*super().metrics, *self._watched.parts]

    def compute_loss(
        self,
        x: Any = None,
        y: TensorLike | None = None,
        y_pred: Any = None,
        sample_weight: TensorLike | None = None,
        training: bool = True,
    ) -> Tensor:
        """Compute the loss of a batch. In training, update the memory and compare with it.

        Args:
            x: Unused.
            y: Class ids `[n]`, or labels of both sets.
            y_pred: Embeddings `[n, d]`, or of both sets.
            sample_weight: `[n]`, or None.
            training: Whether this is a training step.
        """
        if not training:
            self._record(y, y_pred, None)
            return super().compute_loss(x, y, y_pred, sample_weight, training)
        if self.two_sets is None:
            sets = Sets(y, y_pred, y, y_pred)  # type: ignore[arg-type]
        else:
            sets = self.two_sets.sets_of(y, y_pred, first=self.written.value)
        candidates, sound = self._remembered(sets)
        self._record(y, y_pred, candidates)
        term = self.loss(sets.query_labels, sets.queries, sample_weight, candidates)
        term = self.weight * term
        term = ops.where(sound, term, ops.full_like(term, float("nan")))
        if self.batch_term:
            of_batch = super().compute_loss(x, y, y_pred, sample_weight, training)
            # Keras sums in floatx, which may be a half.
            return ops.cast(of_batch, term.dtype) + term
        return self.with_regularizers(term)

    def _remembered(self, sets: Sets) -> tuple[Candidates, Tensor]:
        """Write the batch to the memory. Return its rows, and whether they are valid.

        Before `start_step`, nothing is written, but all shapes are the same.
        """
        given = self.loss.checked_labels(sets.candidate_labels)
        if tuple(given.shape[1:]) != self.label_shape:
            wanted = f"{tuple(given.shape[1:])}, the shape of a row of labels"
            raise argument_error("label_shape", wanted, self.label_shape)
        whole = self.written.dtype
        labels = ops.cast(given, self.memory_class_ids.dtype)
        rows, first = gather_candidates(ops.stop_gradient(ops.cast(sets.candidates, "float32")))
        row_labels, _ = gather_candidates(labels)
        size = ops.shape(rows)[0]
        if isinstance(size, int) and size > self.memory_size:
            wanted = f"at least {size}, the images of a batch over all devices"
            raise argument_error("memory_size", wanted, self.memory_size)
        active = self.step.value >= self.start_step
        written = self.written.value
        slots = (written + ops.arange(size, dtype=whole)) % self.memory_size
        places = ops.cast(slots, "int32")[:, None]

        def put(variable: keras.Variable, values: Tensor) -> Tensor:
            before = variable.value
            after = ops.where(active, ops.scatter_update(before, places, values), before)
            variable.assign(after)
            return after

        memory = put(self.memory, rows)
        memory_labels = put(self.memory_class_ids, row_labels)
        anchors = ops.arange(ops.shape(sets.queries)[0], dtype=whole) + ops.cast(first, whole)
        own = (written + anchors) % self.memory_size
        written = written + ops.where(active, ops.cast(size, whole), ops.cast(0, whole))
        self.written.assign(written)
        self.step.assign(self.step.value + 1)
        filled = ops.arange(self.memory_size, dtype=whole) < written
        # A query is none of the candidates.
        is_stored = active if self.two_sets is None else False
        own = ops.where(is_stored, own, ops.full_like(own, -1))
        # Covers a batch size that is unknown above, and fractional class ids, which the cast
        # truncates.
        sound = ops.logical_and(
            ops.cast(size, "int32") <= self.memory_size,
            ops.all(ops.equal(given, ops.cast(labels, given.dtype))),
        )
        scale = None if self.two_sets is None else self.two_sets.factor()
        bias = None if self.two_sets is None else self.two_sets.offset()
        return Candidates(memory, memory_labels, filled, own, scale, bias), sound

    def _record(self, y: TensorLike | None, y_pred: Tensor, candidates: Candidates | None) -> None:
        """Add the parts of a batch to the metrics."""
        # Recorded here, because on JAX the values that a step writes cannot be read later.
        if not self._watched.parts:
            return
        terms: list[tuple[float, Candidates | None]] = []
        terms += [] if candidates is None else [(self.weight, candidates)]
        terms += [(1.0, None)] if self.batch_term or candidates is None else []
        parts = [(weight, self.loss.parts(y, y_pred, each)) for weight, each in terms]
        for metric in self._watched.parts:
            which = ("tightness", "contrastive").index(metric.part)
            values = [weight * both[which] for weight, both in parts]
            keras.metrics.Mean.update_state(metric, sum(values[1:], start=values[0]))


def _parts_of(loss: EmbeddingLoss, metrics: Any) -> tuple[list[LossPart], Any]:
    """Separate the parts of this loss from the other metrics."""
    if not isinstance(metrics, (list, tuple)):
        return [], metrics
    parts = [
        metric
        for metric in metrics
        if isinstance(metric, LossPart) and _are_equal(metric.loss, loss)
    ]
    return parts, [metric for metric in metrics if metric not in parts] or None


def _are_equal(one: EmbeddingLoss, other: EmbeddingLoss) -> bool:
    """Return whether two losses are one object, or have one configuration, as after loading."""
    # Keras imports TensorFlow, where it is installed, to create a configuration.
    return one is other or (
        type(one) is type(other)
        and keras.saving.serialize_keras_object(one) == keras.saving.serialize_keras_object(other)
    )
