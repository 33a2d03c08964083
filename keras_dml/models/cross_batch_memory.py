"""A model that compares each batch with the embeddings of earlier ones."""

from collections.abc import Mapping, Sequence
from typing import Any, Self

import keras
from keras import ops

from keras_dml._pairwise.pairs import Memory
from keras_dml.checks import check_bool, check_number, check_whole, checked_class_ids, shown
from keras_dml.class_ids import as_labels, widest_integers
from keras_dml.distribute import gather_candidates, place_among_replicas
from keras_dml.errors import ArgumentError, ArgumentTypeError
from keras_dml.losses.against_memory import AgainstMemory
from keras_dml.losses.base import EmbeddingLoss
from keras_dml.metrics.loss_part import LossPart
from keras_dml.models.cached_gradients import CachedGradients
from keras_dml.models.distributed_model import DistributedModel
from keras_dml.models.head import check_embedding_model
from keras_dml.types import Config, Tensor, TensorLike

__all__ = ["CrossBatchMemory"]


@keras.saving.register_keras_serializable("keras_dml")
class CrossBatchMemory(DistributedModel):
    """An embedding model whose loss also compares with the embeddings of earlier batches.

    Embeddings move slowly once training is under way, so those of the last M images are nearly what
    the model would give now: candidates by the ten thousands, for the price of a queue. A step

    - computes the embeddings z of the batch,
    - puts them, as constants and of all replicas, into the memory in place of the oldest,
    - lowers `L(batch) + w · L(anchors against the memory)`.

    The memory holds the batch's own rows too. An anchor's own copy, known by its slot, is neither
    its positive nor its negative; the other rows of the batch are constants there. So the first
    memory term has the value of the batch's loss, with the anchors' part of its gradient. Means
    stay means over the batch's anchors; sample weights weigh them. Evaluation (`training=False`)
    neither writes nor reads, and gives the batch's loss.

    Works in plain `compile` and `fit`, under every `tf.distribute` strategy on TensorFlow (rows are
    in the order that one device has), and on JAX. `LossPart`s of the loss among the metrics record
    the parts of the whole, which add up to it. The model that is wrapped is what is evaluated and
    saved for use; a `.keras` file of this one holds the memory too, so that training goes on from
    it as if it had not stopped.

    Takes M · d · 4 bytes on each replica (55,000 × 128: 28 MB) and n · M numbers in the loss.

    Examples:
        >>> model = CrossBatchMemory(embedding, memory_size=8192, start_step=500)
        >>> model.compile("adam", keras_dml.losses.ContrastiveLoss(normalize=True))
        >>> history = model.fit(batches, epochs=10)
        >>> embedding.save("embedding.keras")

    Args:
        model: a built `keras.Model` from images to embeddings `[n, d]`.
        memory_size: M, the rows that the memory holds, at least the images of a global batch; the
            whole training set or less.
        weight: w of the memory's term beside the batch's, at least 0.
        start_step: the first step, counted from 0, whose embeddings are remembered; before it the
            memory's term is 0. At the start of a training embeddings move too fast.
        batch_term: whether the loss of the batch by itself is part of the sum; the paper's
            algorithm has the memory's term alone (which needs start_step 0).
        name: of the model.

    Attributes:
        memory: `[M, d]` float32, as the loss gets them. memory_class_ids: `[M]`, whole numbers.
        written: rows ever written; the next one goes to slot `written mod M`.
        step: training steps so far.

    Raises:
        TypeError: in `compile`, a loss that does not take a memory: one that compares candidates
            with each other or with sums over classes, or has learned classes.
        ValueError: an argument out of range, a model that is not built or gives no `[n, d]`, a
            batch of more than M images (in a graph that does not know its size, the loss is NaN),
            class ids that are fractions (likewise), `loss_weights`.

    References: Wang et al., "Cross-Batch Memory for Embedding Learning", CVPR 2020, Algorithm 1.
    Their code has both terms, weight 1, and starts at step 1,000.
    """

    def __init__(
        self,
        model: keras.Model,
        memory_size: int,
        weight: float = 1.0,
        start_step: int = 1000,
        batch_term: bool = True,
        name: str = "cross_batch_memory",
        **kwargs: Any,
    ) -> None:
        # The model is given its inputs as they are, and rounds them itself under mixed precision.
        super().__init__(name=name, autocast=False, **kwargs)
        dimensions = check_embedding_model("model", model)
        if dimensions is None:
            raise ArgumentError(
                "model must tell the length of its embeddings, as one made of inputs and outputs "
                f"does. Received: model={shown(model)}"
            )
        self.memory_size = check_whole("memory_size", memory_size, least=1)
        self.weight = check_number("weight", weight, least=0)
        self.start_step = check_whole("start_step", start_step, least=0)
        self.batch_term = check_bool("batch_term", batch_term)
        if self.start_step and not self.batch_term:
            raise ArgumentError(
                "start_step must be 0 when batch_term is False: before it nothing would train. "
                f"Received: start_step={start_step}, batch_term={batch_term}"
            )
        self.model = model
        whole = widest_integers()  # as class ids have them

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
        self.memory_class_ids = state("memory_class_ids", (self.memory_size,), whole)
        self.written = state("written", (), whole)
        self.step = state("step", (), whole)
        self._watched = _Watched()
        self.built = True

    @property
    def wrapped(self) -> keras.Model:
        """The embedding model."""
        return self.model

    def call(self, images: Tensor, training: bool = False) -> Tensor:
        """The embeddings of the images."""
        return self.model(images, training=training)

    def count_params(self) -> int:
        """The numbers that the model has, without those that its memory holds."""
        return self.model.count_params()

    def compile(
        self,
        optimizer: keras.optimizers.Optimizer | str = "rmsprop",
        loss: EmbeddingLoss | None = None,
        metrics: Sequence[Any] | Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        """As `keras.Model.compile`, with one loss over pairs.

        Args:
            optimizer: as in Keras.
            loss: one that `takes_memory`.
            metrics: as in Keras; of `LossPart`s of this loss those of the whole sum are recorded.
            kwargs: as in Keras, but `loss_weights`.

        Raises:
            TypeError, ValueError: see the class.
        """
        if not isinstance(loss, EmbeddingLoss):
            raise ArgumentTypeError(
                "loss must be a loss over pairs of keras_dml.losses, itself and not by its name. "
                f"Received: loss={loss!r}"
            )
        loss.check_memory()
        if isinstance(self.model, CachedGradients):
            self.model.check_layers()
        if kwargs.pop("loss_weights", None) is not None:
            raise ArgumentError(
                "loss_weights cannot be given: there is one output, and weight is the memory's. "
                "Received: loss_weights in compile()"
            )
        parts, others = _parts_of(loss, metrics)
        super().compile(optimizer=optimizer, loss=loss, metrics=others, **kwargs)
        self._watched = _Watched(parts, metrics)

    def get_compile_config(self) -> Config:
        """What `compile` was given; nothing before it."""
        if not self.compiled:
            return {}
        return {
            **super().get_compile_config(),
            "metrics": keras.saving.serialize_keras_object(self._watched.given),
        }

    def compile_from_config(self, config: Config) -> None:
        """Compile as `get_compile_config` says."""
        self.compile(**keras.saving.deserialize_keras_object(config))
        if self.optimizer is not None:
            self.optimizer.build(self.trainable_variables)

    @property
    def metrics(self) -> list[keras.metrics.Metric]:
        """Those of every model, and the parts of the loss."""
        return [*super().metrics, *self._watched.parts]

    def train_step(self, *args: Any) -> Any:
        """As the backend's, or in chunks where the model is one of `CachedGradients`."""
        if isinstance(self.model, CachedGradients):
            return self.model.train_step_of(self, *args)
        return super().train_step(*args)

    def compute_loss(
        self,
        x: Any = None,
        y: TensorLike | None = None,
        y_pred: Any = None,
        sample_weight: TensorLike | None = None,
        training: bool = True,
    ) -> Tensor:
        """The loss of a batch; in training the batch is remembered, and compared with the memory.

        Args:
            x: not used. y: class ids `[n]`. y_pred: embeddings `[n, d]`.
            sample_weight: `[n]`, or None.
            training: whether this is a step of training.
        """
        if not training:
            self._record(y, y_pred, None)
            return super().compute_loss(x, y, y_pred, sample_weight, training)
        against, sound = self._remembered(y, y_pred)
        self._record(y, y_pred, against)
        term = self.weight * against(y, y_pred, sample_weight)  # type: ignore[arg-type]
        term = ops.where(sound, term, ops.full_like(term, float("nan")))
        if self.batch_term:
            of_batch = super().compute_loss(x, y, y_pred, sample_weight, training)
            return (
                ops.cast(of_batch, term.dtype) + term
            )  # Keras sums in floatx, which may be a half
        # What regularizers add is the same on every replica, and summed over them.
        _, replicas = place_among_replicas()
        for loss in self.losses:
            term = term + ops.sum(ops.cast(loss, term.dtype)) / replicas
        return term

    def _remembered(self, y: TensorLike | None, y_pred: Tensor) -> tuple[AgainstMemory, Tensor]:
        """Put the batch into the memory; the loss against it, and whether the batch may be there.

        Until `start_step` all is the same but that nothing is written: no shape depends on it.
        """
        labels = checked_class_ids(as_labels(y, "y"))  # type: ignore[arg-type]
        whole = self.written.dtype
        class_ids = ops.cast(labels, whole)
        rows, first = gather_candidates(ops.stop_gradient(ops.cast(y_pred, "float32")))
        row_ids, _ = gather_candidates(class_ids)
        size = ops.shape(rows)[0]
        if isinstance(size, int) and size > self.memory_size:
            raise ArgumentError(
                "memory_size must be at least the images of a batch, over all devices. "
                f"Received: memory_size={self.memory_size} for a batch of {size}"
            )
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
        memory_class_ids = put(self.memory_class_ids, row_ids)
        anchors = ops.arange(ops.shape(y_pred)[0], dtype=whole) + ops.cast(first, whole)
        own = (written + anchors) % self.memory_size
        written = written + ops.where(active, ops.cast(size, whole), ops.cast(0, whole))
        self.written.assign(written)
        self.step.assign(self.step.value + 1)
        filled = ops.arange(self.memory_size, dtype=whole) < written
        own = ops.where(active, own, ops.full_like(own, -1))
        # Also where the size was not known above; and fractions are cut off by the memory.
        sound = ops.logical_and(
            ops.cast(size, "int32") <= self.memory_size,
            ops.all(ops.equal(labels, ops.cast(class_ids, labels.dtype))),
        )
        remembered = Memory(memory, memory_class_ids, filled, own)
        return AgainstMemory(self.loss, remembered), sound

    def _record(self, y: TensorLike | None, y_pred: Tensor, against: AgainstMemory | None) -> None:
        """Add the parts of a batch to the metrics."""
        # Here, since on JAX what a step has written cannot be read any more when metrics are.
        if not self._watched.parts:
            return
        terms = [(1.0, self.loss)] if self.batch_term or against is None else []
        terms += [] if against is None else [(self.weight, against)]
        parts = [(weight, loss.parts(y, y_pred)) for weight, loss in terms]
        for metric in self._watched.parts:
            which = ("tightness", "contrastive").index(metric.part)
            values = [weight * both[which] for weight, both in parts]
            keras.metrics.Mean.update_state(metric, sum(values[1:], start=values[0]))

    def get_config(self) -> Config:
        """The constructor's arguments."""
        return {
            "name": self.name,
            "model": keras.saving.serialize_keras_object(self.model),
            "memory_size": self.memory_size,
            "weight": self.weight,
            "start_step": self.start_step,
            "batch_term": self.batch_term,
        }

    @classmethod
    def from_config(cls, config: Config, custom_objects: Mapping[str, Any] | None = None) -> Self:
        """The model of this configuration."""
        model = keras.saving.deserialize_keras_object(config["model"], custom_objects)
        return cls(**{**config, "model": model})


class _Watched:
    """The parts that a model records itself, and all metrics that it was given.

    An object of its own, which Keras does not look into: it would keep those of every `compile`.
    """

    def __init__(self, parts: Sequence[LossPart] = (), given: Any = None) -> None:
        self.parts = parts
        self.given = given


def _parts_of(loss: EmbeddingLoss, metrics: Any) -> tuple[list[LossPart], Any]:
    """The parts of this loss among the metrics, and the other metrics."""
    if not isinstance(metrics, (list, tuple)):
        return [], metrics
    config = keras.saving.serialize_keras_object(loss)
    parts = [
        metric
        for metric in metrics
        if isinstance(metric, LossPart)
        and keras.saving.serialize_keras_object(metric.loss) == config
    ]
    return parts, [metric for metric in metrics if metric not in parts] or None
