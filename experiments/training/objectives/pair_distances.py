"""The distances of pairs in a RankMI run, before and after training, and the costs of a pair.

The figures follow Kemertas et al. 2020: figure 1 (distances of positive and negative pairs) and
figure 3 (cost of a pair of each kind by its distance).
"""

from __future__ import annotations

import numpy as np
from keras import ops

from experiments.evaluation.evaluators import EvaluatedRun, Evaluator, Finished, Start
from experiments.evaluation.figures import Curves, Histograms, over_epochs
from experiments.evaluation.pairs import BINS, rows_of_some_classes
from experiments.evaluation.result import Findings
from keras_dml.metrics import DistanceHistograms, distance_histograms

BEFORE = "distances_before.json"
"""The counts of the distances before the training."""


class PairDistances(Evaluator):
    """The evaluator of the distances of unseen pairs, and of the learned costs."""

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
        stored = run.folder.read_json(BEFORE)
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
