"""Training with a classifier of the training classes over the embedding."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import keras
import numpy as np
from keras import ops

from experiments.evaluation.evaluators import ClassifierAccuracy, Evaluator
from experiments.options.errors import UsageError
from experiments.training.objectives.base import Objective, parts
from keras_dml import losses, models, optimizers
from keras_dml.metrics.linear_probe import Probe, fit_probe


class Classifier(Objective):
    """Training with a loss over the logits of a classifier. Levels are concatenated."""

    has_classifier: ClassVar[bool] = True

    def training_model(self, embedding: keras.Model, num_classes: int) -> models.DistributedModel:
        """Return the classifier."""
        classifier = self.classifier(embedding, num_classes)
        fitted = models.DistributedModel(
            embedding.input, self.fitted_outputs(embedding, classifier), name="training"
        )
        return self.in_chunks(fitted)

    def classifier(self, embedding: keras.Model, num_classes: int) -> keras.Model:
        """Return the model from images to logits."""
        return models.classifier_model(
            embedding, num_classes, self.options.dropout, seed=self.options.seed
        )

    def fitted_outputs(self, embedding: keras.Model, classifier: keras.Model) -> Any:
        """Return the outputs of the fitted model: the logits."""
        return classifier.output

    def accuracy(self) -> Evaluator:
        """Return the evaluator of the classifier."""
        return ClassifierAccuracy()


class BesideClassifier(Classifier):
    """Training with a loss over the embeddings next to a cross-entropy.

    The center loss lacks a contrastive part. In Boudiaf et al. 2020, Table 2, the cross-entropy is
    this part. Keras logs the loss of each output.
    """

    log_names: ClassVar[Mapping[str, str]] = {
        "embeddings_loss": "tightness",
        "logits_loss": "contrastive",
    }

    def outputs(self) -> Sequence[str]:
        """Return the names of the embeddings and the logits."""
        return ("embeddings", "logits")

    def fitted_outputs(self, embedding: keras.Model, classifier: keras.Model) -> Any:
        """Return both outputs."""
        return {"embeddings": embedding.output, "logits": classifier.output}

    def compile_arguments(self, total_steps: int) -> dict[str, Any]:
        """Return both losses with their weights."""
        return {
            "loss": {"embeddings": self.loss(), "logits": self.cross_entropy()},
            "loss_weights": {"embeddings": self.options.center_weight, "logits": 1.0},
        }

    def cross_entropy(self) -> losses.CrossEntropyLoss:
        """Create the loss of the logits: the plain −log p of Boudiaf et al. 2020, Table 2."""
        return losses.CrossEntropyLoss(label_smoothing=0.0)


class AttachedClassifier(BesideClassifier):
    """Training with a loss that takes its soft assignments from a classifier.

    The cross-entropy trains the classifier only, not the embedding. Boudiaf et al. 2020, Prop. 1:
    p is the softmax of a classifier of the embeddings.
    """

    log_names: ClassVar[Mapping[str, str]] = {
        "embeddings_tightness": "tightness",
        "embeddings_contrastive": "contrastive",
        "embeddings_lambda_of_batch": "lambda_of_batch",
        "logits_loss": "classifier_loss",
    }

    def training_model(self, embedding: keras.Model, num_classes: int) -> models.DistributedModel:
        """Return the embedding, and the classifier after a gradient stop."""
        fitted = super().training_model(embedding, num_classes)
        self._classifier = fitted.get_layer("logits")
        return fitted

    def classifier(self, embedding: keras.Model, num_classes: int) -> keras.Model:
        """Return the classifier of the embeddings as constants."""
        constants = keras.Model(embedding.input, ops.stop_gradient(embedding.output))
        return super().classifier(constants, num_classes)

    def rate_factors(self, model: keras.Model) -> Mapping[str, float]:
        """Return the factor on the learning rate of the classifier."""
        return optimizers.multipliers(self._classifier, self.options.classifier_factor)

    def own_arguments(self) -> dict[str, Any]:
        """Return the arguments of the loss, with the classifier's layer."""
        return {**super().own_arguments(), "classifier": self._classifier}

    def compile_arguments(self, total_steps: int) -> dict[str, Any]:
        """Return both losses, and the parts of the first as metrics."""
        loss = self.loss()
        arguments = {"loss": {"embeddings": loss, "logits": self.cross_entropy()}}
        # On JAX, Keras computes metrics outside the scope in which layers have their weights.
        if keras.backend.backend() == "jax":
            return arguments
        return {**arguments, "metrics": {"embeddings": parts(loss)}}


class AlternatingClassifier(Classifier):
    """Cross-entropy in turns: fit the classifier, then train the embedding with it for an epoch.

    Boudiaf et al. 2020, Eq. 9 to 11.

    Before each epoch, a callback fits the classifier on the embeddings of all training images,
    without augmentation. The steps of the epoch do not change the classifier.
    """

    sides: ClassVar[Sequence[str]] = ("training",)

    def classifier(self, embedding: keras.Model, num_classes: int) -> keras.Model:
        """Return the model from images to logits, with a classifier that the steps do not train."""
        classifier = super().classifier(embedding, num_classes)
        self._layer = classifier.get_layer("logits")
        self._layer.trainable = False
        return classifier

    def compile_arguments(self, total_steps: int) -> dict[str, Any]:
        """Return the loss, and its parts as metrics.

        Raises:
            UsageError: The loss smooths the labels. The fitted classifier minimizes the loss only
                without smoothing.
        """
        arguments = super().compile_arguments(total_steps)
        if arguments["loss"].label_smoothing:
            raise UsageError(
                "label_smoothing must be 0 with objective=alternating, but got "
                f"{arguments['loss'].label_smoothing}."
            )
        return arguments

    def callbacks(
        self, embeddings: Callable[[str], np.ndarray], labels: np.ndarray
    ) -> list[keras.callbacks.Callback]:
        """Return a callback that fits the classifier before each epoch, from its current weights.

        It adds "profile_ce" to the logs of the epoch: the smallest value over all θ of the mean
        cross-entropy plus (w/2)‖θ‖², with w = `weight_decay`. The bias has no decay. With θ fixed,
        this sum is an upper bound of the profile for any weights of the embedding. The two are
        equal at the weights for which θ was fitted. A step on all images that is small enough
        therefore lowers the profile.

        Reference: Boudiaf et al. 2020, Eq. 9 to 11, 33, and 34.
        """
        layer, weight_decay = self._layer, self.options.weight_decay
        profile = float("nan")

        def fit(epoch: int, logs: Any = None) -> None:
            nonlocal profile
            rows = embeddings("training").astype(np.float64)
            weights, bias = (
                keras.ops.convert_to_numpy(each).astype(np.float64)
                for each in (layer.kernel, layer.bias)
            )
            start = Probe(weights, bias, np.zeros(1), np.ones(1), converged=False)
            most = self.options.classifier_steps
            fitted = fit_probe(rows, labels, weight_decay, start, False, most)
            layer.kernel.assign(fitted.weights)
            layer.bias.assign(fitted.bias)
            cross_entropy = -fitted.log_probabilities(rows, labels).mean()
            profile = float(cross_entropy + weight_decay / 2 * (fitted.weights**2).sum())

        def log(epoch: int, logs: dict[str, float]) -> None:
            logs["profile_ce"] = profile

        return [keras.callbacks.LambdaCallback(on_epoch_begin=fit, on_epoch_end=log)]
