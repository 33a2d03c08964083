"""The gradient of a large batch with the activations of a small one; needs TensorFlow."""

from collections.abc import Mapping, Sequence
from typing import Any, Self

import keras

from keras_dml import private
from keras_dml.checks import check_bool, check_whole, shown
from keras_dml.distribute import piece_of_batch, place_among_replicas
from keras_dml.errors import ArgumentError
from keras_dml.extras import TensorFlow
from keras_dml.models.backbones import FrozenStatisticsBatchNormalization
from keras_dml.models.distributed_model import DistributedModel
from keras_dml.types import Config, Logs, Tensor

__all__ = ["CachedGradients"]

tf = TensorFlow("CachedGradients")


@keras.saving.register_keras_serializable("keras_dml")
class CachedGradients(DistributedModel):
    """A model that trains on batches of any size with the memory of `chunk_size` images.

    A loss over pairs needs the embeddings of the whole batch, but not their activations at once. A
    training step

    - computes the outputs of the whole batch chunk by chunk, and keeps nothing else of them,
    - takes the loss over all of them, and its gradient at the outputs,
    - computes each chunk again and passes its share of that gradient on to the weights, where the
      chunks' gradients are added up; then takes one step of the optimizer.

    The weights are those of the whole batch at once but for rounding, at the price of one more
    forward pass. The model may have several outputs, and heads such as `ProxyHead`; regularizers of
    weights count once; whatever loss and metrics `compile` takes. Random layers draw the same in
    both passes. The masks of `keras_dml.models.GlobalBatchDropout` (as in `classifier_model`) are
    those of the whole batch; Keras' own layers draw for each chunk by itself, so with them the
    weights are those of another, as good draw, and of the same one if a chunk holds the batch.

    Works in plain `compile` and `fit`, under every `tf.distribute` strategy (`chunk_size` is that
    of each replica), with loss scaling and several steps an execution, and within a memory:
    `CrossBatchMemory(CachedGradients(embedding, 32), memory_size=8192)`.

    A batch that is no multiple of `chunk_size` is computed with a last chunk that holds some images
    a second time, whose gradient counts once.

    Example:
        >>> model = CachedGradients(embedding, chunk_size=32)
        >>> model.compile("adam", keras_dml.losses.RecallAtKLoss())
        >>> model.fit(batches_of_4000_images)
        >>> embedding.save("embedding.keras")

    Args:
        model: a built `keras.Model`; its layers must take each image by itself.
        chunk_size: images that are computed at once on a device.
        batch_statistics: allow batch norm that takes the statistics of its batch. They are then the
            chunk's, as are the moving averages, and the weights not those of the whole batch.
        name: of the model.

    Raises:
        ValueError: Keras runs on another backend than TensorFlow; `chunk_size` below 1, a model
            that is not built, or is a `CrossBatchMemory` (put that one around); in `compile` or
            `fit`, batch norm without `batch_statistics`, layers with an activity regularizer or
            another loss of their activations, or layers that draw from Keras' global seed.

    References: Gao et al., "Scaling Deep Contrastive Learning Batch Size under Memory Limited
    Setup", 2021, section 3.2 (GradCache); Patel et al., "Recall@k Surrogate Loss", CVPR 2022, train
    so with 4,000 images in chunks of 200.
    """

    def __init__(
        self,
        model: keras.Model,
        chunk_size: int,
        batch_statistics: bool = False,
        name: str = "cached_gradients",
        **kwargs: Any,
    ) -> None:
        # The model is given its inputs as they are, and rounds them itself under mixed precision.
        super().__init__(name=name, autocast=False, **kwargs)
        if not isinstance(model, keras.Model) or not model.built:
            raise ArgumentError(
                f"model must be a built keras.Model. Received: model={shown(model)}"
            )
        if hasattr(model, "memory_size"):
            raise ArgumentError(
                "model must not be a CrossBatchMemory, which goes around: "
                "CrossBatchMemory(CachedGradients(model, chunk_size), memory_size). "
                f"Received: model={model!r}"
            )
        self.chunk_size = check_whole("chunk_size", chunk_size, least=1)
        self.batch_statistics = check_bool("batch_statistics", batch_statistics)
        self.model = model
        self._traced = _Traced()
        self.built = True

    @property
    def output_shape(self) -> Any:
        """That of the model."""
        return self.model.output_shape

    def call(self, images: Tensor, training: bool = False) -> Any:
        """The model's outputs, of all images at once."""
        return self.model(images, training=training)

    def get_layer(self, name: str | None = None, index: int | None = None) -> keras.layers.Layer:
        """A layer of the model."""
        return self.model.get_layer(name, index)

    def count_params(self) -> int:
        """The numbers that the model has."""
        return self.model.count_params()

    def check_layers(self) -> None:
        """Refuse layers with which chunks would not add up to the batch.

        Raises:
            ValueError: see the class.
        """
        for layer in private.flat_layers(self.model):
            if getattr(layer, "activity_regularizer", None) is not None:
                raise ArgumentError(
                    "model must have no activity regularizer, whose value is not the sum of its "
                    f"chunks'. Received: activity_regularizer of layer {layer.name}"
                )
            if not self.batch_statistics and _takes_batch_statistics(layer):
                raise ArgumentError(
                    "model must have no batch norm that takes the statistics of its batch, which "
                    "would be those of a chunk: freeze it (with_frozen_statistics, trainable=False)"
                    f", or allow that by batch_statistics=True. Received: layer {layer.name}"
                )

    def _fit_to_replicas(self) -> None:
        super()._fit_to_replicas()
        self.check_layers()

    def train_step(self, data: Any) -> Logs:
        """One step on (images, labels[, sample weights]); returns the logs."""
        return self.train_step_of(self, data)

    def train_step_of(self, trainer: keras.Model, data: Any) -> Logs:
        """The same for the loss, optimizer and metrics of a model that has this one within.

        Args:
            trainer: compiled; its outputs are this model's.
            data: the batch.
        """
        x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(data)
        _, replicas = place_among_replicas()
        chunks = _Chunks(self.model, self.chunk_size, x, self._traced)
        outputs = chunks.outputs()
        variables = trainer.trainable_variables
        with tf.GradientTape() as tape:
            flat = keras.tree.flatten(outputs)
            tape.watch(flat)
            loss = trainer.compute_loss(
                x=x, y=y, y_pred=outputs, sample_weight=sample_weight, training=True
            )
            total = trainer.optimizer.scale_loss(loss)
        # Also what the loss holds beside the outputs: the regularizers of weights.
        at_outputs, beside = tape.gradient(total, [flat, variables])
        gradients = chunks.gradients(variables, at_outputs)
        chunks.leave_states()
        trainer.optimizer.apply_gradients(
            [(_sum(pair), variable) for pair, variable in zip(zip(gradients, beside), variables)]
        )
        [tracker] = [metric for metric in trainer.metrics if metric.name == "loss"]
        # Keras has divided the mean by the replicas, whose losses are averaged in the logs.
        tracker.update_state(loss * replicas, sample_weight=chunks.rows)
        return trainer.compute_metrics(x, y, outputs, sample_weight=sample_weight)

    def get_config(self) -> Config:
        """The constructor's arguments."""
        return {
            "name": self.name,
            "model": keras.saving.serialize_keras_object(self.model),
            "chunk_size": self.chunk_size,
            "batch_statistics": self.batch_statistics,
        }

    @classmethod
    def from_config(cls, config: Config, custom_objects: Mapping[str, Any] | None = None) -> Self:
        """The model of this configuration."""
        model = keras.saving.deserialize_keras_object(config["model"], custom_objects)
        return cls(**{**config, "model": model})


