"""The numbers of figures. `experiments.pages.figures` draws them."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from experiments.evaluation.measurement import log_key
from experiments.evaluation.scores import ACCURACY
from keras_dml._common.rows import normalized
from keras_dml.losses import LOSSES

Point: TypeAlias = tuple[float, float]


@dataclasses.dataclass(frozen=True)
class Curves:
    """Lines over one axis.

    Attributes:
        lines: Name -> its (x, y) points. A line of fewer than two points is left out.
        y, x: Labels of the axes.
        rings: Name -> a point with a ring around it.
        levels: Name -> the y of a dotted horizontal line.
        places: Name -> the x of a vertical line.
        band: Lowest and highest x of a shaded band.
        is_log: Whether x is logarithmic.
    """

    lines: Mapping[str, Sequence[Point]]
    y: str = ""
    x: str = "epoch"
    rings: Mapping[str, Point] = dataclasses.field(default_factory=dict)
    levels: Mapping[str, float] = dataclasses.field(default_factory=dict)
    places: Mapping[str, float] = dataclasses.field(default_factory=dict)
    band: Point | None = None
    is_log: bool = False


@dataclasses.dataclass(frozen=True)
class Histograms:
    """Histograms of matching and of other pairs, one panel below the other.

    Attributes:
        panels: Title -> the numbers of matching and of other pairs in each bin.
        edges: Edges of the bins.
        x: Label of the axis.
    """

    panels: Mapping[str, tuple[np.ndarray, np.ndarray]]
    edges: np.ndarray
    x: str


@dataclasses.dataclass(frozen=True)
class Means:
    """Means of several values with their 95 % t-intervals, a line for each name.

    Attributes:
        values: Name -> its values. The first name is on top.
        x: Label of the axis.
        digits: Number of decimal places.
    """

    values: Mapping[str, Sequence[float]]
    x: str
    digits: int = 1


@dataclasses.dataclass(frozen=True)
class Trials:
    """The trials of a hyperparameter search, a panel for each hyperparameter.

    Attributes:
        values: The hyperparameters of each trial by name.
        scores: Score of each trial; None if it failed.
        best: Index of the best trial.
        logarithmic: Names of the hyperparameters with a logarithmic axis.
        y: Label of the scores.
    """

    values: Sequence[Mapping[str, float | int | str]]
    scores: Sequence[float | None]
    best: int
    logarithmic: Sequence[str]
    y: str


def over_epochs(history: Sequence[Mapping[str, float]], key: str, scale: float = 1) -> list[Point]:
    """Return the (epoch, value) points of one value of `metrics.jsonl`, without NaN and infinity.

    Args:
        history: The objects of `metrics.jsonl`.
        key: Key of the value.
        scale: Factor of the values.
    """
    pairs = [(row.get("epoch"), row.get(key)) for row in history]
    return [
        (epoch, scale * value)
        for epoch, value in pairs
        if epoch is not None and value is not None and math.isfinite(epoch) and math.isfinite(value)
    ]


BINS = 80
# The pairs of more images take long and look the same.
_MOST_IMAGES = 1000
_MOST_IMAGES_OF_DISTANCES = 4000

#: "test", and "gallery" if there is one -> the classes of its images.
Labels: TypeAlias = Mapping[str, np.ndarray]


class Similarities(NamedTuple):
    """Cosine similarities of pairs.

    Attributes:
        matching, other: Number of pairs of one class, and of two classes, in each bin of [-1, 1].
        matching_mean, other_mean: Means; NaN without such a pair.
    """

    matching: npt.NDArray[np.int64]
    other: npt.NDArray[np.int64]
    matching_mean: float
    other_mean: float

    @property
    def words(self) -> str:
        """Both means as text."""
        return f"matching {self.matching_mean:z.2f}, others {self.other_mean:z.2f}"


def similarity_histograms(panels: Mapping[str, Similarities]) -> Histograms:
    """Return a figure with one panel for each title."""
    shown = {f"{title}: {each.words}": (each.matching, each.other)
             for title, each in panels.items()}  # fmt: skip
    return Histograms(shown, np.linspace(-1, 1, BINS + 1), "cosine similarity")


def rows_of_some_classes(
    labels: np.ndarray, most: int = _MOST_IMAGES_OF_DISTANCES
) -> npt.NDArray[np.int64]:
    """Return the rows of random whole classes: at most `most` rows, but at least two classes."""
    classes, sizes = np.unique(labels, return_counts=True)
    order = np.random.default_rng(0).permutation(len(classes))
    fits = np.cumsum(sizes[order]) <= max(most, sizes[order[:2]].sum())
    return np.flatnonzero(np.isin(labels, classes[order[fits]]))


def pair_rows(labels: Labels) -> dict[str, npt.NDArray[np.int64]]:
    """Return the rows of the images whose pairs are counted, and the rows of their gallery.

    The rows are whole classes if possible, and the same for the same labels.
    """
    rows = {"test": _some(rows_of_some_classes(labels["test"], _MOST_IMAGES))}
    if "gallery" in labels:
        shown = labels["test"][rows["test"]]
        rows["gallery"] = _some(np.flatnonzero(np.isin(labels["gallery"], shown)))
    return rows


def _some(rows: np.ndarray) -> npt.NDArray[np.int64]:
    if len(rows) > _MOST_IMAGES:
        rows = np.sort(np.random.default_rng(0).choice(rows, _MOST_IMAGES, replace=False))
    return rows.astype(np.int64)


def similarities_of_some(
    labels: Labels, embeddings: Callable[[str, np.ndarray], np.ndarray]
) -> Similarities | None:
    """Return the similarities of the pairs of `pair_rows`; None without pairs.

    Args:
        labels: The classes of the images.
        embeddings: (side, rows) -> the embeddings of these rows.
    """
    rows = pair_rows(labels)
    if not all(map(len, rows.values())):
        return None
    arrays: list[np.ndarray] = []
    for side, chosen in rows.items():
        arrays += [embeddings(side, chosen), labels[side][chosen]]
    return similarities(*arrays)


def similarities(
    embeddings: np.ndarray,
    labels: np.ndarray,
    gallery: np.ndarray | None = None,
    gallery_labels: np.ndarray | None = None,
) -> Similarities:
    """Return the similarities of all pairs of a small set, or of a set and a gallery.

    Args:
        embeddings, labels: `[n, d]` and `[n]`.
        gallery, gallery_labels: `[m, d]` and `[m]`.
    """
    queries = normalized(np.asarray(embeddings, np.float32))
    items = queries if gallery is None else normalized(np.asarray(gallery, np.float32))
    found = np.clip(queries @ items.T, -1, 1)
    matches = labels[:, None] == (labels if gallery_labels is None else gallery_labels)
    # Each pair of a set once, without the pairs of an image with itself.
    counted = np.triu(np.ones_like(matches), 1) if gallery is None else np.ones_like(matches)
    kinds = [found[mask & counted].astype(np.float64) for mask in (matches, ~matches)]
    matching, other = (np.histogram(pairs, BINS, (-1, 1))[0] for pairs in kinds)
    means = [float(pairs.mean()) if len(pairs) else np.nan for pairs in kinds]
    return Similarities(matching, other, *means)


def tracked_figures(histories: Mapping[str, Sequence[Mapping[str, float]]]) -> dict[str, Curves]:
    """Return the figures of the tracked losses and of the gap of Proposition 1.

    Args:
        histories: Name of a run -> its objects of `metrics.jsonl`. "" for a single run.
    """
    keys = dict.fromkeys(key for rows in histories.values() for row in rows for key in row)
    names = {log_key(name, side="track"): name for name in LOSSES}
    lines = {
        f"{names[key]} {run}".strip(): over_epochs(history, key)
        for run, history in histories.items()
        for key in keys
        if key in names
    }
    gaps, logs = {}, {}
    for run, history in histories.items():
        terms = [log_key(f"gap_{name}", side="track") for name in ("ce", "pce", "lambda")]
        ce, pce, lam = (dict(over_epochs(history, key)) for key in terms)
        name = f"CE − PCE {run}".strip()
        gaps[name] = [(epoch, ce[epoch] - value) for epoch, value in pce.items()]
        logs[f"λ {run}".strip()] = [(e, math.log10(value)) for e, value in lam.items() if value > 0]
    figures = {"Losses on fixed training batches": Curves(lines, "loss")}
    figures["Gap of Proposition 1"] = Curves(gaps, "nats", levels={"0": 0.0})
    figures["λ of Proposition 1"] = Curves(logs, "log₁₀ λ")
    return {title: curves for title, curves in figures.items() if any(curves.lines.values())}


def accuracy_difference(histories: Mapping[str, Sequence[Mapping[str, float]]]) -> str:
    """Return the largest difference of the accuracy curves of two runs as a sentence.

    The text is empty without two runs that have the accuracies of the same epochs.
    """
    curves = [dict(over_epochs(history, ACCURACY, 100)) for history in histories.values()]
    if len(curves) != 2 or not curves[0].keys() & curves[1].keys():
        return ""
    epochs = sorted(curves[0].keys() & curves[1].keys())
    gaps = {epoch: abs(curves[0][epoch] - curves[1][epoch]) for epoch in epochs}
    epoch = max(gaps, key=gaps.__getitem__)
    last = gaps[epochs[-1]]
    return (
        f"accuracy curves: largest difference {gaps[epoch]:.1f} points (epoch {epoch:g}), "
        f"{last:.1f} at the end"
    )
