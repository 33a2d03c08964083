"""Training on large batches with the activation memory of a small batch, on every backend."""

import types
from collections.abc import Sequence
from typing import Any

import keras
from keras import ops

from keras_dml._backend import private
from keras_dml._backend.replicas import place_among_replicas
from keras_dml._backend.steps import applied, gradients, loop, values_of
from keras_dml._common.checks import check_bool, check_whole
from keras_dml._common.errors import ArgumentError, argument_error
from keras_dml._common.types import Logs, Tensor
from keras_dml.layers.frozen_statistics import FrozenStatisticsBatchNormalization
from keras_dml.layers.global_batch_dropout import GlobalBatchDropout, on_chunk
from keras_dml.layers.proxy_head import ProxyHead
from keras_dml.models.distributed_model import DistributedModel, Wrapper
from keras_dml.models.sampled_classes import SampledClasses


@keras.saving.register_keras_serializable("keras_dml")
class CachedGradients(SampledClasses, Wrapper):
    """A model that trains on batches of any size with the memory of `chunk_size` images.

    A loss over pairs needs the embeddings of the whole batch, but not all activations at the same
    time. A training step

    - computes the outputs of the whole batch, chunk by chunk, and discards the activations,
    - computes the loss over all outputs, and its gradient at the outputs,
    - recomputes each chunk, propagates its share of that gradient to the weights, and accumulates
      the chunks' gradients. Then the optimizer takes one step.

    The trained weights equal the weights of a step on the whole batch up to rounding. The cost is
    one more forward pass. The model can have several outputs, heads such as `ProxyHead`, and weight
    regularizers (which count once). `compile` takes any loss and metrics. Random layers draw the
    same values in both passes. `keras_dml.layers.GlobalBatchDropout` (as in `classifier_model`)
    draws one mask for the whole batch. The random layers of Keras draw for each chunk separately,
    so with them the weights correspond to a different but equally valid draw. If one chunk contains
    the batch, the draw is the same.

    Works with plain `compile` and `fit`, under every `tf.distribute` strategy (`chunk_size` is per
    replica), with loss scaling and several steps per execution, and within a memory:
    `CrossBatchMemory(CachedGradients(embedding, 32), memory_size=8192)`.

    If the batch size is not a multiple of `chunk_size`, the last chunk repeats some images, whose
    gradient counts once.

    Examples:
        >>> model = CachedGradients(embedding, chunk_size=32)
        >>> model.compile("adam", keras_dml.losses.RecallAtKLoss())
        >>> history = model.fit(batches)  # of 4,000 images
        >>> embedding.save("embedding.keras")

    Args:
        model: A built `keras.Model` whose layers process each image separately.
        chunk_size: Number of images to compute at once on a device.
        batch_statistics: Whether to allow batch norm that uses batch statistics. The statistics and
            the moving averages are then per chunk, and the weights differ from a step on the whole
            batch.
        name: Name of the model.

    Raises:
        ValueError: `chunk_size` is below 1, or the model is not built or is a `CrossBatchMemory`
            or `BackwardCompatible` (wrap the `CachedGradients` in it instead). In `compile` or
            `fit`: the model has batch norm without `batch_statistics`, layers with an activity
            regularizer or another loss on activations, or layers that draw from the global seed of
            Keras.

    References: Gao et al., "Scaling Deep Contrastive Learning Batch Size under Memory Limited
    Setup", 2021, section 3.2 (GradCache). Patel et al., "Recall@k Surrogate Loss", CVPR 2022, train
    in this way with 4,000 images in chunks of 200.
    """

    def __init__(
        self,
        model: keras.Model,
        chunk_size: int,
        *,
        batch_statistics: bool = False,
        name: str = "cached_gradients",
        **kwargs: Any,
    ) -> None:
        super().__init__(model, name, **kwargs)
        if not isinstance(model, keras.Model) or not model.built:
            raise argument_error("model", "a built keras.Model", model)
        if isinstance(model, Wrapper) and model.is_outermost:
            outermost = type(model).__name__
            advice = f"Use {outermost}(CachedGradients(model, chunk_size), …)."
            wanted = f"a model other than {outermost}"
            raise argument_error("model", wanted, model, advice=advice)
        self.chunk_size = check_whole("chunk_size", chunk_size, least=1)
        self.batch_statistics = check_bool("batch_statistics", batch_statistics)
        # Traces of the model, by input shapes. Keras does not track a namespace.
        self._traced = types.SimpleNamespace(known={})
        self.built = True

    @property
    def output_shape(self) -> Any:
        """Output shape of the model."""
        return self.model.output_shape

    @property
    def sampling_head(self) -> ProxyHead | None:
        """The head of the model that samples classes, or None."""
        return self.model.sampling_head if isinstance(self.model, SampledClasses) else None

    def get_layer(self, name: str | None = None, index: int | None = None) -> keras.Layer:
        """Return a layer of the model."""
        return self.model.get_layer(name, index)

    def check_layers(self) -> None:
        """Refuse layers for which the sum over chunks differs from the whole batch.

        Raises:
            ValueError: See the class.
        """
        for layer in private.flat_layers(self.model):
            if getattr(layer, "activity_regularizer", None) is not None:
                raise ArgumentError(
                    f"model must have no activity regularizer, but got one in layer {layer.name}. "
                    "Its value is not a sum over chunks."
                )
            is_live = isinstance(layer, keras.layers.BatchNormalization) and not isinstance(
                layer, FrozenStatisticsBatchNormalization
            )
            if is_live and layer.trainable and not self.batch_statistics:
                raise ArgumentError(
                    f"model must have no batch norm with batch statistics, but got {layer.name}. "
                    "The statistics would be per chunk. Freeze the layer (with_frozen_statistics, "
                    "trainable=False), or allow it with batch_statistics=True."
                )

    def _fit_to_replicas(self) -> None:
        super()._fit_to_replicas()
        self.check_layers()

    def train_step_of(self, trainer: DistributedModel, *args: Any) -> Any:
        """Run one step in chunks, with the loss, optimizer, and metrics of the outermost wrapper.

        Args:
            trainer: The compiled wrapper, with the outputs of this model.
            args: Arguments of `train_step`.
        """
        return trainer.logs_of(lambda data: self._step_of(trainer, data), *args)

    def _step_of(self, trainer: DistributedModel, data: Any) -> Logs:
        x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(data)
        _, replicas = place_among_replicas()
        chunks = _Chunks(self.model, self.chunk_size, x, self._traced)
        outputs = chunks.outputs()
        variables = trainer.trainable_variables

        def of_outputs(*flat: Tensor) -> tuple[Tensor, Tensor]:
            loss = trainer.compute_loss(
                x=x,
                y=y,
                y_pred=keras.tree.pack_sequence_as(outputs, flat),
                sample_weight=sample_weight,
                training=True,
            )
            return trainer.optimizer.scale_loss(loss), loss

        states = [
            *trainer.variables, *trainer.optimizer.variables, *trainer.metrics_variables
        ]  # fmt: skip
        # The loss also depends on the variables directly, through weight regularizers.
        _, loss, beside, at_outputs = gradients(
            of_outputs, variables, keras.tree.flatten(outputs), states=states
        )
        of_chunks = chunks.gradients(variables, at_outputs)
        chunks.leave_states()
        applied(trainer.optimizer, [_sum(pair) for pair in zip(of_chunks, beside)], variables)
        [tracker] = [metric for metric in trainer.metrics if metric.name == "loss"]
        # Keras divided the mean by the number of replicas, and the logs average over replicas.
        tracker.update_state(loss * replicas, sample_weight=chunks.rows)
        return trainer.compute_metrics(x, y, outputs, sample_weight=sample_weight)


