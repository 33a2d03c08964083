"""Training with a loss over pairs of embeddings."""

import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any, cast

import keras
import numpy as np
import tensorflow as tf

from experiments.options import data as described
from experiments.options.errors import UsageError
from experiments.options.loss_flags import MEMORY, naming_flags
from experiments.training.objectives.base import Objective, parts
from keras_dml import layers, losses, models
from keras_dml.metrics import PositivesPerAnchor
from pipelines import CatalogSampler, ImageTable, Split
from pipelines.samplers import Sampler

_MEMORY_STARTS = inspect.signature(models.CrossBatchMemory).parameters["start_step"].default


class OverPairs(Objective):
    """Training with a loss over pairs of embeddings.

    With levels, the loss is summed over the levels, as in Wang et al. 2019a.
    """

    def check(self) -> None:
        """Raise `UsageError` if the batch would be compared with a memory and with old rows."""
        options = self.options
        if options.compatible_with is not None and options.memory:
            raise UsageError(
                f"{MEMORY}size must be unset with compatible_with, but got "
                f"{options.memory.get('size')}."
            )

    def outputs(self) -> Sequence[str]:
        """Return the names of the levels, if any."""
        return self.options.levels or ()

    def training_model(self, embedding: keras.Model, num_classes: int) -> models.DistributedModel:
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
        if self.old_model is not None:
            return self._compatible(fitted, self.old_model.dimensions)
        return self._remembering(fitted) if self.options.memory else fitted

    def compared(self, fitted: models.DistributedModel) -> models.DistributedModel:
        """Return the model whose outputs the loss compares."""
        return fitted

    def _compatible(
        self, fitted: models.DistributedModel, old_dimensions: int
    ) -> models.DistributedModel:
        """Return the model that is also compared with the old embeddings."""
        options = self.options
        dimensions = fitted.output_shape[1]
        if dimensions < old_dimensions:
            raise UsageError(
                f"compatible_with must be a model with embeddings of at most {dimensions} numbers, "
                f"the length of this run's embeddings, but got {options.compatible_with} with "
                f"{old_dimensions}. Set --embedding_size={old_dimensions} or more."
            )
        return models.BackwardCompatible(
            fitted,
            old_dimensions,
            weight=options.compatible_weight,
            alignment=options.compatible_alignment,
        )

    def _remembering(self, fitted: models.DistributedModel) -> models.DistributedModel:
        """Return the model with a memory of earlier batches."""
        given = dict(self.options.memory)
        size = given.pop("size", 0)
        if self.outputs():
            raise UsageError(
                f"memory_size must be unset with --levels, but got {size}. Levels are compared "
                "separately."
            )
        if size < self.options.batch_size:
            raise UsageError(
                f"memory_size must be at least batch_size={self.options.batch_size}, but got "
                f"{size or 'none'}."
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
                f"{MEMORY}start_step must be below the {steps:,} steps of this training, but got "
                f"{start}. Otherwise the memory is never used."
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
                f"boundaries must be 1, or {num_classes}, one for each training class, but got "
                f"{boundaries}."
            )
        return layers.Boundary(None if boundaries == 1 else num_classes, name=name)(output)

    def compile_arguments(self, total_steps: int) -> dict[str, Any]:
        """Return the loss, and its parts and the positives per anchor as metrics."""
        loss, levels = self.loss(), self.outputs()
        positives = PositivesPerAnchor(relation=described.relation(self.options))
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
    """Training with photographs as queries and catalog pictures, or texts, as candidates.

    One encoder embeds both, or the candidates have another encoder.
    """

    def check(self) -> None:
        """Raise `UsageError` if the loss cannot compare two sets."""
        loss = losses.LOSSES[self.options.loss]
        if loss.kind != "pairs" or not loss.takes_memory:
            raise UsageError(
                f"candidates must be batch for loss={self.options.loss}, but got catalog. The loss "
                "cannot compare two sets."
            )

    def check_data(self, data: Split) -> None:
        """Raise `UsageError` unless each training class has a catalog picture."""
        super().check_data(data)
        catalog = data.training_catalog
        if catalog is None or len(np.setdiff1d(data.train.labels, catalog.labels)):
            raise UsageError(
                "candidates must be batch for a dataset without a catalog picture of each training "
                "class, but got candidates=catalog."
            )

    def batches(
        self, data: Split, sampler: Sampler, batches_of: Callable[..., tf.data.Dataset]
    ) -> tf.data.Dataset:
        """Return the batches ((photographs, catalog pictures), class ids)."""
        seed, catalog = self.options.seed, cast(ImageTable, data.training_catalog)
        photos = super().batches(data, sampler, batches_of)
        of_catalog = CatalogSampler(sampler, data.train.labels, catalog.labels, seed=seed)
        if self.text_transform is not None:
            batches_of = functools.partial(batches_of, transform=self.text_transform)
        # Another seed, so that a photograph and its picture are not cropped alike.
        pictures = batches_of(catalog, of_catalog, seed=seed + 1)
        return tf.data.Dataset.zip(photos, pictures).map(
            lambda queries, candidates: ((queries[0], candidates[0]), queries[1])
        )

    def compared(self, fitted: models.DistributedModel) -> models.DistributedModel:
        """Return the model of both encoders."""
        return models.DualEncoder(fitted, self.candidate_encoder or fitted, name="training")

    def compile_arguments(self, total_steps: int) -> dict[str, Any]:
        """Return the loss. Two sets have no metrics."""
        return {"loss": self.loss()}
