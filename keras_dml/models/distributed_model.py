"""A `keras.Model` that trains under every `tf.distribute` strategy, and on every backend."""

from collections.abc import Callable
from typing import Any

import keras

from keras_dml import private
from keras_dml.checks import shown
from keras_dml.errors import ArgumentError, ArgumentTypeError
from keras_dml.extras import TensorFlow
from keras_dml.optimizers import as_on_one_device, refuse_accumulation
from keras_dml.steps import as_stateless, without_gradients
from keras_dml.types import Config, Logs

tf = TensorFlow("DistributedModel")


@keras.saving.register_keras_serializable("keras_dml")
class DistributedModel(private.BuildsOnBatch, keras.Model):
    """A `keras.Model` whose `fit` and `evaluate` work under every `tf.distribute` strategy.

    What follows is TensorFlow's. On JAX this is a `keras.Model` that `keras.distribution` spreads
    over devices, the losses seeing the global batch as on one; on PyTorch it trains on one device.
    A file that one backend has saved goes on in another.

    Made of inputs and outputs, `DistributedModel(inputs, outputs)`, or subclassed with `call`, as
    any Keras model. A subclass that has to do something around the replicas, not within them,
    overrides `step_on_replicas`.

    Under `MultiWorkerMirroredStrategy` with one device a worker, Keras 3 fails twice: it builds the
    model from the mean of a batch over the replicas, which TensorFlow does not take of a single
    local one, and it reduces the logs, which are scalars, over their first axis. And under every
    strategy it fails to take several steps an execution if the replicas exchange anything in them.

    And under every strategy an optimizer of Keras clips (`clipnorm`, `global_clipnorm`,
    `clipvalue`) each replica's part of the gradient before the parts are summed, and looks in the
    first's alone for the overflows of float16: here it clips the sum and looks at all parts, so
    that many devices train to what one does.

    In a loop of one's own, without `fit`: a loss that is called on a replica, ours or Keras', and
    reduces to a mean (`"sum_over_batch_size"`, the default, `"mean"`) has been divided by the
    number of replicas already. The replicas' gradients are thus parts of the global batch's, which
    `optimizer.apply` sums: do not divide again. Logged values are summed as well,
    `strategy.reduce("SUM", ...)`. `reduction="sum"` and `None` are divided by nothing. There is an
    example in BUILD.md; of the optimizers, only those of `keras_dml` clip the sum there.

    Examples:
        >>> inputs = keras.Input((4,))
        >>> model = DistributedModel(inputs, keras.layers.Dense(2)(inputs))
        >>> model.compile("adam", keras_dml.losses.SupConLoss())
        >>> type(model).__name__
        'FunctionalDistributedModel'

    Raises:
        TypeError: a subclass is given inputs and outputs.
        ValueError: several replicas, and `jit_compile=True` or an optimizer with
            `gradient_accumulation_steps`; in `compile`, or in the first step if set later.
    """

    _average_function: Callable[[], None] | None = None
    train_function: Callable[[Any], Logs] | None
    test_function: Callable[[Any], Logs] | None

    def __new__(cls, *args: Any, **kwargs: Any) -> "DistributedModel":
        """As `keras.Model`: with inputs and outputs, the class of functional models."""
        if cls is DistributedModel and (args or "outputs" in kwargs):
            return super().__new__(FunctionalDistributedModel)
        return super().__new__(cls)

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        # Keras would make this class a functional one, for good, and so break all other subclasses.
        if args or "outputs" in kwargs:
            raise ArgumentTypeError(
                "inputs and outputs are for DistributedModel itself; a subclass defines call(), or "
                f"derives from FunctionalDistributedModel. Received: {type(self).__name__}"
            )
        super().__init__(**kwargs)

    def compile(self, *args: Any, **kwargs: Any) -> None:
        """As `keras.Model.compile`, but for what several replicas cannot do; see the class."""
        super().compile(*args, **kwargs)
        self._fit_to_replicas()

    def compile_from_config(self, config: Config) -> None:
        """Compile as `get_compile_config` says; Keras does not where `compile` is overridden."""
        if type(self).compile is not DistributedModel.compile:
            super().compile_from_config(config)
            return
        self.compile(**keras.saving.deserialize_keras_object(config))
        if self.optimizer is not None and self.built:
            self.optimizer.build(self.trainable_variables)

    @property
    def wrapped(self) -> keras.Model | None:
        """The model that this one trains, as RankMI's embedding; None: itself."""
        return None

    def save(self, filepath: Any, *args: Any, **kwargs: Any) -> None:
        """As `keras.Model.save`.

        Raises:
            ValueError: an HDF5 file for a model around another, which could not be read again.
        """
        if self.wrapped is not None and str(filepath).endswith((".h5", ".hdf5")):
            raise ArgumentError(
                "filepath must end in .keras: HDF5 files hold no model around another. "
                f"Received: filepath={shown(filepath)}"
            )
        super().save(filepath, *args, **kwargs)

    def export(self, *args: Any, **kwargs: Any) -> None:
        """As `keras.Model.export`, of the model that is used where this one is around it."""
        export = super().export if self.wrapped is None else self.wrapped.export
        export(*args, **kwargs)

    @property
    def replicas(self) -> int:
        """Of a `tf.distribute` strategy, over whose gradients is summed; 1 on other backends."""
        return self.distribute_strategy.num_replicas_in_sync if _on_tensorflow() else 1

    def _fit_to_replicas(self) -> None:
        if self.replicas == 1:
            return
        if self.jit_compile:
            raise ArgumentError(
                "jit_compile cannot be used with several replicas: XLA compiles for one device. "
                f"Received: jit_compile={self.jit_compile}"
            )
        for optimizer in self._optimizers():
            refuse_accumulation(optimizer)
            as_on_one_device(optimizer)

    def _optimizers(self) -> list[keras.optimizers.Optimizer]:
        return [] if self.optimizer is None else [self.optimizer]

    def step_on_replicas(self, data: Any) -> Logs:
        """One training step on every replica; called in cross-replica context, on TensorFlow.

        Args:
            data: the batch, each replica's part of it.

        Returns:
            dict of the logs, one value each; see `reduce_logs`.
        """
        return self.reduce_logs(self.distribute_strategy.run(self.train_step, args=(data,)))

    def reduce_logs(self, logs: Logs) -> Logs:
        """The mean of each log over all replicas of all workers; the tensors themselves of one."""
        strategy = self.distribute_strategy
        if strategy.num_replicas_in_sync == 1:
            return logs
        return keras.tree.map_structure(
            lambda value: strategy.reduce("MEAN", value, axis=None), logs
        )

    def average_statistics(self) -> None:
        """Give every replica the mean of the replicas' moving statistics.

        Batch norm takes its statistics from the images of its own replica, and each replica keeps
        moving averages of its own, of which only the first's would be saved. Called between epochs,
        before an evaluation or a save.
        """
        if self.replicas == 1:
            return
        strategy = self.distribute_strategy
        averaged = [
            variable
            for variable in self.non_trainable_variables
            # The others are held equal by Keras, or are counters and seeds, which go alike.
            if variable.aggregation == "none" and "float" in str(variable.dtype)
        ]
        if not averaged:
            return
        if self._average_function is None:

            def average() -> None:
                # Copies: what is read off a variable has no device, which several workers miss.
                values = [tf.identity(tf.convert_to_tensor(v.value)) for v in averaged]
                means = tf.distribute.get_replica_context().all_reduce("MEAN", values)
                for variable, mean in zip(averaged, means):
                    variable.assign(mean)

            self._average_function = tf.function(lambda: strategy.run(average), autograph=False)
        self._average_function()

    def logs_of(self, step: Callable[[Any], Logs], *args: Any) -> Any:
        """What `train_step` or `test_step` returns where it is `step` of a batch.

        On JAX it is given the values of all variables too, and returns those that they then have.

        Args:
            step: reads variables and assigns to them.
            args: those of `train_step` or `test_step`.
        """
        if keras.backend.backend() != "jax":
            return without_gradients(step)(*args)
        values, data = args
        groups = [
            self.trainable_variables,
            self.non_trainable_variables,
            *([self.optimizer.variables] if len(values) == 4 else []),
            self.metrics_variables,
        ]
        flat = [variable for group in groups for variable in group]
        pure = as_stateless(step, flat)
        logs, after = pure([value for group in values for value in group], data)
        rest = iter(after)
        return logs, tuple([next(rest) for _ in group] for group in groups)

    def make_train_function(self, force: bool = False) -> Callable[[Any], Logs]:
        """The function of an iterator that `fit` calls: one execution, perhaps of many steps."""
        if not _on_tensorflow():
            return super().make_train_function(force)
        if self.train_function is None or force:
            # Again: since compile an optimizer may have been replaced, or made those within it.
            self._fit_to_replicas()
            self.train_function = self._iterator_function(self.step_on_replicas)
        return self.train_function

    def make_test_function(self, force: bool = False) -> Callable[[Any], Logs]:
        """The function of an iterator that `evaluate` calls."""
        if not _on_tensorflow():
            return super().make_test_function(force)
        if self.test_function is None or force:
            self.test_function = self._iterator_function(self._test_on_replicas)
        return self.test_function

    def _test_on_replicas(self, data: Any) -> Logs:
        return self.reduce_logs(self.distribute_strategy.run(self.test_step, args=(data,)))

    def _iterator_function(self, step_function: Callable[[Any], Logs]) -> Callable[[Any], Logs]:
        if self.distribute_strategy.num_replicas_in_sync == 1:
            around = _AroundReplicas(self, self.steps_per_execution)
            return private.iterator_function(around, step_function)
        # Keras would take the steps of one execution in a tf.while_loop, where TensorFlow cannot
        # number the messages between the replicas.
        one_step = private.iterator_function(_AroundReplicas(self, 1), step_function)

        def several_steps(iterator: Any) -> Logs:
            if self.steps_per_execution == 1 or not hasattr(iterator, "get_next_as_optional"):
                return one_step(iterator)
            logs = None
            for _ in range(self.steps_per_execution):
                # Asked for before the step, some of which would be taken without data otherwise.
                batch = iterator.get_next_as_optional()
                if not batch.has_value():
                    break
                logs = one_step(iter([batch.get_value()]))
            if logs is None:
                raise StopIteration
            return logs

        return several_steps

    def first_batch(self, iterator: Any) -> Any:
        """As `BuildsOnBatch`: one replica's part, of which only shapes and dtypes are looked at."""
        strategy = private.made_under(self)
        if strategy is None:
            return None
        _, _, batches = next(iter(iterator))
        return keras.tree.map_structure(
            lambda value: strategy.experimental_local_results(value)[0], next(batches)
        )


@keras.saving.register_keras_serializable("keras_dml")
class FunctionalDistributedModel(DistributedModel, private.Functional):
    """What `DistributedModel(inputs, outputs)` makes.

    Examples:
        >>> inputs = keras.Input((4,))
        >>> model = DistributedModel(inputs, keras.layers.Dense(2)(inputs))
        >>> isinstance(model, FunctionalDistributedModel), model.output_shape
        (True, (None, 2))
    """

    __init__ = private.Functional.__init__


def _on_tensorflow() -> bool:
    return keras.backend.backend() == "tensorflow"


class _AroundReplicas:
    """A model as `private.iterator_function` sees it, with a strategy whose `run` is a plain call.

    So a step is called where Keras would have sent its own to the replicas, and all the rest
    (several steps an execution, data that ends amid one, eager and XLA) stays Keras' own.
    """

    def __init__(self, model: keras.Model, steps_per_execution: int) -> None:
        self._model = model
        self.steps_per_execution = steps_per_execution

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)

    @property
    def distribute_strategy(self) -> "_AroundReplicas":
        return self

    @staticmethod
    def run(step: Callable[..., Logs], args: tuple[Any, ...]) -> Logs:
        return step(*args)
