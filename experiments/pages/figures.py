"""Figures as SVG text for an HTML page.

Text, axes, and grid have the page's `currentColor`, so a figure is legible on a light and on a dark
page. The same input gives the same bytes, whatever the user's matplotlib settings are.
"""

from __future__ import annotations

import html
import io
import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from experiments.evaluation.intervals import mean_interval

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# The objects of `metrics.jsonl`.
History: TypeAlias = Sequence[Mapping[str, float]]
# (epoch, value) pairs.
Curve: TypeAlias = Sequence[tuple[float, float]]
# Replaced by the page's text color after matplotlib has drawn. No other element has this color.
INK = "#010203"
# Mid-tones with at least 3:1 contrast on white and on near-black; line styles differ as well.
BLUE, ORANGE, _PURPLE, _GREY = "#3b82d0", "#d9771f", "#a666c9", "#808790"
# Letters in a line of a legend, and letters that the line before a name counts for.
_MOST_LETTERS, _HANDLE = 48, 4
# With more evaluations, the dots would hide the line.
_MOST_DOTS = 40


def recall_svg(
    history: History,
    best: Mapping[str, float],
    baseline: str = "raw pixels",
    of_baseline: float | None = None,
) -> str:
    """Return R@1 over epochs as an `<svg>` element; empty without R@1.

    A ring marks the kept epoch, and a dotted line the baseline.

    Args:
        history: The objects of `metrics.jsonl`.
        best: The object whose model was kept, or an empty one.
        baseline: Name of the baseline.
        of_baseline: R@1 of the baseline, if there is one.
    """
    keys = {"cosine": "test/recall@1/cosine", "l2": "test/recall@1/l2"}
    curves = {name: _curve(history, key, scale=100) for name, key in keys.items()}
    if not any(curves.values()):
        return ""
    parts = [_in_words(f"R@1 {name}", curve, " %") for name, curve in curves.items() if curve]

    def draw(figure: Figure) -> None:
        axes = figure.add_subplot()
        _plot(axes, curves["cosine"], BLUE, "-", "cosine")
        _plot(axes, curves["l2"], ORANGE, "--", "l2")
        for epoch, value in _curve([best], keys["cosine"], scale=100):
            axes.axvline(epoch, color=INK, linewidth=0.8, alpha=0.35, zorder=1)
            ring: dict[str, Any] = {
                "markersize": 10,
                "markerfacecolor": "none",
                "markeredgewidth": 1.6,
            }
            label = f"kept, epoch {epoch:g}"
            axes.plot([epoch], [value], "o", color=INK, label=label, **ring)
            parts.append(f"kept: epoch {epoch:g} with {value:.1f} %")
        if of_baseline is not None:
            axes.axhline(100 * of_baseline, color=_GREY, linestyle=":", label=baseline)
            parts.append(f"{baseline} {100 * of_baseline:.1f} %")
        axes.set_ylabel("R@1, %")
        if _epochs(axes, curves) == 1:
            axes.set_ylim(0, 100)  # single dots need no zoom
        legend(axes)

    return svg("recall", draw, parts)


def loss_svg(history: History) -> str:
    """Return the training loss and its parts with the learning rate below, as an `<svg>` element.

    The text is empty if the history has neither a loss nor a learning rate.
    """
    names = ("loss", "tightness", "contrastive")
    curves = {name: _curve(history, f"train/{name}") for name in names}
    rate = _curve(history, "train/learning_rate")
    has_loss = any(curves.values())
    if not has_loss and not rate:
        return ""
    named = [*curves.items(), ("learning rate", rate)]
    parts = [_in_words(name, curve) for name, curve in named if curve]

    def draw(figure: Figure) -> None:
        ratios = [5] * has_loss + [1] * bool(rate)
        grid = figure.subplots(len(ratios), sharex=True, squeeze=False, height_ratios=ratios)
        panels = list(grid[:, 0])
        if has_loss:
            axes = panels[0]
            styles = ((BLUE, "-"), (ORANGE, "--"), (_PURPLE, "-."))
            for (name, curve), (color, line) in zip(curves.items(), styles):
                _plot(axes, curve, color, line, name)
            axes.set_ylabel("training loss")
            legend(axes)
        if rate:
            axes = panels[-1]
            highest = max(value for _, value in rate)
            _plot(axes, rate, _GREY, "-", "learning rate")
            axes.set_title("learning rate", loc="left", fontsize="small", pad=2)
            if highest > 0:
                axes.set_ylim(0, 1.15 * highest)
                axes.set_yticks([0, highest], ["0", f"{highest:.2g}"])
        _epochs(panels[-1], {**curves, "learning rate": rate})

    return svg("loss", draw, parts)


