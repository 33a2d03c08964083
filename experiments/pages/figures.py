"""Figures as SVG text for an HTML page.

Text, axes, and grid have the page's `currentColor`, so a figure is legible on a light and on a dark
page. The same input gives the same bytes, whatever the user's matplotlib settings are.
"""

from __future__ import annotations

import html
import io
import itertools
import math
import re
import textwrap
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from experiments.evaluation.conclusions import mean_interval
from experiments.evaluation.figures import Curves, Histograms, Means, Trials

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Replaced by the page's text color after matplotlib has drawn. No other element has this color.
_INK = "#010203"
# Mid-tones with at least 3:1 contrast on white and on near-black; line styles differ as well.
_BLUE, _ORANGE, _GRAY = "#3b82d0", "#d9771f", "#808790"
_COLORS = (_BLUE, _ORANGE, "#a666c9", "#2f9662", "#d3504a", _GRAY)
_STYLES = ("-", "--", "-.", ":")
_RING: dict[str, Any] = {
    "marker": "o",
    "markersize": 10,
    "markerfacecolor": "none",
    "linestyle": "none",
}
# With more points, the dots would hide the line.
_MOST_DOTS = 40
# Characters of a name in a legend of two columns.
_LONGEST_OF_TWO = 28


def svg(title: str, shown: Curves | Histograms | Means | Trials) -> str:
    """Return a figure as an `<svg>` element; empty if it has nothing to show.

    Args:
        title: Title of the figure, unique on the page.
        shown: The numbers.
    """
    return _FIGURES[type(shown)](title, shown)


def svgs(figures: Mapping[str, Any]) -> dict[str, str]:
    """Return title -> `<svg>` element of the figures that have something to show."""
    drawn = {title: svg(title, shown) for title, shown in figures.items()}
    return {title: text for title, text in drawn.items() if text}


def _curves(title: str, shown: Curves) -> str:
    lines = {name: line for name, line in shown.lines.items() if len(line) > 1}
    if not lines:
        return ""
    words = [_in_words(name, line, shown.x) for name, line in lines.items()]
    words += [f"{name} {y:.3g} at {shown.x} {x:.3g}" for name, (x, y) in shown.rings.items()]
    words += [
        f"{name} {value:.3g}" for name, value in [*shown.levels.items(), *shown.places.items()]
    ]

    def draw(figure: Figure) -> None:
        from matplotlib.ticker import MaxNLocator

        axes = figure.add_subplot()
        looks = itertools.cycle(zip(_COLORS * 2, _STYLES * 3))
        for (name, line), (color, style) in zip(lines.items(), looks):
            dots: dict[str, Any] = {}
            if len(line) <= _MOST_DOTS:
                dots = {"marker": "o", "markersize": 3.5}
            axes.plot(*zip(*line), color=color, linestyle=style, label=name, **dots)
        for name, point in shown.rings.items():
            axes.plot(*point, color=_INK, label=name, **_RING)
        for name, value in shown.levels.items():
            axes.axhline(value, color=_GRAY, linestyle=":", label=name)
        for name, value in shown.places.items():
            axes.axvline(value, color=_INK, linewidth=0.9, label=name)
        if shown.band is not None:
            axes.axvspan(*shown.band, color=_INK, alpha=0.1, linewidth=0)
        if shown.is_log:
            axes.set_xscale("log")
        if shown.x == "epoch":
            axes.xaxis.set_major_locator(MaxNLocator(nbins=8, integer=True, min_n_ticks=1))
        axes.set_xlabel(shown.x)
        axes.set_ylabel(_wrapped(shown.y))
        names = axes.get_legend_handles_labels()[1]
        if len(names) > 1:
            # Two columns of longer names are wider than the figure.
            ncols = 2 if max(map(len, names)) <= _LONGEST_OF_TWO else 1
            figure.legend(loc="outside upper left", ncols=ncols)

    return _drawn(title, draw, words, 3.4 + 0.1 * len(lines))


def _in_words(name: str, line: Any, x: str) -> str:
    (first, start), (last, end) = line[0], line[-1]
    return f"{name} from {start:.3g} at {x} {first:.3g} to {end:.3g} at {x} {last:.3g}"


def _histograms(title: str, shown: Histograms) -> str:
    panels = {name: pair for name, pair in shown.panels.items() if all(each.any() for each in pair)}
    if not panels:
        return ""
    lowest = min(each.nonzero()[0][0] for pair in panels.values() for each in pair)

    def draw(figure: Figure) -> None:
        rows = figure.subplots(len(panels), sharex=True, squeeze=False)[:, 0]
        for axes, (name, pair) in zip(rows, panels.items()):
            looks = zip(pair, (_BLUE, _ORANGE), _STYLES, ("matching pairs", "other pairs"))
            for counts, color, style, kind in looks:
                density = counts / counts.sum()
                axes.stairs(density, shown.edges, fill=True, alpha=0.35, color=color)
                axes.stairs(density, shown.edges, color=color, linestyle=style, label=kind)
            axes.set_title(name, loc="left", fontsize="medium", pad=4)
            axes.set_yticks([])
            axes.set_xlim(shown.edges[lowest], shown.edges[-1])
        rows[-1].set_xlabel(shown.x)
        figure.legend(*rows[0].get_legend_handles_labels(), loc="outside upper left", ncols=2)

    return _drawn(title, draw, list(panels), 1.3 + 1.3 * len(panels))


