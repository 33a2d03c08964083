"""Joint training with a second loss over the embeddings."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras

from experiments.options.errors import UsageError
from experiments.options.loss_flags import parsed_arguments
from experiments.training.objectives.base import Objective
from experiments.training.objectives.classifier import Classifier
from keras_dml import losses, models


class Joint(Objective):
    """A loss of embeddings or of a classifier, plus a weighted loss over pairs.

    The fitted model has the output of the first loss, and the embeddings as the output "also".
    """

    def check(self) -> None:
        """Raise `UsageError` if the losses or other options do not allow a second loss."""
        options = self.options
        kinds = {name: losses.LOSSES[name].kind for name in losses.LOSSES}
        pairs = [name for name, kind in kinds.items() if kind == "pairs"]
        if options.also not in pairs:
            raise UsageError(f"also must be one of {', '.join(pairs)}, but got {options.also}.")
        if kinds[options.loss] not in ("pairs", "classifier"):
            raise UsageError(
                f"also must come with a loss over pairs or with ce, but got loss={options.loss}."
            )
        if options.memory or self.own_arguments().get("boundaries"):
            raise UsageError(
                f"also must be unset with --memory_size or --boundaries, but got {options.also}."
            )
        self.also()

    def outputs(self) -> Sequence[str]:
        """Return the names of both outputs."""
        return ("first", "also")

    def first_output(self, embedding: keras.Model, num_classes: int) -> Any:
        """Return the output that the first loss takes."""
        return embedding.output

    def training_model(self, embedding: keras.Model, num_classes: int) -> models.DistributedModel:
        """Return the model with both outputs."""
        outputs = {"first": self.first_output(embedding, num_classes), "also": embedding.output}
        return models.DistributedModel(embedding.input, outputs, name="training")

    def also(self) -> losses.EmbeddingLoss:
        """Create the second loss.

        Raises:
            ValueError: It does not take an argument.
        """
        name = str(self.options.also)
        given = parsed_arguments("also_flags", self.options.also_flags, [name])
        return losses.get(name, **given.get(name, {}))

    def compile_arguments(self, total_steps: int) -> dict[str, Any]:
        """Return both losses with their weights."""
        return {
            "loss": {"first": self.loss(), "also": self.also()},
            "loss_weights": {"first": 1.0, "also": self.options.also_weight},
        }


class JointClassifier(Joint, Classifier):
    """Cross-entropy over the logits of a classifier, plus a weighted loss over pairs."""

    def first_output(self, embedding: keras.Model, num_classes: int) -> Any:
        """Return the logits."""
        return self.classifier(embedding, num_classes).output
