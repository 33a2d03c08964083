"""Alternating training of the embedding and the statistics network: RankMI."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
from keras import ops

from experiments.evaluation.evaluators import EvaluatedRun, Evaluator, Finished, Start
from experiments.evaluation.figures import (
    BINS,
    Curves,
    Histograms,
    over_epochs,
    rows_of_some_classes,
)
from experiments.evaluation.result import Findings
from experiments.options.loss_flags import STATISTICS, naming_flags
from experiments.training.objectives.base import Objective
from experiments.training.optimizer import optimizer, scheduled
from keras_dml import models
from keras_dml._common.checks import check_distance
from keras_dml.metrics import DistanceHistograms, distance_histograms

BEFORE = "distances_before.json"
"""The counts of the distances before the training."""


class Alternating(Objective):
    """RankMI: one of k + 1 steps updates the embedding, the others the statistics network.

    Levels are concatenated. The model contains its loss.
    """

    def training_model(self, embedding: keras.Model, num_classes: int) -> models.DistributedModel:
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


class PairDistances(Evaluator):
    """The evaluator of the distances of unseen pairs, before and after training, and of the costs.

    The figures follow Kemertas et al. 2020: figure 1 (distances of positive and negative pairs) and
    figure 3 (cost of a pair of each kind by its distance).
    """

    def before(self, run: EvaluatedRun, start: Start) -> None:
        """Store the distances before the first step."""
        if start.step:
            return
        test = run.data.test
        rows = rows_of_some_classes(test.labels)
        # Every worker takes part in the embedding.
        embeddings = start.embedder(test.select(rows), "distances before training")
        found = distance_histograms(embeddings, test.labels[rows], bins=BINS)
        run.folder.write_json(BEFORE, [found.positive.tolist(), found.negative.tolist()])

    def finish(self, run: EvaluatedRun, end: Finished) -> Findings:
        """Return the distances before training and by the kept model, the costs by V, and β."""
        labels, model = run.data.test.labels, end.model
        rows = rows_of_some_classes(labels)
        found = distance_histograms(end.embeddings["test"][rows], labels[rows], bins=BINS)
        stored = run.folder.read_json(BEFORE, [[float] * BINS] * 2)
        before = {"before": DistanceHistograms(*map(np.array, stored))} if stored else {}
        shown = {
            f"{when} training, divergence {each.divergence():.3f} nats": (
                each.positive,
                each.negative,
            )
            for when, each in {**before, "after": found}.items()
        }
        distances = np.linspace(0, 2, 201)
        grid = ops.convert_to_tensor(distances[:, None], dtype="float32")
        values = ops.convert_to_numpy(model.statistics_network(grid)).astype(float)[:, 0]
        costs = {
            "positive pair": np.logaddexp(0, -values) - np.log(2),
            "negative pair": np.logaddexp(0, values) - np.log(2),
        }
        beta, alpha = float(ops.convert_to_numpy(model.beta)), model.alpha
        bound = over_epochs(end.history, "train/mutual_information")
        figures = {
            "Mutual-information bound of the training batches": Curves({"bound": bound}, "nats"),
            "Distances of unseen pairs": Histograms(shown, found.edges, "distance"),
            "Cost of a pair": Curves(
                {name: list(zip(distances, cost)) for name, cost in costs.items()},
                "cost, nats",
                "distance",
                places={"β, ± α": beta},
                band=(max(beta - alpha, 0), min(beta + alpha, 2)),
            ),
        }
        summary = [
            ("2 × JSD of the distances", f"{2 * found.divergence():.3f} nats (below 1.386)"),
            *(
                ("… before training", f"{2 * each.divergence():.3f} nats")
                for each in before.values()
            ),
            ("β", f"{beta:.3f}"),
        ]
        return Findings(figures=figures, summary=summary)