def bars_svg(values: Mapping[str, float], unit: str = " %") -> str:
    """Return horizontal bars with their values, the first on top, as an `<svg>` element."""
    parts = [f"{name} {value:.1f}{unit}" for name, value in values.items()]

    def draw(figure: Figure) -> None:
        axes = figure.add_subplot()
        bars = axes.barh(range(len(values)), list(values.values()), color=BLUE, height=0.7)
        axes.bar_label(bars, labels=[f"{value:.1f}{unit}" for value in values.values()], padding=3)
        axes.set_yticks(range(len(values)), list(values))
        axes.invert_yaxis()
        axes.margins(x=0.15)
        axes.grid(visible=False, axis="y")

    return svg("bars", draw, parts, height=0.8 + 0.27 * len(values))


def lines_svg(
    name: str, histories: Mapping[str, History], key: str, scale: float = 1, label: str = ""
) -> str:
    """Return a quantity over epochs, a line for each run, as an `<svg>` element.

    Args:
        name: Name of the figure, unique on the page.
        histories: Name of a run -> the objects of its `metrics.jsonl`.
        key: Key of the quantity. The text is empty if no run has it.
        scale: Factor on the values.
        label: Label of the vertical axis.
    """
    curves = {run: _curve(history, key, scale) for run, history in histories.items()}
    curves = {run: curve for run, curve in curves.items() if curve}
    if not curves:
        return ""
    parts = [_in_words(run, curve) for run, curve in curves.items()]

    def draw(figure: Figure) -> None:
        from matplotlib import colormaps

        axes = figure.add_subplot()
        shades = [colormaps["tab10"](number) for number in range(10)]
        for number, (run, curve) in enumerate(curves.items()):
            line = ("-", "--", "-.", ":")[number // len(shades) % 4]
            _plot(axes, curve, shades[number % len(shades)], line, run)
        axes.set_ylabel(label)
        _epochs(axes, curves)
        if len(curves) > 1:
            figure.legend(loc="outside lower center", fontsize="small", ncols=2)

    return svg(name, draw, parts, height=3.4 + 0.1 * len(curves))


def paths_svg(histories: Mapping[str, History]) -> str:
    """Return tightness and contrastive part over training, a panel for each run that has both."""
    keys = ("train/tightness", "train/contrastive")
    paths = {
        name: [
            (row[keys[0]], row[keys[1]])
            for row in history
            if all(key in row and math.isfinite(row[key]) for key in keys)
        ]
        for name, history in histories.items()
    }
    paths = {name: path for name, path in paths.items() if path}
    if not paths:
        return ""
    parts = [
        f"{name} from tightness {path[0][0]:.3g}, contrastive {path[0][1]:.3g} "
        f"to {path[-1][0]:.3g}, {path[-1][1]:.3g}"
        for name, path in paths.items()
    ]
    columns = min(3, len(paths))
    lines = -(-len(paths) // columns)

    def draw(figure: Figure) -> None:
        grid = figure.subplots(lines, columns, squeeze=False)
        for axes in grid.flat[len(paths) :]:
            axes.set_axis_off()
        for axes, (name, path) in zip(grid.flat, paths.items()):
            axes.plot(*zip(*path), color=BLUE, linewidth=1)
            axes.plot(*path[0], "o", color=BLUE, markerfacecolor="none")
            axes.plot(*path[-1], "o", color=BLUE)
            axes.set_title(name, fontsize="small", pad=3)
            axes.tick_params(labelsize="x-small")
        figure.supxlabel("tightness", fontsize="small")
        figure.supylabel("contrastive", fontsize="small")

    return svg("paths", draw, parts, height=0.6 + 2.2 * lines)


def intervals_svg(name: str, scores: Mapping[str, Sequence[float]], unit: str = " %") -> str:
    """Return the scores over seeds as dots, and their means with 95 % intervals as bars.

    Args:
        name: Name of the score.
        scores: Name of a line -> scores of several seeds. The highest mean is on top.
        unit: Unit of the scores.
    """
    if not scores:
        return ""
    intervals = {key: mean_interval(values) for key, values in scores.items()}
    order = sorted(scores, key=lambda key: intervals[key].mean)
    parts = [
        f"{key} {intervals[key].mean:.1f} ± {intervals[key].half_width:.1f}{unit}"
        for key in reversed(order)
    ]

    def draw(figure: Figure) -> None:
        axes = figure.add_subplot()
        for place, key in enumerate(order):
            mean, half = intervals[key]
            axes.plot(scores[key], [place] * len(scores[key]), "o", color=ORANGE, markersize=3)
            if math.isfinite(half):
                axes.errorbar(mean, place, xerr=half, color=BLUE, capsize=4, linewidth=2)
            axes.plot([mean], [place], "D", color=BLUE, markersize=5)
        axes.set_yticks(range(len(order)), order)
        axes.set_ylim(-0.6, len(order) - 0.4)
        axes.set_xlabel(f"{name},{unit}")

    return svg(f"intervals of {name}", draw, parts, height=1.2 + 0.35 * len(order))


def _curve(history: History, key: str, scale: float = 1) -> Curve:
    """Return the (epoch, value) pairs of the rows in which both are finite numbers."""
    pairs = [(row.get("epoch"), row.get(key)) for row in history]
    return [
        (epoch, scale * value)
        for epoch, value in pairs
        if epoch is not None and value is not None and math.isfinite(epoch) and math.isfinite(value)
    ]


def _in_words(name: str, curve: Curve, unit: str = "") -> str:
    (first, start), (last, end) = curve[0], curve[-1]
    if len(curve) == 1:
        return f"{name} {end:.3g}{unit} at epoch {last:g}"
    return f"{name} from {start:.3g}{unit} at epoch {first:g} to {end:.3g}{unit} at epoch {last:g}"


def _plot(axes: Axes, curve: Curve, color: Any, line: str, label: str) -> None:
    if curve:
        marker = "o" if len(curve) <= _MOST_DOTS else None
        style = {"color": color, "linestyle": line, "marker": marker, "markersize": 3.5}
        axes.plot(*zip(*curve), label=label, **style)


def _epochs(axes: Axes, curves: Mapping[str, Curve]) -> int:
    """Lay out the axis of epochs; return the number of different epochs."""
    from matplotlib.ticker import MaxNLocator

    epochs = {epoch for curve in curves.values() for epoch, _ in curve}
    if len(epochs) == 1:  # the default limits around one number are too narrow
        axes.set_xlim(min(epochs) - 1, max(epochs) + 1)
    axes.xaxis.set_major_locator(MaxNLocator(nbins=8, integer=True, min_n_ticks=1))
    axes.set_xlabel("epoch")
    return len(epochs)


def legend(axes: Axes) -> None:
    """Draw the legend above the axes, in lines that are not wider than the figure."""
    _, labels = axes.get_legend_handles_labels()
    axes.legend(
        loc="lower left",
        bbox_to_anchor=(0, 1.01),
        ncols=next((count for count in (4, 3, 2) if _letters(labels, count) <= _MOST_LETTERS), 1),
        borderaxespad=0,
        borderpad=0.2,
        columnspacing=1.0,
        handlelength=1.6,
        handletextpad=0.5,
    )


def _letters(labels: Sequence[str], columns: int) -> int:
    """Return the width of a legend in letters. Matplotlib fills it column by column."""
    shortest, longer = divmod(len(labels), columns)
    ends = [(column + 1) * shortest + min(column + 1, longer) for column in range(columns)]
    parts = [labels[first:last] for first, last in zip([0, *ends], ends)]
    return sum(_HANDLE + max(map(len, part)) for part in parts if part)


def svg(
    name: str, draw: Callable[[Figure], None], parts: Sequence[str], height: float = 3.4
) -> str:
    """Run `draw(figure)`, and return the figure as an `<svg>` element that `parts` describe."""
    import matplotlib.style
    from matplotlib.figure import Figure

    inked = ("text.color", "axes.edgecolor", "axes.labelcolor", "xtick.color", "ytick.color")
    settings = dict.fromkeys((*inked, "grid.color"), INK) | {
        "axes.grid": True,
        "axes.spines.right": False,
        "axes.spines.top": False,
        "grid.alpha": 0.15,
        "font.size": 11,
        "legend.frameon": False,
        "lines.linewidth": 1.8,
        "savefig.transparent": True,
        "svg.fonttype": "none",  # keep text as text, in the page's font
        "svg.hashsalt": name,
    }
    file = io.StringIO()
    with matplotlib.style.context(["default", settings]):
        figure = Figure(figsize=(5.2, height), layout="constrained")
        draw(figure)
        nothing = dict.fromkeys(("Creator", "Date", "Format", "Type"))
        figure.savefig(file, format="svg", metadata=nothing)
    text = file.getvalue()
    text = text[text.index("<svg") :].replace(INK, "currentColor")
    # The ids of two figures on a page must differ.
    text = re.sub(r'(\sid="|href="#|url\(#)', rf"\g<1>{name}-", text)
    label = html.escape("; ".join(parts))
    # The page sets the width, and viewBox the height.
    text = re.sub(r'(<svg[^>]*?) width="[^"]*" height="[^"]*"', r"\1", text, count=1)
    return text.replace("<svg", f'<svg role="img" aria-label="{label}"', 1).strip()
