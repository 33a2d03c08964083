"""Training with a classifier of the training classes over the embedding."""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import keras

from experiments.training.evaluators import ClassifierAccuracy, Evaluator
from experiments.training.objectives.base import Objective, parts
from keras_dml import losses, models


class Classifier(Objective):
    """A loss over the logits of a classifier; levels of the embedding are taken together."""

    has_classifier: ClassVar[bool] = True

    def training_model(self, embedding: keras.Model, num_classes: int) -> keras.Model:
        """The classifier."""
        classifier = models.classifier_model(
            embedding, num_classes, self.options.dropout, seed=self.options.seed
        )
        fitted = models.DistributedModel(
            embedding.input, self.fitted_outputs(embedding, classifier), name="training"
        )
        return self.in_chunks(fitted)

    def fitted_outputs(self, embedding: keras.Model, classifier: keras.Model) -> Any:
        """What the fitted model gives: the logits."""
        return classifier.output

    def compile_arguments(self, total_steps: int) -> dict[str, Any]:
        """The loss, and its parts as metrics."""
        loss = self.loss()
        return {"loss": loss, "metrics": parts(loss)}

    def accuracy(self) -> Evaluator:
        """By the classifier."""
        return ClassifierAccuracy()


class BesideClassifier(Classifier):
    """A loss over the embeddings with a cross-entropy beside it.

    The center loss has no contrastive part of its own: the cross-entropy is that part in Boudiaf et
    al. 2020, Table 2. Keras logs a loss for each output, which are then the two parts.
    """

    log_names: ClassVar[Mapping[str, str]] = {
        "embeddings_loss": "tightness",
        "logits_loss": "contrastive",
    }

    def outputs(self) -> Sequence[str]:
        """The embeddings and the logits."""
        return ("embeddings", "logits")

    def fitted_outputs(self, embedding: keras.Model, classifier: keras.Model) -> Any:
        """What the fitted model gives: both."""
        return {"embeddings": embedding.output, "logits": classifier.output}

    def compile_arguments(self, total_steps: int) -> dict[str, Any]:
        """Both losses with their weights."""
        return {
            "loss": {"embeddings": self.loss(), "logits": losses.CrossEntropyLoss()},
            "loss_weights": {"embeddings": self.options.center_weight, "logits": 1.0},
        }
