"""Training by a loss over the embeddings alone."""

from collections.abc import Sequence
from typing import Any

import keras

from experiments.training.objectives.base import Objective, parts
from keras_dml import models


class OverPairs(Objective):
    """The embeddings themselves are compared.

    With levels each has the loss of its own, as Wang et al. 2019a train theirs, and their sum is
    what is lowered.
    """

    def outputs(self) -> Sequence[str]:
        """The levels, where there are some."""
        return self.options.levels or ()

    def training_model(self, embedding: keras.Model, num_classes: int) -> keras.Model:
        """The embedding, or each level's part of it."""
        outputs = {
            level: embedding.get_layer(f"{level}_embeddings").output for level in self.outputs()
        }
        # Same layers in a model of its own: what is compiled would be saved with its optimizer.
        return models.DistributedModel(
            embedding.input, outputs or embedding.output, name="training"
        )

    def compile_arguments(self, total_steps: int) -> dict[str, Any]:
        """The loss, and its parts as metrics, for each output."""
        loss, levels = self.loss(), self.outputs()
        if not levels:
            return {"loss": loss, "metrics": parts(loss)}
        return {
            "loss": dict.fromkeys(levels, loss),
            "metrics": {level: parts(loss) for level in levels},
        }
