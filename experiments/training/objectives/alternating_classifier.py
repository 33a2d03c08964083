"""Alternating training of the embedding and its classifier: Boudiaf et al. 2020, Eq. 9 to 11."""

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import keras
import numpy as np

from experiments.options.errors import UsageError
from experiments.training.objectives.classifier import Classifier
from keras_dml.metrics.linear_probe import Probe, fit_probe


class AlternatingClassifier(Classifier):
    """Cross-entropy in turns: fit the classifier, then train the embedding with it for an epoch.

    Before each epoch, `FitClassifier` fits the classifier on the embeddings of all training images,
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
        """Return the callback that fits the classifier."""
        weight_decay, most = self.options.weight_decay, self.options.classifier_steps
        return [FitClassifier(self._layer, embeddings, labels, weight_decay, most)]


class FitClassifier(keras.callbacks.Callback):
    """A callback that fits a linear classifier before each epoch, from its current weights.

    It adds "profile_ce" to the logs of the epoch: the smallest value over all θ of the mean
    cross-entropy plus (w/2)‖θ‖². With θ fixed, this sum is an upper bound of the profile for any
    weights of the embedding. The two are equal at the weights for which θ was fitted. A step on
    all images that is small enough therefore lowers the profile.

    Args:
        layer: A `keras.layers.Dense` from embeddings to logits.
        embeddings: Function from the name of a table to its embeddings `[n, d]`.
        labels: Class numbers of the training images, `[n]`.
        weight_decay: w. The bias has no decay.
        most: Largest number of L-BFGS iterations.

    Reference: Boudiaf et al. 2020, Eq. 9 to 11, 33, and 34.
    """

    def __init__(
        self,
        layer: keras.layers.Dense,
        embeddings: Callable[[str], np.ndarray],
        labels: np.ndarray,
        weight_decay: float,
        most: int,
    ) -> None:
        super().__init__()
        self.layer, self.embeddings, self.labels = layer, embeddings, labels
        self.weight_decay, self.most = weight_decay, most
        self._profile = float("nan")

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Fit the classifier on the embeddings of the current weights."""
        rows = self.embeddings("training").astype(np.float64)
        weights, bias = (
            keras.ops.convert_to_numpy(each).astype(np.float64)
            for each in (self.layer.kernel, self.layer.bias)
        )
        start = Probe(weights, bias, np.zeros(1), np.ones(1), converged=False)
        fitted = fit_probe(rows, self.labels, self.weight_decay, start, False, self.most)
        self.layer.kernel.assign(fitted.weights)
        self.layer.bias.assign(fitted.bias)
        cross_entropy = -fitted.log_probabilities(rows, self.labels).mean()
        self._profile = float(cross_entropy + self.weight_decay / 2 * (fitted.weights**2).sum())

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Log the value of the last fit."""
        if logs is not None:
            logs["profile_ce"] = self._profile
