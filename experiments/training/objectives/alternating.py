"""Alternating training of the embedding and the statistics network: RankMI."""

from typing import Any

import keras

from experiments.evaluation.evaluators import Evaluator
from experiments.options.loss_flags import STATISTICS, naming_flags
from experiments.training.objectives.base import Objective
from experiments.training.objectives.pair_distances import PairDistances
from experiments.training.optimizer import optimizer, scheduled
from keras_dml import models
from keras_dml._common.checks import check_distance


class Alternating(Objective):
    """RankMI: one of k + 1 steps updates the embedding, the others the statistics network.

    Levels are concatenated. The model contains its loss.
    """

    def training_model(self, embedding: keras.Model, num_classes: int) -> keras.Model:
        """Return the embedding with its statistics network."""
        options, given = self.options, self.options.loss_arguments
        beta = check_distance("beta", given.get("beta", 1.0))
        with naming_flags({name: f"{STATISTICS}{name}" for name in options.statistics}):
            network = models.StatisticsNetwork(
                **options.statistics, zero_at=beta, seed=options.seed
            )
        return models.RankMI(embedding, statistics_network=network, seed=options.seed, **given)

    def compile_arguments(self, total_steps: int) -> dict[str, Any]:
        """Return the optimizer of the statistics network."""
        rate = self.options.statistics_learning_rate
        rate = self.options.learning_rate if rate is None else rate
        total_updates = max(total_steps - self.updates(total_steps), 1)
        network_rate = scheduled(self.options, rate, total_updates)
        return {"statistics_optimizer": optimizer(self.options, network_rate)}

    def updates(self, steps: int) -> int:
        """Return the number of updates of the embedding: the first step, then every k + 1."""
        phases = 1 + self.options.loss_arguments.get("k", 1)
        return -(-steps // phases)

    def evaluators(self) -> list[Evaluator]:
        """Return the usual evaluators, and the distances of pairs."""
        return [*super().evaluators(), PairDistances()]
