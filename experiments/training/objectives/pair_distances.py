"""The distances of pairs at the end of a RankMI run, and the costs of a pair.

The figures follow Kemertas et al. 2020: figure 1 (distances of positive and negative pairs) and
figure 3 (cost of a pair of each kind by its distance).
"""

from __future__ import annotations

import numpy as np
from keras import ops

from experiments.evaluation.evaluators import EvaluatedRun, Evaluator, Finished
from experiments.evaluation.figures import Curves, Histograms, over_epochs
from experiments.evaluation.pairs import BINS, rows_of_some_classes
from experiments.evaluation.result import Findings
from keras_dml.metrics import distance_histograms


class PairDistances(Evaluator):
    """The evaluator of the distances of unseen pairs, and of the learned costs."""

    def finish(self, run: EvaluatedRun, end: Finished) -> Findings:
        """Return the distances by the kept model, the costs by V, and β."""
        labels, model = run.data.test.labels, end.model
        rows = rows_of_some_classes(labels)
        found = distance_histograms(end.embeddings["test"][rows], labels[rows], bins=BINS)
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
            "Distances of unseen pairs": Histograms(
                {"after training": (found.positive, found.negative)}, found.edges, "distance"
            ),
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
            ("β", f"{beta:.3f}"),
        ]
        return Findings(figures=figures, summary=summary)
