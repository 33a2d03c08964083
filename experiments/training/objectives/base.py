"""The base class of the kinds of training."""

import abc
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import keras
import numpy as np
import tensorflow as tf

from experiments.evaluation.baselines import (
    NativeBackbone,
    PairSimilarities,
    RawPixels,
    UntrainedBackbone,
)
from experiments.evaluation.evaluators import (
    ClassMeanAccuracy,
    Evaluator,
    InformationScores,
    MeanDistance,
    RetrievalScores,
)
from experiments.options import RunOptions
from experiments.options import data as described
from experiments.options.conversions import whole_numbers
from experiments.options.errors import UsageError
from experiments.options.texts import text_transform
from experiments.training.objectives.tracked_losses import TrackedLosses
from experiments.training.old_model import CompatibleScores, OldModel
from experiments.training.optimizer import Rate, scheduled
from keras_dml import losses, mining, models
from keras_dml._common.errors import ArgumentError
from keras_dml.metrics import LossPart
from pipelines import ImageTable, Split
from pipelines.samplers import Sampler


class Objective(abc.ABC):
    """A kind of training: the fitted model, its losses, and its evaluators.

    `keras_dml.losses.EmbeddingLoss.kind` selects the kind.

    Args:
        options: The options of the run.

    Attributes:
        has_classifier: Whether the fitted model has a classifier of the training classes.
        log_names: Names in `metrics.jsonl` that differ from the names in Keras.
        sides: Names of the tables that `callbacks` embeds.
        candidate_encoder: Model from candidates to embeddings for `training_model`. None if the
            embedding embeds the candidates, too.
        text_transform: Transform of the candidates. None if they are images.
    """

    has_classifier: ClassVar[bool] = False
    log_names: ClassVar[Mapping[str, str]] = {}
    sides: ClassVar[Sequence[str]] = ()

    def __init__(self, options: RunOptions) -> None:
        self.options = options
        self.candidate_encoder: keras.Model | None = None
        self.text_transform = text_transform(options)

    @functools.cached_property
    def old_model(self) -> OldModel | None:
        """The model of `compatible_with`."""
        return None if self.options.compatible_with is None else OldModel(self.options)

    def check(self) -> None:
        """Raise `UsageError` if other options do not allow this kind of training."""
        return None

    def check_data(self, data: Split) -> None:
        """Raise `UsageError` if the dataset lacks labels or images that the training needs."""
        if self.options.relation is not None:
            described.paths_of_classes(data.train)

    def check_batches(self, data: Split, sampler: Sampler) -> None:
        """Raise `UsageError` if the training cannot use the batches of a sampler."""
        return None

    def batches(
        self, data: Split, sampler: Sampler, batches_of: Callable[..., tf.data.Dataset]
    ) -> tf.data.Dataset:
        """Return the batches (inputs, class ids) of the training.

        Args:
            data: The dataset.
            sampler: Function from batch number to row numbers of the training images.
            batches_of: `training_batches` without its first two arguments and the seed.
        """
        return batches_of(data.train, sampler, seed=self.options.seed)

    @abc.abstractmethod
    def training_model(self, embedding: keras.Model, num_classes: int) -> models.DistributedModel:
        """Return the fitted model, which shares the layers of `embedding`.

        Args:
            embedding: Model from images to embeddings `[n, d]`.
            num_classes: Number of training classes.
        """

    def compile_arguments(self, total_steps: int) -> dict[str, Any]:
        """Return the arguments of `compile`, except the optimizer of the embedding.

        These are the loss, and its parts as metrics.

        Args:
            total_steps: Steps of the phase.
        """
        loss = self.loss()
        return {"loss": loss, "metrics": parts(loss)}

    def in_chunks(self, model: models.DistributedModel) -> models.DistributedModel:
        """Return the fitted model, which computes parts of a batch if `chunk_size` is set.

        Raises:
            ValueError: A layer makes the parts depend on each other.
        """
        options = self.options
        if options.chunk_size is None:
            return model
        chunked = models.CachedGradients(
            model, options.chunk_size, batch_statistics=options.chunk_statistics, name="training"
        )
        if not options.chunk_statistics:
            try:
                chunked.check_layers()
            except ArgumentError as error:
                raise UsageError(
                    "chunk_size must be unset without --frozen_batch_norm or --chunk_statistics, "
                    f"but got {options.chunk_size}. {error}"
                ) from error
        return chunked

    def outputs(self) -> Sequence[str]:
        """Return the names of the outputs, or none for a single output without a name."""
        return ()

    def targets(
        self, batches: tf.data.Dataset, classes: ImageTable | None = None
    ) -> tf.data.Dataset:
        """Return the batches (images, class ids) with labels for each output.

        Args:
            batches: Batches (images, class ids).
            classes: Table of the class ids, for a loss with a relation. Its labels are then rows
                (coarse class, class).
        """
        if self.options.relation is not None and classes is not None:
            rows = tf.constant(described.paths_of_classes(classes))
            batches = batches.map(lambda images, ids: (images, tf.gather(rows, ids)))
        outputs = self.outputs()
        if not outputs:
            return batches
        return batches.map(lambda images, labels: (images, dict.fromkeys(outputs, labels)))

    def rate_factors(self, model: keras.Model) -> Mapping[str, float]:
        """Return factors on the learning rate of layers outside the embedding, by variable.

        Args:
            model: The fitted model, from `training_model`.
        """
        return {}

    def check_steps(self, steps: int) -> None:
        """Raise `UsageError` if an option takes effect only after the last step.

        Args:
            steps: Steps of the whole training.
        """
        return None

    def callbacks(
        self, embeddings: Callable[[str], np.ndarray], labels: np.ndarray
    ) -> list[keras.callbacks.Callback]:
        """Return further callbacks of `fit`, which come before the evaluation.

        Args:
            embeddings: Function from the name of a table in `sides` to its embeddings `[n, d]` by
                the current weights.
            labels: Class numbers of the training images, `[n]`.
        """
        return []

    def updates(self, steps: int) -> int:
        """Return the number of updates of the embedding in so many steps."""
        return steps

    def learning_rate(self, total_steps: int) -> Rate:
        """Return the learning rate of the updates of the embedding."""
        return scheduled(self.options, self.options.learning_rate, self.updates(total_steps))

    def rate_after(self, rate: Rate, steps: int) -> float:
        """Return the learning rate of the embedding's last update in so many steps."""
        return float(rate(self.updates(steps) - 1) if callable(rate) else rate)

    def evaluators(self) -> list[Evaluator]:
        """Return the evaluators, in their order.

        Raises:
            UsageError: A tracked loss is unknown or needs a head.
        """
        names, flags = self.options.track, self.options.track_flags
        return [
            RetrievalScores(self.prefixes()[:-1], self.options),
            InformationScores(self.options.information),
            MeanDistance(),
            self.accuracy(),
            UntrainedBackbone(),
            NativeBackbone(),
            RawPixels(),
            PairSimilarities(),
            *([TrackedLosses(names, flags, self.has_classifier)] if names or flags else []),
            *([CompatibleScores(self.old_model)] if self.old_model else []),
        ]

    def accuracy(self) -> Evaluator:
        """Return the evaluator of the accuracy on the training classes."""
        return ClassMeanAccuracy()

    def loss(self) -> losses.EmbeddingLoss:
        """Create the loss, over prefixes of the embedding if `matryoshka` is set.

        Raises:
            ValueError: The loss does not take an argument, or its value is out of range.
            TypeError: The loss does not support prefixes.
        """
        given = self.own_arguments()
        if self.options.mining is not None:
            given["mining"] = [mining.STRATEGIES[name]() for name in self.options.mining]
        if (relation := described.relation(self.options)) is not None:
            given["relation"] = relation
        loss = losses.get(self.options.loss, **given)
        prefixes = self.prefixes()
        return losses.MatryoshkaLoss(loss, dims=prefixes) if prefixes else loss

    def own_arguments(self) -> dict[str, Any]:
        """Return the arguments of the loss that are set."""
        return self.options.loss_arguments

    def prefixes(self) -> tuple[int, ...]:
        """Return the lengths of the embedding's prefixes, which end with the whole embedding.

        Raises:
            ValueError: The lengths do not increase.
        """
        if self.options.matryoshka is None:
            return ()
        prefixes = whole_numbers("matryoshka", self.options.matryoshka)
        if list(prefixes) != sorted(set(prefixes)) or prefixes[0] < 1:
            raise UsageError(
                "matryoshka must be increasing lengths, each at least 1, but got "
                f"{','.join(self.options.matryoshka)}."
            )
        return prefixes

    def check_dimensions(self, dimensions: int) -> None:
        """Raise `UsageError` unless the prefixes end with `dimensions`."""
        prefixes = self.prefixes()
        if prefixes and prefixes[-1] != dimensions:
            raise UsageError(
                f"matryoshka must end with {dimensions}, the length of the embeddings, but got "
                f"{','.join(map(str, prefixes))}. --embedding_size=N sets another length."
            )


def parts(loss: losses.EmbeddingLoss) -> list[LossPart]:
    """Return the parts and the measurements of a loss as metrics."""
    return [LossPart(loss, part) for part in ("tightness", "contrastive", *loss.measured)]
