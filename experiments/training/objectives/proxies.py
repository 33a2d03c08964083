"""Training with the cosines between embeddings and learned proxies of the classes."""

from collections.abc import Mapping
from typing import Any

import keras
import numpy as np

from experiments.evaluation.evaluators import ClassifierAccuracy, Evaluator
from experiments.options.loss_flags import PROXIES, naming_flags
from experiments.training.objectives.base import Objective
from keras_dml import layers, models, optimizers
from pipelines import Split
from pipelines.samplers import Sampler

# Arguments of a loss's head that differ from the defaults of `ProxyHead`, as in its paper.
HEADS: dict[str, dict[str, Any]] = {
    "soft_triple": {"centers": 10, "pooling": "soft", "temperature": 0.1},
    "subcenter_arcface": {"centers": 3, "pooling": "max"},
}


class OverProxies(Objective):
    """Training with a loss over cosines to proxies. Levels are concatenated."""

    def check_batches(self, data: Split, sampler: Sampler) -> None:
        """Raise an error if a sample of the classes has no room for the classes of a batch."""
        sampled = self.options.proxies.get("sampled", 1.0)
        with naming_flags({"sampled": f"{PROXIES}sampled"}):
            head = layers.ProxyHead(data.train.num_classes, sampled=sampled)
            if self.options.batches_by_class:
                head.check_room(data.train.labels[sampler(0)])
            else:  # a batch can have as many classes as images
                head.check_room(np.arange(min(sampler.batch_size, data.train.num_classes)))

    def training_model(self, embedding: keras.Model, num_classes: int) -> models.DistributedModel:
        """Return the embedding with the head of the loss, changed by the options."""
        options = self.options
        given: dict[str, Any] = {**HEADS.get(options.loss, {}), **options.proxies}
        with naming_flags({name: f"{PROXIES}{name}" for name in options.proxies}):
            if options.proxies_merging is not None:
                given["proxies_regularizer"] = layers.CenterRegularizer(
                    given.get("centers", 1), options.proxies_merging
                )
            cosines = models.proxy_model(
                embedding, num_classes, name="training", seed=options.seed, **given
            )
        if not isinstance(cosines, models.DistributedModel):  # without a sample of the classes
            cosines = models.DistributedModel(embedding.input, cosines.output, name="training")
        return self.in_chunks(cosines)

    def rate_factors(self, model: keras.Model) -> Mapping[str, float]:
        """Return the factor of the proxies."""
        factor = self.options.proxies_factor
        head = model.get_layer("proxy_head")
        return {} if factor is None else optimizers.multipliers(head, factor)

    def accuracy(self) -> Evaluator:
        """Return the evaluator of the nearest proxy."""
        return ClassifierAccuracy("proxy_head")
