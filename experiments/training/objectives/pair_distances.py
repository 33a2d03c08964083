"""The distances of pairs in a RankMI run, before and after training, and the costs of a pair.

The figures follow Kemertas et al. 2020: figure 1 (distances of positive and negative pairs) and
figure 3 (cost of a pair of each kind by its distance).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from keras import ops

from experiments.evaluation.evaluators import EvaluatedRun, Evaluator, Finished, Start
from experiments.evaluation.figures import Curves, Histograms, over_epochs
from experiments.evaluation.pairs import BINS, rows_of_some_classes
from experiments.evaluation.result import Findings
from experiments.options.errors import UsageError
from experiments.training.run_files import RANKMI
from keras_dml.metrics import DistanceHistograms, distance_histograms


class PairDistances(Evaluator):
    """The evaluator of the distances of unseen pairs before and after the training."""

    def __init__(self) -> None:
        self._before: dict[str, Any] | None = None

    def before(self, run: EvaluatedRun, start: Start) -> None:
        """Store the distances before the first step, once for a run."""
        test, folder = run.data.test, run.folder
        self._before = folder.read_json(RANKMI)
        if start.step:
            if folder.writes and self._before is None:
                raise UsageError(
                    f"{folder.file(RANKMI)} is missing or damaged: "
                    "delete the run's checkpoint, and the same command begins again"
                )
            return
        rows = rows_of_some_classes(test.labels)
        # Every worker takes part in the embedding.
        embeddings = start.embedder(test.select(rows), "distances before training")
        if self._before is None:
            self._before = {"before": _histograms(embeddings, test.labels[rows])}
            folder.write_json(RANKMI, self._before)

    def finish(self, run: EvaluatedRun, end: Finished) -> Findings:
        """Store the distances by the kept model, and V; return the figures."""
        labels, model = run.data.test.labels, end.model
        rows = rows_of_some_classes(labels)
        grid = np.linspace(0, 2, 201)
        values = model.statistics_network(ops.convert_to_tensor(grid[:, None], dtype="float32"))
        seen = (self._before or {}) | {
            "after": _histograms(end.embeddings["test"][rows], labels[rows]),
            "values": ops.convert_to_numpy(values).astype(float)[:, 0].tolist(),
            "beta": float(ops.convert_to_numpy(model.beta)),
            "alpha": model.alpha,
        }
        run.folder.write_json(RANKMI, seen)
        return _shown(seen, end.history)


def _shown(seen: Mapping[str, Any], history: Sequence[Mapping[str, float]]) -> Findings:
    before, after = (
        DistanceHistograms(*(np.array(counts) for counts in seen[when]))
        for when in ("before", "after")
    )
    summary = [
        ("2 × JSD of the distances", f"{2 * after.divergence():.3f} nats (below 2 log 2 = 1.386)"),
        ("… before training", f"{2 * before.divergence():.3f} nats"),
        ("β", f"{seen['beta']:.3f}"),
    ]
    values = np.array(seen["values"])
    distances = np.linspace(0, 2, len(values))
    costs = {
        "positive pair": np.logaddexp(0, -values) - np.log(2),
        "negative pair": np.logaddexp(0, values) - np.log(2),
    }
    beta, alpha = seen["beta"], seen["alpha"]
    bound = over_epochs(history, "train/mutual_information")
    figures = {
        "Mutual-information bound of the training batches": Curves({"bound": bound}, "nats"),
        "Distances of unseen pairs": Histograms(
            {
                f"{when}, divergence {each.divergence():.3f} nats": (each.positive, each.negative)
                for when, each in (("before training", before), ("after training", after))
            },
            before.edges,
            "distance",
        ),
        "Cost of a pair": Curves(
            {name: list(zip(distances, cost)) for name, cost in costs.items()},
            "cost, nats",
            "distance",
            places={"β, ± α": beta},
            band=(max(beta - alpha, 0), min(beta + alpha, 2)),
        ),
    }
    return Findings(figures=figures, summary=summary)


def _histograms(embeddings: np.ndarray, labels: np.ndarray) -> list[list[int]]:
    found = distance_histograms(embeddings, labels, bins=BINS)
    return [found.positive.tolist(), found.negative.tolist()]
