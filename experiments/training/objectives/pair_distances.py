"""The distances of pairs before and after a RankMI training, and their costs, for the report.

The figures follow Kemertas et al. 2020: figure 1 (distribution of the distances of positive and
negative pairs) and figure 3 (cost of a pair at each distance).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from keras import ops

from experiments.embedding.table_embedder import TableEmbedder
from experiments.options.errors import UsageError
from experiments.report.distance_figure import BINS, distances_svg, rows_of_some_classes
from experiments.report.figures import BLUE, INK, ORANGE, legend, lines_svg, svg
from experiments.training.checkpoint import State
from experiments.training.evaluators import Embeddings, Evaluator, Findings, Finished
from experiments.training.run_files import RANKMI
from keras_dml.metrics import DistanceHistograms, distance_histograms

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from experiments.training.plan import RunPlan


class PairDistances(Evaluator):
    """The evaluator of the distances of unseen pairs before and after the training."""

    def __init__(self) -> None:
        self._before: dict[str, Any] | None = None

    def before(
        self,
        run: RunPlan,
        state: State,
        embedder: TableEmbedder,
        untrained: Callable[[], Embeddings] = dict,
    ) -> None:
        """Store the distances before the first step, once per run."""
        test, folder = run.data.test, run.folder
        self._before = folder.read_json(RANKMI)
        if state.step:
            if folder.writes and self._before is None:
                raise UsageError(
                    f"{folder.file(RANKMI)} is missing or damaged: "
                    "delete the run's checkpoint, and the same command begins again"
                )
            return
        rows = rows_of_some_classes(test.labels)
        # All workers take part.
        embeddings = embedder(test.select(rows), "distances before training")
        if self._before is None:
            self._before = {"before": _histograms(embeddings, test.labels[rows])}
            folder.write_json(RANKMI, self._before)

    def finish(self, run: RunPlan, end: Finished) -> Findings:
        """Store the distances of the kept model and V, and draw the figures."""
        labels, model = run.data.test.labels, end.model
        rows = rows_of_some_classes(labels)
        grid = np.linspace(0, 2, 201)
        values = model.statistics_network(ops.convert_to_tensor(grid[:, None], dtype="float32"))
        seen = (self._before or {}) | {
            "after": _histograms(end.embeddings[rows], labels[rows]),
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
    bound = lines_svg("bound", {"bound": history}, "train/mutual_information", label="nats")
    pictures = {
        "Mutual-information bound of the training batches": bound,
        "Distances of unseen pairs": distances_svg(
            {"before training": before, "after training": after}
        ),
        "What a pair costs": _costs_svg(np.array(seen["values"]), seen["beta"], seen["alpha"]),
    }
    return Findings(pictures=pictures, summary=summary)


def _histograms(embeddings: np.ndarray, labels: np.ndarray) -> list[list[int]]:
    found = distance_histograms(embeddings, labels, bins=BINS)
    return [found.positive.tolist(), found.negative.tolist()]


def _costs_svg(values: np.ndarray, beta: float, alpha: float) -> str:
    distances = np.linspace(0, 2, len(values))
    curves = {
        "positive pair": (np.logaddexp(0, -values) - np.log(2), BLUE, "-"),
        "negative pair": (np.logaddexp(0, values) - np.log(2), ORANGE, "--"),
    }
    parts = [f"the costs meet at the distance {beta:.3f}, margins {alpha:g} on either side"]

    def draw(figure: Figure) -> None:
        axes = figure.add_subplot()
        for name, (costs, color, line) in curves.items():
            axes.plot(distances, costs, color=color, linestyle=line, label=name)
        axes.axvline(beta, color=INK, linewidth=0.8, label="β")
        axes.axvspan(max(beta - alpha, 0), min(beta + alpha, 2), color=INK, alpha=0.08, label="± α")
        axes.set_xlabel("distance")
        axes.set_ylabel("cost, nats")
        legend(axes)

    return svg("costs", draw, parts)
