"""A figure of the trials of a search: the score by each hyperparameter."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from experiments.pages.figures import BLUE, INK, ORANGE, svg

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["Tried", "trials_svg"]

_COLUMNS = 2


class Tried(NamedTuple):
    """A trial: its hyperparameters by name, and its score in percent; None if it failed."""

    values: Mapping[str, float | int | str]
    score: float | None


def trials_svg(
    name: str, trials: Sequence[Tried], best: int, logarithmic: Sequence[str] = (), label: str = ""
) -> str:
    """Return a panel for each hyperparameter with a dot for each trial, as an `<svg>` element.

    A ring marks the best trial. Failed trials are crosses at the lower edge. The text is empty if
    no trial has a score.

    Args:
        name: Name of the figure, unique on the page.
        trials: Trials with the same hyperparameters.
        best: Index of the best trial.
        logarithmic: Hyperparameters with a logarithmic axis.
        label: Label of the scores.
    """
    scores = [trial.score for trial in trials if trial.score is not None]
    if not scores:
        return ""
    names = list(trials[0].values)
    said = ", ".join(f"{key} {_shown(value)}" for key, value in trials[best].values.items())
    parts = [f"{len(trials)} trials, {label} from {min(scores):.1f} to {max(scores):.1f}",
             f"best: {said}"]  # fmt: skip
    lines = -(-len(names) // _COLUMNS)

    def draw(figure: Figure) -> None:
        grid = figure.subplots(lines, min(_COLUMNS, len(names)), squeeze=False, sharey=True)
        for axes in grid.flat[len(names) :]:
            axes.set_axis_off()
        for axes, key in zip(grid.flat, names):
            _panel(axes, key, trials, best, min(scores))
            if key in logarithmic:
                _logarithmic(axes, [float(trial.values[key]) for trial in trials])
        figure.supylabel(label, fontsize="medium")

    return svg(name, draw, parts, height=0.5 + 2.3 * lines)


def _panel(axes: Axes, key: str, trials: Sequence[Tried], best: int, lowest: float) -> None:
    # Words are at 0, 1, 2, ... in alphabetical order.
    words = sorted({str(trial.values[key]) for trial in trials
                    if isinstance(trial.values[key], str)})  # fmt: skip
    places = [
        words.index(str(trial.values[key])) if words else float(trial.values[key])
        for trial in trials
    ]
    whole = [(x, t.score) for x, t in zip(places, trials) if t.score is not None]
    axes.plot(*zip(*whole), "o", color=BLUE, markersize=4)
    broken = [x for x, trial in zip(places, trials) if trial.score is None]
    if broken:
        axes.plot(broken, [lowest] * len(broken), "x", color=ORANGE, markersize=6)
    ring: dict[str, Any] = {"markersize": 11, "markerfacecolor": "none", "markeredgewidth": 1.6}
    score = trials[best].score
    axes.plot([places[best]], [lowest if score is None else score], "o", color=INK, **ring)
    if words:
        axes.set_xticks(range(len(words)), words)
        axes.margins(x=0.3)
    axes.set_xlabel(key)


def _logarithmic(axes: Axes, values: Sequence[float]) -> None:
    from matplotlib.ticker import NullFormatter

    axes.set_xscale("log")
    axes.xaxis.set_minor_formatter(NullFormatter())  # minor labels would overlap
    low, high = min(values), max(values)
    if high < 10 * low:  # the range may have no power of ten
        axes.set_xticks([low, high], [f"{low:.2g}", f"{high:.2g}"])


def _shown(value: float | int | str) -> str:
    return value if isinstance(value, str) else f"{value:.4g}"
