"""The RankMI model with its alternating training step, on every backend."""

import itertools
from collections.abc import Callable
from typing import Any, Literal

import keras
import numpy as np
from keras import ops

from keras_dml._backend.cloning import of_any_backend
from keras_dml._backend.configured import Configured
from keras_dml._backend.replicas import place_among_replicas
from keras_dml._backend.steps import applied, branch, gradients
from keras_dml._common.checks import (
    check_choice,
    check_distance,
    check_positive,
    check_seed,
    check_whole,
)
from keras_dml._common.errors import ArgumentError, argument_error
from keras_dml._common.types import Config, Logs, Tensor, TensorLike
from keras_dml._pairwise.arithmetic import are_finite, maximum
from keras_dml._pairwise.arrays import (
    are_apart,
    as_labels,
    check_embeddings,
    check_rows,
    checked_class_ids,
    known_shape,
    one_per_image,
    widest_integers,
)
from keras_dml._pairwise.divergence import negative_costs, positive_costs
from keras_dml._pairwise.negatives import distance_weighted, draw_negatives
from keras_dml._pairwise.pairs import Pairs, normalize, pair_means
from keras_dml.models.distributed_model import DistributedModel, refuse_arguments
from keras_dml.models.embeddings import check_embedding_model
from keras_dml.models.statistics_network import (
    HIGHEST,
    StatisticsNetwork,
    check_statistics_network,
    estimate_beta,
)

SAMPLINGS = ("distance_weighted", "uniform", "all")


