"""RankMI's model with its alternating train step; needs TensorFlow."""

from collections.abc import Callable, Mapping
from typing import Any, Literal, Self

import keras
import numpy as np
from keras import ops

from keras_dml.checks import (
    check_choice,
    check_distance,
    check_embeddings,
    check_positive,
    check_rows,
    check_seed,
    check_whole,
    checked_class_ids,
    one_per_image,
)
from keras_dml.class_ids import as_labels
from keras_dml.errors import ArgumentError
from keras_dml.extras import TensorFlow
from keras_dml.losses.base import is_sound
from keras_dml.losses.rankmi import negative_costs, positive_costs
from keras_dml.models.distributed_model import DistributedModel
from keras_dml.models.head import check_embedding_model
from keras_dml.models.statistics_network import (
    HIGHEST,
    StatisticsNetwork,
    check_statistics_network,
    estimate_beta,
)
from keras_dml.negatives import distance_weighted, draw_negatives
from keras_dml.pairs import Pairs, normalize, pair_means, safe_sqrt
from keras_dml.types import Config, Logs, Tensor, TensorLike

tf = TensorFlow("RankMI")

SAMPLINGS = ("distance_weighted", "uniform", "all")


@keras.saving.register_keras_serializable("keras_dml")
class RankMI(DistributedModel):
    """An embedding model trained by RankMI: `compile`, `fit` on class ids, use the embeddings.

    Two networks learn in turn. The statistics network V estimates, from the distances of positive
    and of negative pairs, a lower bound of their Jensen-Shannon divergence; the embedding network
    raises that bound. With step t from 0 (Algorithm 1):

    - t mod (k + 1) = 0: an embedding step. Positive pairs with D > β − α and negative pairs with
      D < β + α count, the latter perhaps sampled; the loss is that of `losses.RankMILoss` over
      them. Nothing left gives zero loss and zero gradient. V stays as it is.
    - otherwise: a statistics step on all pairs, with no gradient through the embedding network;
      then β, where V is 0, is found anew (`estimate_beta`).

    D are distances of l2-normalised embeddings, over the pairs of the global batch. The embedding
    network runs in training mode in both steps (a batch norm that learns its statistics follows
    both), so that V sees the distances that the embedding step works on.

    Sample weights weigh the anchors of a step's loss. `evaluate` takes the pairs within each batch,
    and weighs batches by their pairs.

    Logs, each the mean over the epoch's steps of its phase (0 if it had none): `loss` (embedding
    steps), `statistics_loss` (statistics steps), `mutual_information` (minus the loss over all
    pairs: the bound in nats, below 2 log 2), `positive_kept` and `negative_kept` (shares of pairs
    within the margins, embedding steps), `not_decreasing` (the share of distances where V does not
    decrease, which Eq. 9 rules out; to 1/256); besides `beta` (the last) and `beta_not_found`
    (statistics steps, since the model was made, after which V had no zero between 0 and 2 and the
    last β was kept).

    Args:
        embedding: a built `keras.Model` from images to embeddings `[n, d]`.
        statistics_network: a built Keras layer from distances `[m, 1]` to values `[m, 1]`; by
            default `StatisticsNetwork(zero_at=beta)`.
        k: statistics steps for each embedding step, at least 1.
        beta: β₀, the first β, a distance in (0, 2): β starts where V is 0, as found from there.
        alpha: α > 0, how far beyond β a pair still counts.
        sampling: of the negative pairs of embedding steps: `"distance_weighted"` or `"uniform"`
            draw one of the anchor's for each of its positive pairs, as a pure function of (seed,
            step, anchor); `"all"` takes all within the margin.
        seed: of the draws.

    Raises:
        ValueError: an argument out of range, networks of wrong shapes or not yet built.

    Reference: Kemertas et al., "RankMI: A Mutual Information Maximizing Ranking Loss", CVPR 2020,
    Algorithm 1 and section 4.1 (whose settings are the defaults).
    """

    def __init__(
        self,
        embedding: keras.Model,
        statistics_network: keras.layers.Layer | None = None,
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
        start, _ = estimate_beta(self.statistics_network, tf.constant(self.first_beta, dtype))
        shared = {"trainable": False, "aggregation": "only_first_replica", "shape": ()}
        self.beta = self.add_weight(
            name="beta", initializer=lambda *_, **__: ops.copy(start), dtype=dtype, **shared
        )
        self.step = self.add_weight(name="step", initializer="zeros", dtype="int64", **shared)
        self.beta_not_found = self.add_weight(
            name="beta_not_found", initializer="zeros", dtype="int64", **shared
        )
        names = ("loss", "statistics_loss", "mutual_information", "positive_kept",
                 "negative_kept", "not_decreasing")  # fmt: skip
        self.means = {name: keras.metrics.Mean(name=name) for name in names}
        self.built = True

    def call(self, images: Tensor, training: bool = False) -> Tensor:
        """The embeddings of the images."""
        return self.embedding(images, training=training)

    def compile(
        self,
        optimizer: keras.optimizers.Optimizer | str = "adam",
        statistics_optimizer: keras.optimizers.Optimizer | str = "adam",
        steps_per_execution: int = 1,
        **kwargs: Any,
    ) -> None:
        """Choose the optimizers of the two networks.

        Args:
            optimizer: of the embedding network. statistics_optimizer: of V; no optimizer touches
                the other network's variables or slots. The paper has Adam, 1e-3, for both.
            steps_per_execution, run_eagerly, jit_compile, auto_scale_loss: as in Keras.

        Raises:
            ValueError: a loss or metrics: RankMI brings its own; one optimizer for both networks.
        """
        for refused in ("loss", "metrics", "weighted_metrics", "loss_weights"):
            if kwargs.pop(refused, None) is not None:
                raise ArgumentError(
                    f"{refused} cannot be given: RankMI is trained by its own loss and logs what "
                    f"there is to see. Received: {refused} in compile()"
                )
        if statistics_optimizer is optimizer and not isinstance(optimizer, str):
            raise ArgumentError(
                "statistics_optimizer must be an optimizer of its own. Received: the very object "
                "that is the embedding network's optimizer"
            )
        super().compile(optimizer=optimizer, steps_per_execution=steps_per_execution, **kwargs)
        self.statistics_optimizer = keras.optimizers.get(statistics_optimizer)
        self._execution = {"steps_per_execution": steps_per_execution, **kwargs}
        self.optimizer.build(self.embedding.trainable_variables)
        self.statistics_optimizer.build(self.statistics_network.trainable_variables)
        self._fit_to_replicas()

    def _optimizers(self) -> list[keras.optimizers.Optimizer]:
        # The second is not there yet when Keras' part of compile has chosen the first.
        second = getattr(self, "statistics_optimizer", None)
        return [*super()._optimizers(), *([] if second is None else [second])]

    def get_compile_config(self) -> Config:
        """The optimizers and how steps are run."""
        serialize = keras.saving.serialize_keras_object
        return {
            "optimizer": serialize(self.optimizer),
            "statistics_optimizer": serialize(self.statistics_optimizer),
            **self._execution,
        }

    def compile_from_config(self, config: Config) -> None:
        """Compile as `get_compile_config` says."""
        self.compile(**keras.saving.deserialize_keras_object(config))

    def step_on_replicas(self, data: Any) -> Logs:
        """Around the replicas: within them optimizers refuse to update inside a `tf.cond`."""
        strategy = self.distribute_strategy
        if not tf.distribute.has_strategy() and strategy is tf.distribute.get_strategy():
            return super().step_on_replicas(data)  # no strategy, no such trouble
        return self._alternate(lambda step: self.reduce_logs(strategy.run(step, args=(data,))))

    def train_step(self, data: Any) -> Logs:
        """One step of Algorithm 1 on (images, class ids[, sample weights]); returns the logs."""
        return self._alternate(lambda step: step(data))

    def _alternate(self, run: Callable[[Callable[[Any], Logs]], Logs]) -> Logs:
        return tf.cond(
            tf.equal(self.step % (self.k + 1), 0),
            lambda: run(self.embedding_step),
            lambda: run(self.statistics_step),
        )

    def embedding_step(self, data: Any) -> Logs:
        """Update the embedding network on the pairs within the margins."""
        images, class_ids, weights = keras.utils.unpack_x_y_sample_weight(data)
        with tf.GradientTape() as tape:
            embeddings = self.embedding(images, training=True)
            pairs, distances, values, sound = self._pairs(class_ids, embeddings)
            positive = pairs.positive & (distances > self.beta - self.alpha)
            negative = pairs.negative & (distances < self.beta + self.alpha)
            tightness = pair_means(positive_costs(values), positive)
            contrastive = self._sampled_contrastive(pairs, distances, values, negative)
            loss = _mean_over_anchors(tightness + contrastive, weights, sound)
            total = self._share_of_replica(loss, *self.embedding.losses)
            total = self.optimizer.scale_loss(total)
        variables = self.embedding.trainable_variables
        gradients = tape.gradient(total, variables, unconnected_gradients="zero")
        self.optimizer.apply(gradients, variables)
        self.means["loss"].update_state(loss)
        self._count("positive_kept", positive, pairs.positive)
        self._count("negative_kept", negative, pairs.negative)
        return self._after(pairs, distances, _loss_of_all(pairs, values))

    def statistics_step(self, data: Any) -> Logs:
        """Update V on all pairs, then find β."""
        images, class_ids, weights = keras.utils.unpack_x_y_sample_weight(data)
        embeddings = tf.stop_gradient(self.embedding(images, training=True))
        variables = self.statistics_network.trainable_variables
        with tf.GradientTape() as tape:
            pairs, distances, values, sound = self._pairs(class_ids, embeddings)
            of_all = _loss_of_all(pairs, values)
            loss = _mean_over_anchors(of_all, weights, sound)
            total = self._share_of_replica(loss, *self.statistics_network.losses)
            total = self.statistics_optimizer.scale_loss(total)
        gradients = tape.gradient(total, variables, unconnected_gradients="zero")
        self.statistics_optimizer.apply(gradients, variables)
        beta, found = estimate_beta(self.statistics_network, self.beta.value)
        self.beta.assign(beta)
        self.beta_not_found.assign_add(tf.cast(~found, "int64"))
        self.means["statistics_loss"].update_state(loss)
        return self._after(pairs, distances, of_all)

    def test_step(self, data: Any) -> Logs:
        """The loss over all pairs, and what follows from it."""
        images, class_ids, weights = keras.utils.unpack_x_y_sample_weight(data)
        embeddings = self.embedding(images, training=False)
        pairs, distances, values, sound = self._pairs(class_ids, embeddings)
        of_all = _loss_of_all(pairs, values)
        loss = _mean_over_anchors(of_all, weights, sound)
        self.means["loss"].update_state(loss, sample_weight=_number(pairs))
        self._watch(pairs, distances, of_all)
        kept = ("loss", "mutual_information", "not_decreasing")
        return {name: self.means[name].result() for name in kept}

    def get_metrics_result(self) -> Logs:
        """The logs of a training step."""
        means = {name: mean.result() for name, mean in self.means.items()}
        # Copies: under a strategy the variables themselves are no numbers.
        own = {"beta": self.beta, "beta_not_found": self.beta_not_found}
        return {**means, **{name: tf.identity(variable.value) for name, variable in own.items()}}

    def _pairs(
        self, class_ids: TensorLike, embeddings: Tensor
    ) -> tuple[Pairs, Tensor, Tensor, Tensor]:
        """The batch's pairs, their distances, V's values, and whether all of it `is_sound`."""
        if class_ids is None:
            raise ArgumentError(
                "y must be class ids [n]: RankMI compares classes. Received: y=None"
            )
        embeddings = ops.cast(embeddings, self.statistics_network.compute_dtype)
        check_embeddings(embeddings)
        class_ids = checked_class_ids(as_labels(class_ids, "y"))
        check_rows(class_ids, embeddings)
        pairs = Pairs.of_batch(class_ids, normalize(embeddings))
        distances = safe_sqrt(pairs.squared_distances())
        sound = is_sound(class_ids, embeddings)
        return pairs, distances, self._values(pairs, distances), sound

    def _values(self, pairs: Pairs, distances: Tensor) -> Tensor:
        """V of all distances; on one device of one half of the symmetric matrix, for its cost."""
        size = distances.shape[0]
        # Beyond 2,048 the places alone, a constant of the graph, would be large.
        if pairs.candidates is not pairs.anchors or size is None or not 2 <= size <= 2048:
            values = self.statistics_network(ops.reshape(distances, (-1, 1)))
            return ops.reshape(values, ops.shape(distances))
        rows, columns = np.triu_indices(size, 1)
        place = np.zeros((size, size), "int32")
        place[rows, columns] = place[columns, rows] = np.arange(len(rows))
        half = ops.take(ops.reshape(distances, (-1,)), rows * size + columns)
        return ops.take(self.statistics_network(half[:, None])[:, 0], place)

    def _sampled_contrastive(
        self, pairs: Pairs, distances: Tensor, values: Tensor, negative: Tensor
    ) -> Tensor:
        if self.sampling == "all":
            return pair_means(negative_costs(values), negative)
        if self.sampling == "uniform":
            each = ops.cast(negative, distances.dtype)
            chances = each / ops.maximum(ops.sum(each, axis=-1, keepdims=True), 1.0)
        else:
            chances = distance_weighted(distances, negative, ops.shape(pairs.anchors)[-1])
        drawn = draw_negatives(chances, self.seed, self.step.value, pairs.first_row)
        wanted = pairs.positive & ops.any(negative, axis=-1, keepdims=True)
        return pair_means(ops.take_along_axis(negative_costs(values), drawn, axis=-1), wanted)

    def _after(self, pairs: Pairs, distances: Tensor, of_all: Tensor) -> Logs:
        self._watch(pairs, distances, of_all)
        self.step.assign_add(1)
        return self.get_metrics_result()

    def _watch(self, pairs: Pairs, distances: Tensor, of_all: Tensor) -> None:
        bound = -ops.mean(of_all)
        self.means["mutual_information"].update_state(bound, sample_weight=_number(pairs))
        # V on a grid: its slope at every distance would cost a backward pass through V.
        cells = 256 * int(HIGHEST)
        grid = ops.linspace(0.0, HIGHEST, cells + 1, dtype=distances.dtype)
        heights = ops.reshape(self.statistics_network(grid[:, None]), (-1,))
        cell = ops.clip(ops.cast(ops.floor(distances * 256.0), "int32"), 0, cells - 1)
        rises = ops.take(heights[1:] >= heights[:-1], cell)
        all_pairs = pairs.positive | pairs.negative
        self._count("not_decreasing", rises & all_pairs, all_pairs)

    def _count(self, name: str, chosen: Tensor, of_all: Tensor) -> None:
        """Record the share of the pairs `of_all` that is `chosen`."""
        number = ops.sum(ops.cast(of_all, "float32"))
        share = ops.sum(ops.cast(chosen, "float32")) / ops.maximum(number, 1.0)
        self.means[name].update_state(share, sample_weight=number)

    def _share_of_replica(self, *losses: Tensor) -> Tensor:
        # Each replica holds the mean over its own anchors; the gradients are summed.
        total = sum(ops.sum(ops.cast(loss, losses[0].dtype)) for loss in losses)
        return total / self.distribute_strategy.num_replicas_in_sync

    def get_config(self) -> Config:
        """The constructor's arguments."""
        serialize = keras.saving.serialize_keras_object
        return {
            "name": self.name,
            "embedding": serialize(self.embedding),
            "statistics_network": serialize(self.statistics_network),
            "k": self.k,
            "beta": self.first_beta,
            "alpha": self.alpha,
            "sampling": self.sampling,
            "seed": self.seed,
        }

    @classmethod
    def from_config(cls, config: Config, custom_objects: Mapping[str, Any] | None = None) -> Self:
        """The model of this configuration."""
        config = dict(config)
        for name in ("embedding", "statistics_network"):
            config[name] = keras.saving.deserialize_keras_object(config[name], custom_objects)
        return cls(**config)


def _number(pairs: Pairs) -> Tensor:
    """How many pairs there are: a small batch says less than a large one."""
    return ops.sum(ops.cast(pairs.positive | pairs.negative, "float32"))


def _loss_of_all(pairs: Pairs, values: Tensor) -> Tensor:
    """The loss `[n]` over all pairs."""
    return pair_means(positive_costs(values), pairs.positive) + pair_means(
        negative_costs(values), pairs.negative
    )


def _mean_over_anchors(values: Tensor, weights: TensorLike | None, sound: Tensor) -> Tensor:
    """The mean, NaN unless `is_sound`: the masks would hide it."""
    if weights is not None:
        of_each = ops.convert_to_tensor(weights, dtype=values.dtype)
        values = values * one_per_image(of_each, "sample_weight", "have the shape")
    mean = ops.mean(values)
    return ops.where(sound, mean, ops.full_like(mean, float("nan")))