def _means(title: str, shown: Means) -> str:
    intervals = {name: mean_interval(values) for name, values in shown.values.items()}
    words = [f"{name} {interval.text(shown.digits)}" for name, interval in intervals.items()]

    def draw(figure: Figure) -> None:
        axes = figure.add_subplot()
        for place, (name, values) in enumerate(shown.values.items()):
            mean, half = intervals[name]
            axes.plot(values, [place] * len(values), "o", color=_ORANGE, markersize=3)
            if math.isfinite(half):
                axes.errorbar(mean, place, xerr=half, color=_BLUE, capsize=4, linewidth=2)
            axes.plot([mean], [place], "D", color=_BLUE, markersize=5)
        axes.set_yticks(range(len(words)), words)
        axes.set_ylim(len(words) - 0.4, -0.6)
        axes.set_xlabel(_wrapped(shown.x))

    return _drawn(title, draw, words, 1.2 + 0.35 * len(words))


def _trials(title: str, shown: Trials) -> str:
    scored = [score for score in shown.scores if score is not None]
    if not scored:
        return ""
    best = shown.values[shown.best]
    texts = [f"{name} {each if isinstance(each, str) else format(each, '.4g')}"
             for name, each in best.items()]  # fmt: skip
    words = [f"{len(shown.scores)} trials, {shown.y} from {min(scored):.1f} to {max(scored):.1f}",
             f"best: {', '.join(texts)}"]  # fmt: skip
    lines = -(-len(best) // 2)

    def draw(figure: Figure) -> None:
        grid = figure.subplots(lines, min(2, len(best)), squeeze=False, sharey=True)
        for axes, name in itertools.zip_longest(grid.flat, best):
            if name is None:
                axes.set_axis_off()
                continue
            for number, (values, score) in enumerate(zip(shown.values, shown.scores)):
                if score is None:
                    axes.plot(values[name], min(scored), "x", color=_ORANGE, markersize=6)
                else:
                    axes.plot(values[name], score, "o", color=_BLUE, markersize=4)
                    if number == shown.best:
                        axes.plot(values[name], score, color=_INK, **_RING)
            if name in shown.logarithmic:
                axes.set_xscale("log")
            axes.set_xlabel(name)
        figure.supylabel(shown.y, fontsize="medium")

    return _drawn(title, draw, words, 0.5 + 2.3 * lines)


def _wrapped(label: str) -> str:
    """Break the label of an axis that is longer than the axis of the lowest figure."""
    return textwrap.fill(label, 30)


def _drawn(title: str, draw: Callable[[Figure], None], words: list[str], height: float) -> str:
    """Run `draw(figure)`, and return the figure as an `<svg>` element that `words` describe."""
    import matplotlib.style
    from matplotlib.figure import Figure

    inked = ("text.color", "axes.edgecolor", "axes.labelcolor", "xtick.color", "ytick.color")
    settings = dict.fromkeys((*inked, "grid.color"), _INK) | {
        "axes.grid": True,
        "axes.spines.right": False,
        "axes.spines.top": False,
        "grid.alpha": 0.15,
        "font.size": 11,
        "legend.fontsize": "small",
        "legend.frameon": False,
        "lines.linewidth": 1.8,
        "savefig.transparent": True,
        "svg.fonttype": "none",  # keep text as text, in the page's font
        "svg.hashsalt": title,
    }
    file = io.StringIO()
    with matplotlib.style.context(["default", settings]):
        figure = Figure(figsize=(5.2, height), layout="constrained")
        draw(figure)
        nothing = dict.fromkeys(("Creator", "Date", "Format", "Type"))
        figure.savefig(file, format="svg", metadata=nothing)
    text = file.getvalue()
    text = text[text.index("<svg") :].replace(_INK, "currentColor")
    # The ids of two figures on a page must differ.
    name = re.sub(r"\W+", "-", title)
    text = re.sub(r'(\sid="|href="#|url\(#)', rf"\g<1>{name}-", text)
    # The page sets the width, and viewBox the height.
    text = re.sub(r'(<svg[^>]*?) width="[^"]*" height="[^"]*"', r"\1", text, count=1)
    label = html.escape(f"{title}: {'; '.join(words)}")
    return text.replace("<svg", f'<svg role="img" aria-label="{label}"', 1).strip()


_FIGURES: dict[type, Callable[[str, Any], str]] = {
    Curves: _curves,
    Histograms: _histograms,
    Means: _means,
    Trials: _trials,
}
