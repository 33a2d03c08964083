"""A `keras.Model` that trains under every `tf.distribute` strategy and on every backend."""

import inspect
from collections.abc import Callable, Iterable
from typing import Any, ClassVar

import keras

from keras_dml._backend import private
from keras_dml._backend.cloning import of_any_backend
from keras_dml._backend.configured import Configured
from keras_dml._backend.steps import as_stateless, without_gradients
from keras_dml._common.errors import ArgumentTypeError, argument_error
from keras_dml._common.extras import TensorFlow
from keras_dml._common.types import Config, Logs, Tensor, TensorLike
from keras_dml._pairwise.pairs import Sets
from keras_dml.optimizers import as_on_one_device, refuse_accumulation

tf = TensorFlow("DistributedModel")

TWO_SETS = "Evaluate the two sets of embeddings with keras_dml.metrics"
"""The advice for `compile` of models of two sets of embeddings, which have no metrics."""


@keras.saving.register_keras_serializable("keras_dml")
class DistributedModel(private.BuildsOnBatch, keras.Model):
    """A `keras.Model` whose `fit` and `evaluate` work under every `tf.distribute` strategy.

    This class changes behavior only on TensorFlow. On JAX it is a `keras.Model` that
    `keras.distribution` spreads over devices, and losses see the global batch as on one device. On
    PyTorch it trains on one device. Each backend can resume training from a file that another
    backend saved.

    Create it from inputs and outputs, `DistributedModel(inputs, outputs)`, or subclass it and
    define `call`, as with any Keras model. A subclass that runs code outside the replicas overrides
    `step_on_replicas`.

    This class works around three limits of Keras 3:

    - Under `MultiWorkerMirroredStrategy` with one device per worker, Keras builds the model from
      the mean of a batch over the replicas, which TensorFlow refuses for a single local replica. It
      also reduces the logs, which are scalars, over their first axis.
    - Under every strategy, several steps per execution fail if the replicas communicate within a
      step.
    - Under every strategy, a Keras optimizer clips (`clipnorm`, `global_clipnorm`, `clipvalue`)
      each replica's part of the gradient before the sum, and checks only the first replica for
      float16 overflows. This class clips the sum and checks all replicas, so that training on many
      devices matches training on one.

    In a custom training loop, without `fit`, do not divide the loss by the number of replicas. A
    mean loss (`"sum_over_batch_size"`, the default, or `"mean"`) that is called on a replica, ours
    or a Keras loss, is already divided by the number of replicas. Each replica's gradient is thus a
    part of the global batch's gradient, and `optimizer.apply` sums the parts. Sum logged values in
    the same way, `strategy.reduce("SUM", ...)`. `reduction="sum"` and `None` do not divide.
    docs/pages/guides/devices.md has an example. In such a loop, only the optimizers of `keras_dml`
    clip the sum.

    Examples:
        >>> inputs = keras.Input((4,))
        >>> model = DistributedModel(inputs, keras.layers.Dense(2)(inputs))
        >>> model.compile("adam", keras_dml.losses.SupConLoss())
        >>> type(model).__name__
        'FunctionalDistributedModel'

    Raises:
        TypeError: A subclass is called with inputs and outputs.
        ValueError: There are several replicas, and `jit_compile=True` or an optimizer with
            `gradient_accumulation_steps` is set. `compile` raises it, or the first step if the
            value is set later.
    """

    _average_function: Callable[[], None] | None = None
    train_function: Callable[[Any], Logs] | None
    test_function: Callable[[Any], Logs] | None

    def __new__(cls, *args: Any, **kwargs: Any) -> "DistributedModel":
        """Return an instance of the functional class if inputs and outputs are passed."""
        if cls is DistributedModel and (args or "outputs" in kwargs):
            return super().__new__(FunctionalDistributedModel)
        return super().__new__(cls)

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        # Keras would make this class functional permanently, which breaks all other subclasses.
        if args or "outputs" in kwargs:
            raise ArgumentTypeError(
                "inputs and outputs must be left out for a subclass of DistributedModel, but got "
                f"both for {type(self).__name__}. Define call(), or derive from "
                "FunctionalDistributedModel."
            )
        super().__init__(**kwargs)

    def compile(self, *args: Any, **kwargs: Any) -> None:
        """Compile as in `keras.Model`, and check that several replicas can run it."""
        super().compile(*args, **kwargs)
        given = inspect.signature(keras.Model.compile).bind(self, *args, **kwargs).arguments
        self._given_jit_compile = given.get("jit_compile", "auto")
        self._fit_to_replicas()

    def get_compile_config(self) -> Config:
        """Return the arguments of `compile` for any backend. Empty before `compile`.

        Keras writes PyTorch's optimizers, and `jit_compile` as this backend resolves `"auto"`.
        """
        config = super().get_compile_config()
        if not config:
            return {}
        return of_any_backend({**config, "jit_compile": self._given_jit_compile})

    def compile_from_config(self, config: Config) -> None:
        """Compile with the arguments from `get_compile_config`.

        Keras does not if `compile` is overridden, as in the models of this package. Files that
        earlier releases saved on PyTorch contain PyTorch's optimizers.
        """
        config = of_any_backend(config)
        if not type(self).compile.__module__.startswith("keras_dml."):
            super().compile_from_config(config)
            return
        self.compile(**keras.saving.deserialize_keras_object(config))
        if self.optimizer is not None and self.built and not self.optimizer.built:
            self.optimizer.build(self.trainable_variables)

    @property
    def wrapped(self) -> keras.Model | None:
        """The model that this model trains, such as RankMI's embedding. None: this model."""
        return None

    def export(self, *args: Any, **kwargs: Any) -> None:
        """Export as in `keras.Model.export`. A model around another model exports the inner
        model."""
        export = super().export if self.wrapped is None else self.wrapped.export
        export(*args, **kwargs)

    @property
    def replicas(self) -> int:
        """Number of replicas of the `tf.distribute` strategy. 1 on other backends."""
        return self.distribute_strategy.num_replicas_in_sync if _on_tensorflow() else 1

    def _fit_to_replicas(self) -> None:
        if self.replicas == 1:
            return
        if self.jit_compile:
            wanted, advice = "False with several replicas", "XLA compiles for one device."
            raise argument_error("jit_compile", wanted, self.jit_compile, advice=advice)
        for optimizer in self._optimizers():
            refuse_accumulation(optimizer)
            as_on_one_device(optimizer)

    def _optimizers(self) -> list[keras.Optimizer]:
        return [] if self.optimizer is None else [self.optimizer]

    def step_on_replicas(self, data: Any) -> Logs:
        """Run one training step on every replica, called in cross-replica context on TensorFlow.

        Args:
            data: The batch, as the parts of the replicas.

        Returns:
            Dictionary of the logs, one value each; see `reduce_logs`.
        """
        return self.reduce_logs(self.distribute_strategy.run(self.train_step, args=(data,)))

    def reduce_logs(self, logs: Logs) -> Logs:
        """Average each log over all replicas of all workers. One replica's logs are returned
        unchanged."""
        strategy = self.distribute_strategy
        if strategy.num_replicas_in_sync == 1:
            return logs
        return keras.tree.map_structure(
            lambda value: strategy.reduce("MEAN", value, axis=None), logs
        )

    def with_regularizers(self, value: Tensor) -> Tensor:
        """Add this replica's share of the weight regularizers to a loss.

        They are equal on every replica, and the losses of the replicas are summed.
        """
        for regularizer in self.losses:
            value = value + keras.ops.cast(keras.ops.sum(regularizer), value.dtype) / self.replicas
        return value

    def average_statistics(self) -> None:
        """Average the moving statistics over the replicas, and assign the mean to every replica.

        Batch norm takes its statistics from the images of one replica. Each replica has its moving
        averages, and only the first replica's averages would be saved. Call this between epochs,
        before an evaluation or a save.
        """
        if self.replicas == 1:
            return
        strategy = self.distribute_strategy
        averaged = [
            variable
            for variable in self.non_trainable_variables
            # Keras keeps the other variables equal, or they are counters and seeds, which stay
            # equal.
            if variable.aggregation == "none" and "float" in str(variable.dtype)
        ]
        if not averaged:
            return
        if self._average_function is None:

            def average() -> None:
                # Copies, because a value read from a variable has no device, which several workers
                # need.
                values = [tf.identity(tf.convert_to_tensor(v.value)) for v in averaged]
                means = tf.distribute.get_replica_context().all_reduce("MEAN", values)
                for variable, mean in zip(averaged, means):
                    variable.assign(mean)

            self._average_function = tf.function(lambda: strategy.run(average), autograph=False)
        self._average_function()

    def logs_of(self, step: Callable[[Any], Logs], *args: Any) -> Any:
        """Return the result of `train_step` or `test_step` if their work is `step` on a batch.

        On JAX, the arguments include the values of all variables, and the result includes their new
        values.

        Args:
            step: Function of a batch that reads and assigns variables, and returns the logs.
            args: Arguments of `train_step` or `test_step`.
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
        """Return the function of an iterator that `fit` calls: one execution of one or more
        steps."""
        if not _on_tensorflow():
            return super().make_train_function(force)
        if self.train_function is None or force:
            # Again, because optimizers may have been replaced or created since `compile`.
            self._fit_to_replicas()
            self._build_optimizer()
            self.train_function = self._iterator_function(self.step_on_replicas)
        return self.train_function

    def _build_optimizer(self) -> None:
        # TensorFlow traces a function again if its first call creates variables.
        if self.built and self.optimizer is not None and not self.optimizer.built:
            with self.distribute_strategy.scope():
                self.optimizer.build(self.trainable_variables)

    def make_test_function(self, force: bool = False) -> Callable[[Any], Logs]:
        """Return the function of an iterator that `evaluate` calls."""
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
        # Keras would run the steps of one execution in a tf.while_loop, in which TensorFlow cannot
        # number the messages between the replicas.
        one_step = private.iterator_function(_AroundReplicas(self, 1), step_function)

        def several_steps(iterator: Any) -> Logs:
            if self.steps_per_execution == 1 or not hasattr(iterator, "get_next_as_optional"):
                return one_step(iterator)
            logs = None
            for _ in range(self.steps_per_execution):
                # Get the batch before the step, so that no step runs without data.
                batch = iterator.get_next_as_optional()
                if not batch.has_value():
                    break
                logs = one_step(iter([batch.get_value()]))
            if logs is None:
                raise StopIteration
            return logs

        return several_steps


@keras.saving.register_keras_serializable("keras_dml")
class FunctionalDistributedModel(DistributedModel, private.Functional):
    """The class of `DistributedModel(inputs, outputs)`.

    Examples:
        >>> inputs = keras.Input((4,))
        >>> model = DistributedModel(inputs, keras.layers.Dense(2)(inputs))
        >>> isinstance(model, FunctionalDistributedModel), model.output_shape
        (True, (None, 2))
    """

    __init__ = private.Functional.__init__


class TwoSets(DistributedModel):
    """A model of two sets of embeddings, queries and candidates, that a loss compares."""

    def sets_of(self, y: Any, y_pred: Any, first: Tensor | int = 0) -> Sets:
        """Return labels and embeddings of both sets.

        Args:
            y: Labels, a tuple (query labels, candidate labels), or None.
            y_pred: Embeddings (queries, candidates).
            first: Label of the first row of the global batch, without labels.
        """
        raise NotImplementedError

    def factor(self) -> Tensor | None:
        """Return the learned factor of the similarities, or None."""
        raise NotImplementedError

    def offset(self) -> Tensor | None:
        """Return the learned number that is added to the similarities, or None."""
        raise NotImplementedError

    def compute_loss_with(
        self, loss: keras.losses.Loss, y: Any, y_pred: Any, sample_weight: TensorLike | None
    ) -> Tensor:
        """Compute the value of a loss for a batch, and the weight regularizers."""
        raise NotImplementedError


class Wrapper(Configured, DistributedModel):
    """A model that trains another model, `wrapped`, and computes the same outputs.

    Only the outermost wrapper is compiled. It asks the model within for what depends on that model:
    how a step is computed (`train_step_of`), which layers it allows (`check_layers`), and the loss
    of `TwoSets`.

    Args:
        model: A built `keras.Model`.
        name: Name of the model.

    Attributes:
        is_outermost: Whether no other wrapper can be around this one.
    """

    is_outermost: ClassVar[bool] = False

    def __init__(self, model: keras.Model, name: str, **kwargs: Any) -> None:
        # No autocast, because the inner model casts its inputs under mixed precision.
        super().__init__(name=name, autocast=False, **kwargs)
        self.model = model

    @property
    def wrapped(self) -> keras.Model:
        """The inner model."""
        return self.model

    @property
    def two_sets(self) -> TwoSets | None:
        """The innermost model if it computes two sets of embeddings, else None."""
        inner = self.wrapped
        if isinstance(inner, Wrapper):
            return inner.two_sets
        return inner if isinstance(inner, TwoSets) else None

    def call(self, images: Tensor, training: bool = False) -> Any:
        """Compute the outputs of the inner model."""
        return self.wrapped(images, training=training)

    def count_params(self) -> int:
        """Return the number of parameters of the inner model."""
        return self.wrapped.count_params()

    def check_layers(self) -> None:
        """Refuse layers that the steps of this model or of a wrapper within do not allow.

        Raises:
            ValueError: See the class.
        """
        if isinstance(self.wrapped, Wrapper):
            self.wrapped.check_layers()

    def train_step(self, *args: Any) -> Any:
        """Run one step on (images, labels[, sample weights]), and return the logs."""
        return self.train_step_of(self, *args)

    def train_step_of(self, trainer: DistributedModel, *args: Any) -> Any:
        """Run one step with the loss, optimizer, and metrics of the outermost wrapper.

        Args:
            trainer: The compiled wrapper, with the outputs of this model.
            args: Arguments of `train_step`.
        """
        if isinstance(self.wrapped, Wrapper):
            return self.wrapped.train_step_of(trainer, *args)
        return DistributedModel.train_step(trainer, *args)

    def compute_loss(
        self,
        x: Any = None,
        y: Any = None,
        y_pred: Any = None,
        sample_weight: TensorLike | None = None,
        training: bool = True,
    ) -> Tensor:
        """Compute the loss of a batch, of two sets of embeddings between them."""
        if self.two_sets is not None:
            return self.two_sets.compute_loss_with(self.loss, y, y_pred, sample_weight)
        return super().compute_loss(x, y, y_pred, sample_weight, training)


def _on_tensorflow() -> bool:
    return keras.backend.backend() == "tensorflow"


def refuse_arguments(given: dict[str, Any], names: Iterable[str], advice: str) -> None:
    """Remove these arguments of `compile` from `given`. Raise `ValueError` if one is set."""
    for name in names:
        value = given.pop(name, None)
        if value is not None:
            raise argument_error(name, "left out of compile()", value, advice=f"{advice}.")


class _AroundReplicas:
    """A view of a model for `private.iterator_function`, whose strategy's `run` is a plain call.

    Keras then calls the step function directly, instead of sending its step to the replicas. Keras
    still handles the rest: several steps per execution, data that ends within an execution, eager
    mode, and XLA.
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
