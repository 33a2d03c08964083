"""What every kind of training says of itself."""

import abc
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import keras
import tensorflow as tf

from experiments.evaluation.evaluators import (
    CatalogScores,
    ClassMeanAccuracy,
    Evaluator,
    PairSimilarities,
    RawPixels,
    RetrievalScores,
    UntrainedBackbone,
)
from experiments.options import RunOptions, loss_flags
from experiments.options.errors import UsageError
from experiments.options.values import whole_numbers
from experiments.training.optimizer import Rate, scheduled
from keras_dml import losses, mining, models
from keras_dml._common.errors import ArgumentError
from keras_dml.metrics import LossPart


class Objective(abc.ABC):
    """One kind of training: what is fitted, by what, and what there is to see of it.

    Which one serves a loss follows from `keras_dml.losses.EmbeddingLoss.kind`.

    Args:
        options: the run's.

    Attributes:
        has_classifier: whether a classifier of the training classes is part of the fitted model.
        log_names: Keras' name of a value of the training -> what it is called in `metrics.jsonl`,
            where that is another.
    """

    has_classifier: ClassVar[bool] = False
    log_names: ClassVar[Mapping[str, str]] = {}

    def __init__(self, options: RunOptions) -> None:
        self.options = options

    @abc.abstractmethod
    def training_model(self, embedding: keras.Model, num_classes: int) -> keras.Model:
        """The model that is fitted; it shares the layers of `embedding`.

        Args:
            embedding: from images to embeddings `[n, d]`.
            num_classes: the training classes.
        """

    @abc.abstractmethod
    def compile_arguments(self, total_steps: int) -> dict[str, Any]:
        """What `compile` takes beside the optimizer of the embedding.

        Args:
            total_steps: of the whole training.
        """

    def in_chunks(self, model: keras.Model) -> keras.Model:
        """The fitted model, computed in pieces of the batch where the options ask for it.

        Raises:
            ValueError: layers with which pieces would not add up to the batch.
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
                    f"chunk_size needs --frozen_batch_norm or --chunk_statistics: {error}"
                ) from error
        return chunked

    def outputs(self) -> Sequence[str]:
        """Names of the fitted model's outputs; none: it has one, without a name."""
        return ()

    def targets(self, batches: tf.data.Dataset) -> tf.data.Dataset:
        """The batches (images, class ids) with the class ids for each output of the model."""
        outputs = self.outputs()
        if not outputs:
            return batches
        return batches.map(lambda images, ids: (images, dict.fromkeys(outputs, ids)))

    def rate_factors(self, model: keras.Model) -> Mapping[str, float]:
        """Factors on the learning rate of layers beside the embedding, by variable.

        Args:
            model: the fitted one, from `training_model`.
        """
        return {}

    def check_steps(self, steps: int) -> None:
        """UsageError where something that was asked for would begin behind the last of the steps.

        Args:
            steps: of the whole training.
        """
        return None

    def updates(self, steps: int) -> int:
        """How often the embedding has been updated after so many steps."""
        return steps

    def learning_rate(self, total_steps: int) -> Rate:
        """The learning rate of each update of the embedding."""
        return scheduled(self.options, self.options.learning_rate, self.updates(total_steps))

    def rate_after(self, rate: Rate, steps: int) -> float:
        """The learning rate that the embedding's last update in so many steps had."""
        return float(rate(self.updates(steps) - 1) if callable(rate) else rate)

    def evaluators(self) -> list[Evaluator]:
        """What looks at the embeddings before, during and after the training, in this order."""
        return [
            RetrievalScores(self.prefixes()[:-1]),
            CatalogScores(),
            self.accuracy(),
            UntrainedBackbone(),
            RawPixels(),
            PairSimilarities(),
        ]

    def accuracy(self) -> Evaluator:
        """How test images of the training classes are given their class."""
        return ClassMeanAccuracy()

    def loss(self) -> losses.EmbeddingLoss:
        """The loss that the options name, with what was given for it, perhaps over prefixes.

        Raises:
            ValueError: something was given that it does not take or that is out of range.
            TypeError: prefixes for a loss that is not over embeddings alone.
        """
        given = self.own_arguments()
        if self.options.mining is not None:
            given["mining"] = [mining.STRATEGIES[name]() for name in self.options.mining]
        loss = losses.get(self.options.loss, **given)
        prefixes = self.prefixes()
        return losses.MatryoshkaLoss(loss, dims=prefixes) if prefixes else loss

    def own_arguments(self) -> dict[str, Any]:
        """The arguments of the loss, without those of a cross-entropy next to it."""
        own, _ = loss_flags.divided(self.options.loss, self.options.loss_arguments)
        return own

    def prefixes(self) -> tuple[int, ...]:
        """The lengths of the embedding's prefixes that learn too; none, or the last is the whole.

        Raises:
            ValueError: lengths that are no whole numbers or not of this embedding; levels beside.
        """
        options = self.options
        if options.matryoshka is None:
            return ()
        prefixes = whole_numbers("matryoshka", options.matryoshka)
        given = f"Received: matryoshka={','.join(options.matryoshka)}"
        if options.levels is not None:
            raise UsageError(f"matryoshka must not be given with levels. {given}")
        if list(prefixes) != sorted(set(prefixes)) or prefixes[0] < 1:
            raise UsageError(f"matryoshka must be increasing lengths, each at least 1. {given}")
        if options.embedding_size is not None and prefixes[-1:] != (options.embedding_size,):
            raise UsageError(
                f"matryoshka must end with embedding_size, {options.embedding_size}. {given}"
            )
        return prefixes

    def check_dimensions(self, dimensions: int) -> None:
        """UsageError where the prefixes do not end with the embedding, of so many dimensions.

        Without `embedding_size` the backbone alone knows how many there are.
        """
        prefixes = self.prefixes()
        if prefixes and prefixes[-1] != dimensions:
            raise UsageError(
                f"matryoshka must end with {dimensions}, the length of the embeddings, or with "
                f"--embedding_size=N. Received: matryoshka={','.join(map(str, prefixes))}"
            )


def parts(loss: losses.EmbeddingLoss) -> list[LossPart]:
    """The two parts of a loss and what else it can measure, as metrics of the training."""
    return [LossPart(loss, part) for part in ("tightness", "contrastive", *loss.measured)]