class _Traced:
    """What a look at a model has told, by the shapes of its inputs; Keras does not look into it."""

    def __init__(self) -> None:
        self.known: dict[Any, tuple[list[keras.Variable], Any]] = {}


class _Chunks:
    """The chunks of one batch, computed twice from the same states.

    Within both passes the states that a forward pass changes (seeds, moving averages) are handed
    from chunk to chunk, while the variables themselves stay as they are: the second pass begins
    where the first did, and so draws what it drew. `leave_states` writes what the first left.

    Args:
        model: what is computed.
        chunk_size: images at once.
        x: the batch's inputs.
        traced: what is known of the model.

    Attributes:
        rows: images of the batch, a number or a tensor.
    """

    def __init__(self, model: keras.Model, chunk_size: int, x: Any, traced: _Traced) -> None:
        self._model = model
        self._x = keras.tree.map_structure(tf.convert_to_tensor, x)
        first = keras.tree.flatten(self._x)[0]
        known = first.shape[0]
        self.rows = tf.shape(first)[0] if known is None else known
        self._size = tf.minimum(chunk_size, self.rows) if known is None else min(chunk_size, known)
        self._alone = known is not None and known <= chunk_size
        self._number = (self.rows + chunk_size - 1) // chunk_size
        self._states, self._specs = self._look(None if known is None else self._size, traced)
        # Whose masks are the whole batch's: every chunk draws them from the state of the step.
        self._whole = {
            id(layer.seed_generator.state)
            for layer in private.flat_layers(model)
            if getattr(layer, "draws_for_global_batch", False)
        }
        self._before = [tf.convert_to_tensor(variable.value) for variable in self._states]
        self._after: Sequence[Tensor] = self._before

    def outputs(self) -> Any:
        """The model's outputs of the whole batch."""
        if self._alone:
            outputs, self._after = self._computed(0, self._before)
            return outputs
        buffers = [tf.zeros([self.rows, *spec.shape[1:]], spec.dtype) for spec in self._flat_specs]

        def put(number: Tensor, states: Any, buffers: Any) -> Any:
            outputs, states = self._computed(number, states)
            rows = self._rows_of(number)
            filled = [
                tf.tensor_scatter_nd_update(
                    buffer, rows[:, None], self._where_new(number, chunk, tf.gather(buffer, rows))
                )
                for buffer, chunk in zip(buffers, keras.tree.flatten(outputs))
            ]
            return number + 1, states, filled

        _, self._after, buffers = self._over_chunks(put, self._before, buffers)
        return keras.tree.pack_sequence_as(self._specs, buffers)

    def gradients(
        self, variables: Sequence[keras.Variable], at_outputs: Sequence[Tensor | None]
    ) -> list[Tensor | None]:
        """The gradients of the variables for these at the outputs; None of one they do not meet."""
        met: set[int] = set()

        def add(number: Tensor, states: Any, totals: Any) -> Any:
            states, gradients = self._pulled(number, states, variables, at_outputs)
            met.update(place for place, each in enumerate(gradients) if each is not None)
            return number + 1, states, [_sum(pair) for pair in zip(totals, gradients)]

        if self._alone:
            return self._pulled(0, self._before, variables, at_outputs)[1]
        totals = [tf.zeros(variable.shape, variable.dtype) for variable in variables]
        _, _, totals = self._over_chunks(add, self._before, totals)
        return [total if place in met else None for place, total in enumerate(totals)]

    def leave_states(self) -> None:
        """Leave the states as the first pass left them."""
        for variable, value in zip(self._states, self._after):
            variable.assign(value)

    @property
    def _flat_specs(self) -> list[Any]:
        return keras.tree.flatten(self._specs)

    def _look(self, size: int | None, traced: _Traced) -> tuple[list[keras.Variable], Any]:
        """Which variables a forward pass changes, and what its outputs are like."""
        specs = keras.tree.map_structure(
            lambda tensor: tf.TensorSpec([size, *tensor.shape[1:]], tensor.dtype), self._x
        )
        key = tuple((tuple(spec.shape), spec.dtype) for spec in keras.tree.flatten(specs))
        if key in traced.known:
            return traced.known[key]
        states: list[keras.Variable] = []

        def look(x: Any) -> Any:
            with keras.StatelessScope(collect_losses=True, initialize_variables=False) as scope:
                outputs = self._model(x, training=True)
            if scope.losses:
                raise ArgumentError(
                    "model must have no layers that add losses of their activations, which are not "
                    f"the sums of their chunks'. Received: model={self._model.name}"
                )
            changed = [v for v in self._model.variables if scope.get_current_value(v) is not None]
            if len(changed) < len(scope.state_mapping):
                raise ArgumentError(
                    "model must have no layers that draw from Keras' global seed, whose two passes "
                    "would differ: give them a keras.random.SeedGenerator of their own. "
                    f"Received: model={self._model.name}"
                )
            states.extend(changed)
            return outputs

        function = tf.function(look, autograph=False).get_concrete_function(specs)
        traced.known[key] = states, function.structured_outputs
        return traced.known[key]

    def _over_chunks(self, body: Any, states: Any, carried: Any) -> Any:
        # One iteration after the other: together they would hold all activations after all.
        return tf.while_loop(
            lambda number, *_: number < self._number,
            body,
            (tf.constant(0), list(states), list(carried)),
            parallel_iterations=1,
        )

    def _start(self, number: Any) -> Any:
        return tf.minimum(number * self._size, self.rows - self._size)

    def _rows_of(self, number: Any) -> Tensor:
        return self._start(number) + tf.range(self._size)

    def _where_new(self, number: Any, chunk: Tensor, otherwise: Tensor) -> Tensor:
        """Rows of a chunk, but for those that were in the chunk before it."""
        new = self._rows_of(number) >= number * self._size
        return tf.where(tf.reshape(new, [-1] + [1] * (len(chunk.shape) - 1)), chunk, otherwise)

    def _scope(self, states: Sequence[Tensor]) -> keras.StatelessScope:
        values = [
            before if id(variable) in self._whole else state
            for variable, before, state in zip(self._states, self._before, states)
        ]
        mapping = list(zip(self._states, values))
        return keras.StatelessScope(state_mapping=mapping, initialize_variables=False)

    def _forward(self, number: Any, scope: keras.StatelessScope) -> tuple[Any, list[Tensor]]:
        """Outputs of a chunk, and the states behind it, in a scope that is open."""
        if self._alone:
            outputs = self._model(self._x, training=True)
        else:
            start = self._start(number)
            chunk = keras.tree.map_structure(
                lambda tensor: tf.slice(
                    tensor,
                    tf.stack([start, *[0] * (len(tensor.shape) - 1)]),
                    tf.stack([self._size, *[-1] * (len(tensor.shape) - 1)]),
                ),
                self._x,
            )
            with piece_of_batch(start, self.rows):
                outputs = self._model(chunk, training=True)
        return outputs, [scope.get_current_value(variable) for variable in self._states]

    def _computed(self, number: Any, states: Sequence[Tensor]) -> tuple[Any, list[Tensor]]:
        with self._scope(states) as scope:
            return self._forward(number, scope)

    def _pulled(
        self,
        number: Any,
        states: Sequence[Tensor],
        variables: Sequence[keras.Variable],
        at_outputs: Sequence[Tensor | None],
    ) -> tuple[list[Tensor], list[Tensor | None]]:
        """The states behind a chunk, and its share of the gradients."""
        # The gradient within the scope: layers that compute anew read their variables in it.
        with self._scope(states) as scope:
            with tf.GradientTape() as tape:
                outputs, behind = self._forward(number, scope)
            met = [
                (output, gradient)
                for output, gradient in zip(keras.tree.flatten(outputs), at_outputs)
                if gradient is not None
            ]
            targets = [output for output, _ in met]
            upstream = [gradient for _, gradient in met]
            if not self._alone:
                rows = self._rows_of(number)
                shares = [tf.gather(gradient, rows) for gradient in upstream]
                upstream = [
                    self._where_new(number, share, tf.zeros_like(share)) for share in shares
                ]
            gradients = tape.gradient(targets, list(variables), output_gradients=upstream)
        return behind, [None if each is None else tf.convert_to_tensor(each) for each in gradients]


def _sum(values: Sequence[Tensor | None]) -> Tensor | None:
    there = [value for value in values if value is not None]
    return sum(there[1:], start=there[0]) if there else None


def _takes_batch_statistics(layer: keras.layers.Layer) -> bool:
    batch_norm = isinstance(layer, keras.layers.BatchNormalization)
    frozen = isinstance(layer, FrozenStatisticsBatchNormalization)
    return batch_norm and not frozen and layer.trainable
