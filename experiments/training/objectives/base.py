"""What every kind of training says of itself."""

import abc
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import keras
import tensorflow as tf

from experiments.options import RunOptions
from experiments.training.evaluators import (
    ClassMeanAccuracy,
    Evaluator,
    RawPixels,
    RetrievalScores,
)
from experiments.training.optimizer import Rate, scheduled
from keras_dml import losses
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

    def outputs(self) -> Sequence[str]:
        """Names of the fitted model's outputs; none: it has one, without a name."""
        return ()

    def targets(self, batches: tf.data.Dataset) -> tf.data.Dataset:
        """The batches (images, class ids) with the class ids for each output of the model."""
        outputs = self.outputs()
        if not outputs:
            return batches
        return batches.map(lambda images, ids: (images, dict.fromkeys(outputs, ids)))

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
        return [RetrievalScores(), self.accuracy(), RawPixels()]

    def accuracy(self) -> Evaluator:
        """How test images of the training classes are given their class."""
        return ClassMeanAccuracy()

    def loss(self) -> losses.EmbeddingLoss:
        """The loss that the options name, with what was given for it.

        Raises:
            ValueError: something was given that it does not take or that is out of range.
        """
        return losses.get(self.options.loss, **self.options.loss_arguments)


def parts(loss: losses.EmbeddingLoss) -> list[LossPart]:
    """The two parts of a loss, as metrics of the training."""
    return [LossPart(loss, "tightness"), LossPart(loss, "contrastive")]