class _Chunks:
    """The chunks of one batch, computed twice from the same states.

    In both passes, the states that a forward pass changes (seeds, moving averages) are passed from
    chunk to chunk, and the variables do not change. The second pass starts from the same states as
    the first, and so draws the same random numbers. `leave_states` writes the states after the
    first pass.

    Args:
        model: The model to run.
        chunk_size: Number of images per chunk.
        x: The inputs of the batch.
        traced: Cache of the model's traces.

    Attributes:
        rows: Number of images in the batch, a number or a tensor.
    """

    def __init__(self, model: keras.Model, chunk_size: int, x: Any, traced: Any) -> None:
        self._model = model
        self._x = keras.tree.map_structure(ops.convert_to_tensor, x)
        self.rows = ops.shape(keras.tree.flatten(self._x)[0])[0]
        rows = {tensor.shape[0] for tensor in keras.tree.flatten(self._x)} - {None}
        if len(rows) > 1:
            raise ArgumentError(
                f"x must have the same number of rows in each input, but got {sorted(rows)} rows."
            )
        known = self.rows if isinstance(self.rows, int) else None
        self._size = _least(chunk_size, self.rows)
        self._number = (self.rows + chunk_size - 1) // chunk_size
        # On JAX, the scope must provide all variables that a model reads.
        self._read = model.variables if keras.backend.backend() == "jax" else []
        self._values = values_of(self._read)
        self._states, self._specs = self._look(None if known is None else self._size, traced)
        # Every chunk draws these masks from the state at the start of the step, because the masks
        # cover the whole batch.
        self._whole = {
            id(layer.seed_generator.state)
            for layer in private.flat_layers(model)
            if isinstance(layer, GlobalBatchDropout)
        }
        self._before = [ops.copy(variable.value) for variable in self._states]
        self._after: Sequence[Tensor] = self._before

    def outputs(self) -> Any:
        """Compute the model's outputs for the whole batch."""
        specs = keras.tree.flatten(self._specs)
        buffers = [ops.zeros((self.rows, *spec.shape[1:]), dtype=spec.dtype) for spec in specs]

        def put(number: Tensor | int, states: Any, buffers: Any) -> Any:
            with self._scope(states):
                outputs, states = self._forward(number)
            rows = self._rows_of(number)
            filled = [
                ops.scatter_update(
                    buffer,
                    rows[:, None],
                    self._where_new(number, chunk, ops.take(buffer, rows, axis=0)),
                )
                for buffer, chunk in zip(buffers, keras.tree.flatten(outputs))
            ]
            return states, filled

        self._after, buffers = loop(self._number, put, (self._before, buffers))
        return keras.tree.pack_sequence_as(self._specs, buffers)

    def gradients(
        self, variables: Sequence[keras.Variable], at_outputs: Sequence[Tensor | None]
    ) -> list[Tensor | None]:
        """Compute the gradients of the variables. None for a variable without a gradient."""
        met: set[int] = set()

        def add(number: Tensor | int, states: Any, totals: Any) -> Any:
            rows = self._rows_of(number)
            shares = [ops.take(each, rows, axis=0) for each in at_outputs if each is not None]
            upstream = [self._where_new(number, share, ops.zeros_like(share)) for share in shares]

            def used_outputs() -> tuple[list[Tensor], list[Tensor]]:
                outputs, behind = self._forward(number)
                flat = zip(keras.tree.flatten(outputs), at_outputs)
                return [output for output, gradient in flat if gradient is not None], behind

            # Computed in the scope, because rematerialized layers read variables there.
            with self._scope(states):
                _, behind, of_chunk, _ = gradients(
                    used_outputs, variables, upstream=upstream, states=self._read
                )
            met.update(place for place, each in enumerate(of_chunk) if each is not None)
            return behind, [_sum(pair) for pair in zip(totals, of_chunk)]

        totals = [ops.zeros(variable.shape, dtype=variable.dtype) for variable in variables]
        _, totals = loop(self._number, add, (self._before, totals))
        if isinstance(self.rows, int) and not self.rows:
            return totals  # no chunk reaches any variable
        return [total if place in met else None for place, total in enumerate(totals)]

    def leave_states(self) -> None:
        """Assign the states after the first pass to the variables."""
        for variable, value in zip(self._states, self._after):
            variable.assign(value)

    def _look(self, size: Any, traced: Any) -> tuple[list[keras.Variable], Any]:
        """Find the variables that a forward pass changes, and the specs of its outputs.

        Args:
            size: Number of images in a chunk. None if it is known only when the graph runs.
            traced: Cache of the model's traces.
        """
        flat = keras.tree.flatten(self._x)
        key = size, *((tuple(x.shape[1:]), keras.backend.standardize_dtype(x.dtype)) for x in flat)
        if key in traced.known:
            return traced.known[key]
        of_model = {id(variable) for variable in self._model.variables}
        states: list[keras.Variable] = []

        def look(x: Any) -> Any:
            with keras.StatelessScope(
                state_mapping=list(zip(self._read, self._values)),
                collect_losses=True,
                initialize_variables=False,
            ) as scope:
                before = {id(variable): variable.value for variable in self._read}
                outputs = self._model(x, training=True)
            if scope.losses:
                raise ArgumentError(
                    "model must have no layers that add losses of their activations, but got one "
                    f"in {self._model.name}. These losses are not sums over chunks."
                )
            if not of_model.issuperset(scope.state_mapping):
                raise ArgumentError(
                    "model must have no layers that draw from the global seed of Keras, but got "
                    f"one in {self._model.name}. The two passes would differ, so give each layer a "
                    "keras.random.SeedGenerator."
                )
            for variable in self._model.variables:
                value = scope.get_current_value(variable)
                if value is not None and value is not before.get(id(variable)):
                    states.append(variable)
            return outputs

        outputs = _outputs_like(look, self._x, size)
        specs = keras.tree.map_structure(
            lambda x: keras.KerasTensor(x.shape, keras.backend.standardize_dtype(x.dtype)), outputs
        )
        traced.known[key] = states, specs
        return traced.known[key]

    def _start(self, number: Any) -> Any:
        return _least(number * self._size, self.rows - self._size)

    def _rows_of(self, number: Any) -> Tensor:
        return self._start(number) + ops.arange(self._size, dtype="int32")

    def _where_new(self, number: Any, chunk: Tensor, otherwise: Tensor) -> Tensor:
        """Return `chunk`, with `otherwise` in the rows that the previous chunk contained."""
        new = self._rows_of(number) >= number * self._size
        return ops.where(ops.reshape(new, [-1] + [1] * (len(chunk.shape) - 1)), chunk, otherwise)

    def _scope(self, states: Sequence[Tensor]) -> keras.StatelessScope:
        values = [
            before if id(variable) in self._whole else state
            for variable, before, state in zip(self._states, self._before, states)
        ]
        mapping = [*zip(self._read, self._values), *zip(self._states, values)]
        return keras.StatelessScope(state_mapping=mapping, initialize_variables=False)

    def _forward(self, number: Any) -> tuple[Any, list[Tensor]]:
        """Compute a chunk's outputs and the states after it, within the open scope."""
        start = self._start(number)
        chunk = keras.tree.map_structure(
            lambda tensor: ops.slice(
                tensor,
                [start, *[0] * (len(tensor.shape) - 1)],
                [self._size, *ops.shape(tensor)[1:]],
            ),
            self._x,
        )
        with on_chunk(start, self.rows):
            outputs = self._model(chunk, training=True)
        return outputs, values_of(self._states)


def _outputs_like(function: Any, x: Any, size: Any) -> Any:
    """Return a function's outputs for the first `size` rows, or tensors with their specs."""
    backend = keras.backend.backend()
    if backend == "tensorflow":
        import tensorflow as tf

        specs = keras.tree.map_structure(
            lambda tensor: tf.TensorSpec([size, *tensor.shape[1:]], tensor.dtype), x
        )
        traced = tf.function(function, autograph=False).get_concrete_function(specs)
        return traced.structured_outputs
    rows = keras.tree.map_structure(lambda tensor: tensor[:size], x)
    if backend == "jax":
        import jax

        return jax.eval_shape(function, rows)
    return function(rows)


def _least(a: Any, b: Any) -> Any:
    """Return the smaller of two numbers. The minimum of Python integers is a Python integer."""
    return min(a, b) if isinstance(a, int) and isinstance(b, int) else ops.where(a < b, a, b)


def _sum(values: Sequence[Tensor | None]) -> Tensor | None:
    there = [value for value in values if value is not None]
    return sum(there[1:], start=there[0]) if there else None