@keras.saving.register_keras_serializable("keras_dml")
class RankMI(Configured, DistributedModel):
    """A model that trains an embedding by RankMI: `compile`, then `fit` on class ids.

    Two networks learn in alternation. The statistics network V estimates a lower bound of the
    Jensen-Shannon divergence between the distances of positive pairs and of negative pairs. The
    embedding network raises that bound. With step t from 0 (Algorithm 1):

    - t mod (k + 1) = 0: an embedding step. It uses positive pairs with D > β − α and negative pairs
      with D < β + α, and can sample the negative pairs. The loss is `losses.RankMILoss` over these
      pairs. Without such pairs, loss and gradient are 0. V does not change.
    - Otherwise: a statistics step on all pairs, without a gradient through the embedding network.
      Then `estimate_beta` recomputes β, where V is 0.

    D are distances of l2-normalized embeddings, over the pairs of the global batch. The embedding
    network runs in training mode in both steps, so that V sees the distances of the embedding step.
    Trainable batch norm updates its statistics in both steps.

    Sample weights weight the anchors of a step's loss. `evaluate` uses the pairs within each batch,
    and weights batches by their number of pairs.

    Each log is the mean over the epoch's steps of its phase, or 0 without such steps:

    - `loss`: the loss of the embedding steps
    - `statistics_loss`: the loss of the statistics steps
    - `mutual_information`: minus the loss over all pairs, which is the bound in nats, below 2 log 2
    - `positive_kept` and `negative_kept`: the fractions of pairs within the margins in embedding
      steps
    - `not_decreasing`: the fraction of distances, in a grid of 1/256, where V does not decrease, as
      Eq. 9 requires

    Two more logs are not means: `beta` is the last β. `beta_not_found` counts the statistics steps
    since the model was created after which V had no zero between 0 and 2, so that the last β
    stayed.

    Examples:
        >>> inputs = keras.Input((4,))
        >>> embedding = keras.Model(inputs, keras.layers.Dense(8)(inputs))
        >>> model = RankMI(embedding)
        >>> model.compile(keras.optimizers.Adam(1e-3))
        >>> tuple(model(np.ones([2, 4], "float32")).shape)
        (2, 8)

    Args:
        embedding: A built `keras.Model` from images to embeddings `[n, d]`.
        statistics_network: A built Keras layer from distances `[m, 1]` to values `[m, 1]`. The
            default is `StatisticsNetwork(zero_at=beta)`.
        k: Number of statistics steps per embedding step, at least 1.
        beta: β₀, a distance in (0, 2) from which to search the first zero of V.
        alpha: α > 0, the margin around β within which a pair counts.
        sampling: Sampling of the negative pairs in embedding steps. `"distance_weighted"` or
            `"uniform"` draws one negative pair of the anchor for every positive pair, as a
            pure function of (seed, step, anchor). `"all"` uses all negative pairs within the
            margin.
        seed: Seed of the draws.

    Raises:
        ValueError: An argument is out of range, or a network is not built or has the wrong shape.

    Reference: Kemertas et al., "RankMI: A Mutual Information Maximizing Ranking Loss", CVPR 2020,
    Algorithm 1 and section 4.1 (whose settings are the defaults).
    """

    def __init__(
        self,
        embedding: keras.Model,
        *,
        statistics_network: keras.Layer | None = None,
        k: int = 1,
        beta: float = 1.0,
        alpha: float = 0.2,
        sampling: Literal["distance_weighted", "uniform", "all"] = "distance_weighted",
        seed: int = 0,
        name: str = "rankmi",
        **kwargs: Any,
    ) -> None:
        super().__init__(name=name, **kwargs)
        check_embedding_model("embedding", embedding)
        self.k = check_whole("k", k, least=1)
        self.alpha, self.first_beta = check_positive("alpha", alpha), check_distance("beta", beta)
        self.seed = check_seed("seed", seed)
        self.sampling = check_choice("sampling", sampling, SAMPLINGS)
        self.embedding = embedding
        self.statistics_network = statistics_network or StatisticsNetwork(zero_at=self.first_beta)
        check_statistics_network(self.statistics_network)
        dtype = self.statistics_network.compute_dtype
        first = ops.convert_to_tensor(self.first_beta, dtype=dtype)
        start, _ = estimate_beta(self.statistics_network, first)
        shared = {"trainable": False, "aggregation": "only_first_replica", "shape": ()}
        self.beta = self.add_weight(
            name="beta", initializer=lambda *_, **__: ops.copy(start), dtype=dtype, **shared
        )
        whole = widest_integers()
        self.step = self.add_weight(name="step", initializer="zeros", dtype=whole, **shared)
        self.beta_not_found = self.add_weight(
            name="beta_not_found", initializer="zeros", dtype=whole, **shared
        )
        names = ("loss", "statistics_loss", "mutual_information", "positive_kept",
                 "negative_kept", "not_decreasing")  # fmt: skip
        self.means = {name: keras.metrics.Mean(name=name) for name in names}
        self.built = True

    @property
    def wrapped(self) -> keras.Model:
        """The embedding model."""
        return self.embedding

    def call(self, images: Tensor, training: bool = False) -> Tensor:
        """Compute the embeddings of the images."""
        return self.embedding(images, training=training)

    def compile(
        self,
        optimizer: keras.Optimizer | str = "adam",
        statistics_optimizer: keras.Optimizer | str = "adam",
        steps_per_execution: int = 1,
        **kwargs: Any,
    ) -> None:
        """Set the optimizers of the two networks.

        Args:
            optimizer: Optimizer of the embedding network.
            statistics_optimizer: Optimizer of V. Neither optimizer touches the variables or slots
                of the other network. The paper uses Adam, 1e-3, for both.
            steps_per_execution, run_eagerly, jit_compile, auto_scale_loss: As in Keras.

        Raises:
            ValueError: A loss or metrics are set, but RankMI has a fixed loss and logs. Also if
                both networks have the same optimizer.
        """
        fixed = ("loss", "metrics", "weighted_metrics", "loss_weights")
        refuse_arguments(kwargs, fixed, "RankMI has a fixed loss and fixed logs")
        if statistics_optimizer is optimizer and not isinstance(optimizer, str):
            raise ArgumentError(
                "statistics_optimizer must be a separate optimizer, but got the optimizer of the "
                "embedding network."
            )
        super().compile(optimizer=optimizer, steps_per_execution=steps_per_execution, **kwargs)
        self.statistics_optimizer = keras.optimizers.get(statistics_optimizer)
        self.optimizer.build(self.embedding.trainable_variables)
        self.statistics_optimizer.build(self.statistics_network.trainable_variables)
        self._fit_to_replicas()

    def _optimizers(self) -> list[keras.Optimizer]:
        # The second optimizer does not exist yet when `compile` of Keras sets the first.
        second = getattr(self, "statistics_optimizer", None)
        return [*super()._optimizers(), *([] if second is None else [second])]

    def get_compile_config(self) -> Config:
        """Return the optimizers and the execution options. Empty before `compile`."""
        if not self.compiled:
            return {}
        second = keras.saving.serialize_keras_object(self.statistics_optimizer)
        second = of_any_backend(second)
        return {**super().get_compile_config(), "statistics_optimizer": second}

    @property
    def metrics_variables(self) -> list[keras.Variable]:
        """The variables of the metrics, and on JAX also the variables of V's optimizer.

        On JAX, Keras passes to a step only the variables of the model, of `optimizer`, and these.
        """
        optimizer = getattr(self, "statistics_optimizer", None)
        if optimizer is None or keras.backend.backend() != "jax":
            return super().metrics_variables
        return [*super().metrics_variables, *optimizer.variables]

    def step_on_replicas(self, data: Any) -> Logs:
        """Run one step. The phase is chosen outside the replicas.

        Within replicas, optimizers refuse to update in a `tf.cond`.
        """
        import tensorflow as tf  # replicas are TensorFlow's

        strategy = self.distribute_strategy
        if not tf.distribute.has_strategy() and strategy is tf.distribute.get_strategy():
            return super().step_on_replicas(data)  # this limit applies only with a strategy
        return self._alternate(lambda step: self.reduce_logs(strategy.run(step, args=(data,))))

    def train_step(self, *args: Any) -> Any:
        """Run one step of Algorithm 1 on (images, class ids[, sample weights])."""
        return self.logs_of(self._trained, *args)

    def _trained(self, data: Any) -> Logs:
        if self._has_no_images(data):
            return self.get_metrics_result()
        return self._alternate(lambda step: step(data))

    def _has_no_images(self, data: Any) -> bool:
        """Return whether to skip an empty batch. Several replicas run it to exchange rows."""
        class_ids = keras.utils.unpack_x_y_sample_weight(data)[1]
        return self.replicas == 1 and (known_shape(class_ids) or ())[:1] == (0,)

    def _alternate(self, run: Callable[[Callable[[Any], Logs]], Logs]) -> Logs:
        return branch(
            ops.equal(self.step.value % (self.k + 1), 0),
            lambda: run(self.embedding_step),
            lambda: run(self.statistics_step),
            self._all_variables(),
        )

    def _all_variables(self) -> list[keras.Variable]:
        """Return all variables that a step reads or assigns."""
        of_optimizers = (each.variables for each in self._optimizers())
        return [*self.variables, *itertools.chain(*of_optimizers), *self.metrics_variables]

    def embedding_step(self, data: Any) -> Logs:
        """Update the embedding network on the pairs within the margins."""
        images, class_ids, weights = keras.utils.unpack_x_y_sample_weight(data)

        def lowered() -> tuple[Tensor, Any]:
            embeddings = self.embedding(images, training=True)
            pairs, distances, values, sound = self._pairs(class_ids, embeddings)
            positive = pairs.positive & (distances > self.beta.value - self.alpha)
            negative = pairs.negative & (distances < self.beta.value + self.alpha)
            tightness = pair_means(positive_costs(values), positive)
            contrastive = self._sampled_contrastive(pairs, distances, values, negative)
            loss = _mean_over_anchors(tightness + contrastive, weights, sound)
            total = self._share_of_replica(loss, *self.embedding.losses)
            seen = pairs.positive, pairs.negative, distances, _loss_of_all(pairs, values)
            return self.optimizer.scale_loss(total), (loss, positive, negative, seen)

        loss, positive, negative, seen = self._descend(lowered, self.embedding, self.optimizer)
        self.means["loss"].update_state(loss)
        self._count("positive_kept", positive, seen[0])
        self._count("negative_kept", negative, seen[1])
        return self._after(*seen)

    def statistics_step(self, data: Any) -> Logs:
        """Update V on all pairs, then find β."""
        images, class_ids, weights = keras.utils.unpack_x_y_sample_weight(data)
        embeddings = ops.stop_gradient(self.embedding(images, training=True))

        def lowered() -> tuple[Tensor, Any]:
            pairs, distances, values, sound = self._pairs(class_ids, embeddings)
            of_all = _loss_of_all(pairs, values)
            loss = _mean_over_anchors(of_all, weights, sound)
            total = self._share_of_replica(loss, *self.statistics_network.losses)
            seen = pairs.positive, pairs.negative, distances, of_all
            return self.statistics_optimizer.scale_loss(total), (loss, seen)

        loss, seen = self._descend(lowered, self.statistics_network, self.statistics_optimizer)
        beta, found = estimate_beta(self.statistics_network, self.beta.value)
        self.beta.assign(beta)
        not_found = ops.cast(ops.logical_not(found), self.beta_not_found.dtype)
        self.beta_not_found.assign_add(not_found)
        self.means["statistics_loss"].update_state(loss)
        return self._after(*seen)

    def _descend(
        self,
        lowered: Callable[[], tuple[Tensor, Any]],
        network: keras.Layer,
        optimizer: keras.Optimizer,
    ) -> Any:
        """Update a network with the gradient of the first output of `lowered`.

        A weight without a gradient gets zeros. Returns the second output of `lowered`.
        """
        variables = network.trainable_variables
        _, others, found, _ = gradients(lowered, variables, states=self._all_variables())
        for_each = [
            ops.zeros_like(variable.value) if gradient is None else gradient
            for variable, gradient in zip(variables, found)
        ]
        applied(optimizer, for_each, variables)
        return others

    def test_step(self, *args: Any) -> Any:
        """Compute the loss over all pairs and the logs that depend on it."""
        return self.logs_of(self._tested, *args)

    def _tested(self, data: Any) -> Logs:
        kept = ("loss", "mutual_information", "not_decreasing")
        if self._has_no_images(data):
            return {name: self.means[name].result() for name in kept}
        images, class_ids, weights = keras.utils.unpack_x_y_sample_weight(data)
        embeddings = self.embedding(images, training=False)
        pairs, distances, values, sound = self._pairs(class_ids, embeddings)
        of_all = _loss_of_all(pairs, values)
        loss = _mean_over_anchors(of_all, weights, sound)
        number = _number(pairs.positive, pairs.negative)
        self.means["loss"].update_state(loss, sample_weight=number)
        self._watch(pairs.positive, pairs.negative, distances, of_all)
        return {name: self.means[name].result() for name in kept}

    def get_metrics_result(self) -> Logs:
        """Return the logs of a training step."""
        means = {name: mean.result() for name, mean in self.means.items()}
        # Copies, because under a strategy the variables are not numbers.
        own = {"beta": self.beta, "beta_not_found": self.beta_not_found}
        return {**means, **{name: ops.copy(variable.value) for name, variable in own.items()}}

    def _pairs(
        self, class_ids: TensorLike, embeddings: Tensor
    ) -> tuple[Pairs, Tensor, Tensor, Tensor]:
        """Return the batch's pairs, their distances, V's values, and whether it is valid."""
        if class_ids is None:
            raise argument_error("y", "class ids [n]", None, advice="RankMI compares classes.")
        embeddings = ops.cast(embeddings, self.statistics_network.compute_dtype)
        check_embeddings(embeddings)
        class_ids = checked_class_ids(as_labels(class_ids, "y"))
        check_rows(class_ids, embeddings)
        pairs = Pairs.of_batch(class_ids, normalize(embeddings))
        distances = pairs.distances()
        sound = ops.logical_and(are_apart(class_ids), are_finite(embeddings))
        return pairs, distances, self._values(pairs, distances), sound

    def _values(self, pairs: Pairs, distances: Tensor) -> Tensor:
        """Compute V of all distances. On one device, only for half of the symmetric matrix."""
        size = distances.shape[0]
        # Beyond 2,048 rows, the indices, which are constants of the graph, would be too large.
        if pairs.candidates is not pairs.anchors or size is None or not 2 <= size <= 2048:
            values = self.statistics_network(ops.reshape(distances, (-1, 1)))
            return ops.reshape(values, ops.shape(distances))
        rows, columns = np.triu_indices(size, 1)
        place = np.zeros((size, size), "int32")
        place[rows, columns] = place[columns, rows] = np.arange(len(rows))
        # Tensors, because Keras on JAX converts NumPy integers to floats if floatx is bfloat16.
        there = ops.convert_to_tensor(rows * size + columns, dtype="int32")
        half = ops.take(ops.reshape(distances, (-1,)), there)
        place = ops.convert_to_tensor(place, dtype="int32")
        return ops.take(self.statistics_network(half[:, None])[:, 0], place)

    def _sampled_contrastive(
        self, pairs: Pairs, distances: Tensor, values: Tensor, negative: Tensor
    ) -> Tensor:
        if self.sampling == "all":
            return pair_means(negative_costs(values), negative)
        if self.sampling == "uniform":
            each = ops.cast(negative, distances.dtype)
            chances = each / maximum(ops.sum(each, axis=-1, keepdims=True), 1.0)
        else:
            chances = distance_weighted(distances, negative, ops.shape(pairs.anchors)[-1])
        replica, _ = place_among_replicas()
        first_row = replica * ops.shape(chances)[0]
        drawn = draw_negatives(chances, self.seed, self.step.value, first_row)
        wanted = pairs.positive & ops.any(negative, axis=-1, keepdims=True)
        return pair_means(ops.take_along_axis(negative_costs(values), drawn, axis=-1), wanted)

    def _after(self, *seen: Tensor) -> Logs:
        self._watch(*seen)
        self.step.assign_add(1)
        return self.get_metrics_result()

    def _watch(self, positive: Tensor, negative: Tensor, distances: Tensor, of_all: Tensor) -> None:
        bound, number = -_mean(of_all), _number(positive, negative)
        self.means["mutual_information"].update_state(bound, sample_weight=number)
        # V on a grid: its slope at every distance would cost a backward pass through V.
        cells = 256 * int(HIGHEST)
        grid = ops.linspace(0.0, HIGHEST, cells + 1, dtype=distances.dtype)
        heights = ops.reshape(self.statistics_network(grid[:, None]), (-1,))
        cell = ops.clip(ops.cast(ops.floor(distances * 256.0), "int32"), 0, cells - 1)
        rises = ops.take(heights[1:] >= heights[:-1], cell)
        all_pairs = positive | negative
        self._count("not_decreasing", rises & all_pairs, all_pairs)

    def _count(self, name: str, chosen: Tensor, of_all: Tensor) -> None:
        """Record the fraction of the pairs `of_all` that is `chosen`."""
        number = ops.sum(ops.cast(of_all, "float32"))
        share = ops.sum(ops.cast(chosen, "float32")) / maximum(number, 1.0)
        self.means[name].update_state(share, sample_weight=number)

    def _share_of_replica(self, *losses: Tensor) -> Tensor:
        # Each replica has the mean over its anchors, and the gradients are summed.
        total = sum(ops.sum(ops.cast(loss, losses[0].dtype)) for loss in losses)
        return total / self.replicas

    def get_config(self) -> Config:
        """Return the constructor's arguments."""
        return {**super().get_config(), "beta": self.first_beta}


def _number(positive: Tensor, negative: Tensor) -> Tensor:
    """Count the pairs, so that a batch is weighted by its number of pairs."""
    return ops.sum(ops.cast(positive | negative, "float32"))


def _loss_of_all(pairs: Pairs, values: Tensor) -> Tensor:
    """Compute the loss `[n]` over all pairs."""
    return pair_means(positive_costs(values), pairs.positive) + pair_means(
        negative_costs(values), pairs.negative
    )


def _mean(values: Tensor) -> Tensor:
    """Compute the mean of `[n]`. 0 if it is empty."""
    return ops.sum(values) / maximum(ops.cast(ops.size(values), values.dtype), 1.0)


def _mean_over_anchors(values: Tensor, weights: TensorLike | None, sound: Tensor) -> Tensor:
    """Compute the mean. NaN unless `sound`, because masks would hide invalid values."""
    if weights is not None:
        of_each = ops.convert_to_tensor(weights, dtype=values.dtype)
        values = values * one_per_image(of_each, "sample_weight", "weights")
    mean = _mean(values)
    return ops.where(sound, mean, ops.full_like(mean, float("nan")))
