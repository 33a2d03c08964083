"""Training with a loss over pairs of embeddings."""

import inspect
from collections.abc import Sequence
from typing import Any

import keras

from experiments.options.errors import UsageError
from experiments.options.loss_flags import MEMORY, naming_flags
from experiments.training.objectives.base import Objective, parts
from keras_dml import models
from keras_dml.metrics import PositivesPerAnchor

_MEMORY_STARTS = inspect.signature(models.CrossBatchMemory).parameters["start_step"].default


class OverPairs(Objective):
    """Training with a loss over pairs of embeddings.

    With levels, the loss is summed over the levels, as in Wang et al. 2019a.
    """

    def outputs(self) -> Sequence[str]:
        """Return the names of the levels, if any."""
        return self.options.levels or ()

    def training_model(self, embedding: keras.Model, num_classes: int) -> keras.Model:
        """Return the embedding, or each level's part of it."""
        outputs = {
            level: self._with_boundaries(
                embedding.get_layer(f"{level}_embeddings").output, num_classes, f"{level}_boundary"
            )
            for level in self.outputs()
        }
        output = outputs or self._with_boundaries(embedding.output, num_classes, "boundary")
        # A separate model of the same layers: a compiled model is saved with its optimizer.
        fitted = self.compared(models.DistributedModel(embedding.input, output, name="training"))
        fitted = self.in_chunks(fitted)
        return self._remembering(fitted) if self.options.memory else fitted

    def compared(self, fitted: keras.Model) -> keras.Model:
        """Return the model whose outputs the loss compares."""
        return fitted

    def _remembering(self, fitted: keras.Model) -> keras.Model:
        """Return the model with a memory of earlier batches."""
        given = dict(self.options.memory)
        size = given.pop("size")
        if self.outputs():
            raise UsageError(
                "memory_size must not be given with levels, which are compared separately. "
                f"Received: memory_size={size}"
            )
        if size < self.options.batch_size:
            raise UsageError(
                f"memory_size must be at least batch_size, {self.options.batch_size}. "
                f"Received: memory_size={size}"
            )
        self.loss().check_memory()
        label_shape = () if self.options.relation is None else (2,)
        with naming_flags({name: f"{MEMORY}{name}" for name in given}):
            return models.CrossBatchMemory(fitted, size, label_shape=label_shape, **given)

    def check_steps(self, steps: int) -> None:
        """Raise `UsageError` if the memory begins after the last step."""
        memory = self.options.memory
        start = memory.get("start_step", _MEMORY_STARTS)
        if memory and start >= steps:
            raise UsageError(
                f"{MEMORY}start_step must be below the {steps:,} steps of this training, or the "
                f"memory is never used. Received: {MEMORY}start_step={start}"
            )

    def _with_boundaries(
        self, output: keras.KerasTensor, num_classes: int, name: str
    ) -> keras.KerasTensor:
        """Return the embeddings, with learned boundaries if the loss needs them."""
        boundaries = self.loss().boundaries
        if not boundaries:
            return output
        if boundaries not in (1, num_classes):
            raise UsageError(
                f"boundaries must be 1, or {num_classes}, one for each training class. "
                f"Received: boundaries={boundaries}"
            )
        return models.Boundary(None if boundaries == 1 else num_classes, name=name)(output)

    def compile_arguments(self, total_steps: int) -> dict[str, Any]:
        """Return the loss, and its parts and the positives per anchor as metrics."""
        loss, levels = self.loss(), self.outputs()
        positives = PositivesPerAnchor(relation=self.relation())
        if not levels:
            return {"loss": loss, "metrics": [*parts(loss), positives]}
        return {
            "loss": dict.fromkeys(levels, loss),
            "metrics": {
                level: [*parts(loss), *([] if number else [positives])]
                for number, level in enumerate(levels)
            },
        }


class OverCatalog(OverPairs):
    """Training with photographs as queries and catalog pictures as candidates, with one encoder."""

    def compared(self, fitted: keras.Model) -> keras.Model:
        """Return a siamese network around the model."""
        return models.DualEncoder(fitted, fitted, name="training")

    def compile_arguments(self, total_steps: int) -> dict[str, Any]:
        """Return the loss. Two sets have no metrics."""
        return {"loss": self.loss()}
