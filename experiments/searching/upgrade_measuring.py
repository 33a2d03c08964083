"""Measure the ways to change the model of an index, and recommend one."""

from __future__ import annotations

import dataclasses
import pathlib
import time
import warnings
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from experiments.evaluation.tables import text_table
from experiments.options.errors import UsageError
from experiments.searching.gallery import FolderGallery
from experiments.searching.images import ImageFolder, embed_batch
from experiments.searching.upgrade_folder import NewModel, files_of_index, work_folder
from experiments.searching.upgrade_options import AGAIN, MAP, PREFIX, QUERIES
from keras_dml.upgrade import CrossScore, EmbeddingMap, Kind, cross_scores, fit_map

KEEP = "keep"
_TITLES = {
    KEEP: "keep the old model",
    PREFIX: "search without a map",
    QUERIES: "map the queries",
    MAP: "map the rows",
    AGAIN: "embed again",
}
_NAMES = {"recall@1": "R@1", "map@r": "MAP@R", "neighbors@10": "the ten nearest"}
# The shares of the weaker model's scores that a map must keep: measured, and at the low end of the
# interval. Drift-Adapter (EMNLP 2025) reports 95 to 99 % between text models.
_LEAST, _LEAST_LOW = 0.95, 0.9
# Without classes: the share of the new model's ten nearest images, at the low end.
_LEAST_NEAREST = 0.8
# Of an index with fewer classes, the images are divided and not the classes.
_FEWEST_CLASSES = 10
# Images of a class in the sample, if the classes suffice for the sample.
_OF_CLASS = 20
_FIT = 0.8
_FEWEST_FITTED = 50


class Sample(NamedTuple):
    """Images of an index, embedded by both models.

    Attributes:
        old, new: Embeddings `[n, d_old]` and `[n, d_new]`.
        paths: The images.
        labels: The class of each image, or None without classes.
        fitted: Which images fit the maps. The others are the queries that measure them.
    """

    old: np.ndarray
    new: np.ndarray
    paths: list[str]
    labels: np.ndarray | None
    fitted: np.ndarray

    @property
    def searched(self) -> np.ndarray:
        """Which images are the gallery of the measurement, bool `[n]`.

        With classes, all images: a smaller gallery would be too easy. On characters, a map that
        loses a tenth of R@1 among all images would lose a thirtieth among the measured ones.
        Without classes, the images that do not fit the maps, because the nearest images must be
        unseen, too.
        """
        return ~self.fitted if self.labels is None else np.ones(len(self.old), bool)

    def maps(self, kind: Kind, seed: int, *, every_row: bool) -> tuple[EmbeddingMap, EmbeddingMap]:
        """Fit the map from old to new and the map from new to old.

        Args:
            kind: The kind of the maps.
            seed: Their seed.
            every_row: Whether to fit them on all images of the sample.
        """
        rows = np.ones(len(self.old), bool) if every_row else self.fitted
        old, new = self.old[rows], self.new[rows]
        classes = None if self.labels is None else self.labels[rows]
        with warnings.catch_warnings(action="ignore", category=UserWarning):  # in `summary`
            return fit_map(old, new, kind, seed, classes), fit_map(new, old, kind, seed, classes)


def drawn(class_names: Sequence[str] | np.ndarray, count: int, seed: int) -> np.ndarray:
    """Draw images from an index, whole classes if they are small.

    The classes come in random order, each with at most 20 random images, or more if all classes
    together have fewer than `count`.

    Args:
        class_names: The class of each image.
        count: The number of images.
        seed: The seed. The same arguments draw the same images.

    Returns:
        Row numbers, ascending: `count`, or all.
    """
    rng = np.random.default_rng(seed)
    _, codes, sizes = np.unique(class_names, return_inverse=True, return_counts=True)
    most = _OF_CLASS
    while np.minimum(sizes, most).sum() < min(count, len(codes)):
        most *= 2
    shuffled = rng.permutation(len(codes))
    by_class = shuffled[np.argsort(codes[shuffled], kind="stable")]
    starts = np.cumsum(sizes) - sizes
    place = np.arange(len(codes)) - np.repeat(starts, sizes)  # within the class
    turn = rng.permutation(len(sizes))[codes[by_class]]
    kept = np.flatnonzero(place < most)
    kept = kept[np.argsort(turn[kept], kind="stable")][:count]
    return np.sort(by_class[kept])


def embedded_sample(
    folder: pathlib.Path,
    gallery: FolderGallery,
    model: NewModel,
    images: ImageFolder,
    count: int,
    seed: int,
) -> Sample:
    """Draw images of an index, and embed them by the new model.

    A repeated command finds the embeddings in `folder / ".upgrade"`.

    Raises:
        UsageError: Too few images can be embedded, or the folder has other images.
    """
    files = {file.path: file for file in files_of_index(gallery, images)}
    class_names = np.array(gallery.columns.class_names)
    rows = drawn(class_names, count, seed)
    asked = [files[path] for path in (gallery.paths[row] for row in rows) if path in files]
    found, bad = model.embed({}, work_folder(folder, model, "sample"), images, asked)
    embedded = [file for file in asked if file in found]
    row_of = dict(zip(gallery.paths, range(len(gallery.paths))))
    rows = np.array([row_of[file.path] for file in embedded], int)
    old = gallery.index.embeddings_of([file.path for file in embedded])
    new = np.array([found[file] for file in embedded]).reshape(len(embedded), -1)
    known = old.any(axis=1) & new.any(axis=1) if len(embedded) else np.zeros(0, bool)
    labels = class_names[rows]
    if is_labeled := _has_classes(labels[known]):
        known &= labels != ""  # of images without a class
    old, new, labels = old[known], new[known], labels[known]
    fitted = _fitted(labels if is_labeled else np.arange(len(labels)), seed)
    if fitted.sum() < _FEWEST_FITTED:
        raise UsageError(
            f"index must have at least {int(_FEWEST_FITTED / _FIT) + 1} images that both models "
            f"embed, to fit a map, but got {len(labels):,} of {len(gallery.paths):,}, with "
            f"{len(bad):,} that the new model cannot embed. Embed them again: --to=again"
        )
    paths = [gallery.paths[row] for row in rows[known]]
    return Sample(old, new, paths, labels if is_labeled else None, fitted)


def _has_classes(labels: np.ndarray) -> bool:
    """Return whether enough classes have two images to divide the classes."""
    sizes = np.unique(labels[labels != ""], return_counts=True)[1]
    return bool(np.count_nonzero(sizes > 1) >= _FEWEST_CLASSES)


def _fitted(classes: np.ndarray, seed: int) -> np.ndarray:
    """Return which images belong to a random four fifths of the classes, bool `[n]`.

    Of the classes of one image, four fifths as well, so that the others have classes to find.
    """
    _, codes, sizes = np.unique(classes, return_inverse=True, return_counts=True)
    order = np.random.default_rng((seed, 1)).permutation(len(sizes))
    is_fitted = np.zeros(len(sizes), bool)
    for alike in (sizes == 1, sizes > 1):
        ranks = np.argsort(np.argsort(order[alike]))
        is_fitted[alike] = ranks < _FIT * len(ranks)
    return is_fitted[codes]


@dataclasses.dataclass(frozen=True)
class Way:
    """A way to change the model.

    Attributes:
        scores: The measured scores by name.
        differences: The differences to the old model by the name of the score. Empty for the old
            model. Of the new model in its own rows, they are of all images of the sample, because
            no map is fitted on them.
        seconds: The time for the whole index.
        size: The bytes to write for it.
    """

    scores: Mapping[str, CrossScore]
    differences: Mapping[str, CrossScore]
    seconds: float
    size: int


def measured(
    sample: Sample, images: int, kind: Kind, seed: int, seconds_per_image: float
) -> dict[str, Way]:
    """Measure the ways with the images that do not fit the maps.

    The way without a map is missing if the new embeddings are shorter than the old ones.

    Args:
        sample: The sample.
        images: The number of images in the index.
        kind: The kind of the maps.
        seed: The seed of the maps.
        seconds_per_image: The time in which the new model embeds an image.
    """
    to_new, to_old = sample.maps(kind, seed, every_row=False)
    with warnings.catch_warnings(action="ignore", category=UserWarning):  # the reason says it
        searched = sample.searched
        table = cross_scores(
            sample.old[searched],
            sample.new[searched],
            None if sample.labels is None else sample.labels[searched],
            {"old to new": to_new, "new to old": to_old},
            queries=~sample.fitted[searched],
        )
        of_models = cross_scores(sample.old, sample.new, sample.labels)
    start = time.perf_counter()
    to_new(sample.old)
    seconds_per_row = (time.perf_counter() - start) / len(sample.old)
    size = 4 * images * sample.new.shape[1]
    places = {
        KEEP: ("old", "old", 0.0, 0),
        PREFIX: ("old", "new", 0.0, 0),
        QUERIES: ("old", f"new to old, {kind}", 0.0, to_old.matrix.nbytes),
        MAP: (f"old to new, {kind}", "new", images * seconds_per_row, size),
        AGAIN: ("new", "new", images * seconds_per_image, size),
    }
    found = {}
    for name, (gallery, queries, *cost) in places.items():
        rows = {row.score: row for row in table if row[:2] == (gallery, queries)}
        if not rows:
            continue
        scores = {score: rows[score] for score in _NAMES if score in rows}
        if name == AGAIN:
            rows = {row.score: row for row in of_models if row[:2] == (gallery, queries)}
        differences = {
            score: rows[f"difference in {score}"]
            for score in scores
            if f"difference in {score}" in rows
        }
        found[name] = Way(scores, differences, *cost)
    return found


def seconds_per_image(sample: Sample, model: NewModel, images: ImageFolder) -> float:
    """Measure the time in which the new model reads and embeds an image, on a batch."""
    paths = sample.paths[: model.batch_size]
    seconds = 0.0
    for _ in range(2):  # the first call compiles the model
        start = time.perf_counter()
        embed_batch(model.embedder, [images.read_checked(path, model.max_pixels) for path in paths])
        seconds = time.perf_counter() - start
    return seconds / len(paths)


def summary(ways: Mapping[str, Way], sample: Sample, images: int, advice: Recommendation) -> str:
    """Return the table of the ways, and the recommendation.

    Args:
        ways: The measured ways.
        sample: The sample.
        images: The number of images in the index.
        advice: The recommendation.
    """
    scores = list(ways[KEEP].scores)
    lines = [["", *(f"{_NAMES[score]}, %" for score in scores), "seconds", "MB"]]
    for name, way in ways.items():
        cells = [_percent(way.scores[score]) for score in scores]
        lines.append([_TITLES[name], *cells, f"{way.seconds:,.0f}", f"{way.size / 1e6:,.1f}"])
    tested, few = ~sample.fitted, ""
    of = f"{np.count_nonzero(tested):,} images"
    if sample.labels is not None:
        classes = len(np.unique(sample.labels[tested]))
        of += f" of {classes:,} classes"
        if classes < _FEWEST_CLASSES:
            few += f"note: intervals over {classes:,} classes are too narrow\n"
    fitted = np.count_nonzero(sample.fitted)
    enough = 2 * max(sample.old.shape[1], sample.new.shape[1])
    if fitted < enough:
        few += f"note: a fit on fewer than {enough:,} images is uncertain\n"
    searched = np.count_nonzero(sample.searched)
    if searched < images:
        few += (
            f"note: scores among all {images:,} images are lower, and a map can lose more there. A "
            "larger --sample shows more\n"
        )
    return (
        f"{text_table(lines)}\n"
        f"On {of}, searched among {searched:,} images, after a fit on {fitted:,} other images, "
        f"with 95 % intervals. Seconds and MB are of the whole index.\n{few}"
        f"recommended: {_TITLES[advice.way]}, because {advice.reason}."
    )


def _percent(row: CrossScore) -> str:
    return f"{100 * row.value:.1f} ({100 * row.low:.1f} to {100 * row.high:.1f})"


class Recommendation(NamedTuple):
    """The recommended way, and the reason, a sentence."""

    way: str
    reason: str


def recommended(ways: Mapping[str, Way]) -> Recommendation:
    """Recommend a way.

    With classes, "keep the old model" if the new model is worse. Otherwise a search without a map,
    or else with one, if it keeps 95 % of the R@1 and MAP@R of the weaker of the two models, and
    90 % at the low end of the interval. A map comes first if its MAP@R is higher, also at the low
    end. Otherwise "embed again" if the new model is better, or else "keep the old model". The new
    model is worse if a score is lower by more than 5 % and no score is higher, and better if a
    score is higher and none is lower, each with the whole interval of the difference.

    Without classes, no score shows which model is better. Then the same if the search finds 80 % of
    the new model's ten nearest images, at the low end of the interval, or else "embed again".
    """
    by_class = "map@r" in ways[AGAIN].scores
    old, new = ways[KEEP].scores, ways[AGAIN].differences
    is_higher = any(row.low > 0 for row in new.values())
    is_lower = any(
        row.high < 0 and row.value < (_LEAST - 1) * old[score].value for score, row in new.items()
    )
    change = _changes(ways[AGAIN])
    if by_class and is_lower and not is_higher:
        return Recommendation(KEEP, f"the new model is worse ({change})")
    main = "map@r" if by_class else "neighbors@10"
    best, other = sorted((MAP, QUERIES), key=lambda name: -ways[name].scores[main].value)
    least, least_low = (_LEAST, _LEAST_LOW) if by_class else (0.0, _LEAST_NEAREST)
    keeps, order = {}, [best, other]
    if PREFIX in ways:  # costs nothing, so a map must be better
        is_better = _kept(ways, best)[main].low > _kept(ways, PREFIX)[main].value
        order.insert(1 if is_better else 0, PREFIX)
    for name in order:
        kept = _kept(ways, name)
        shares = " and ".join(f"{share} of {_NAMES[score]}" for score, share in kept.items())
        keeps[name] = f"{shares} of the {'weaker' if by_class else 'new'} model"
        if all(share.value >= least and share.low >= least_low for share in kept.values()):
            return Recommendation(name, f"its search keeps {keeps[name]}")
    too_little = f"the better map ({_TITLES[best]}) keeps only {keeps[best]}"
    if not by_class:
        needed = f"less than {100 * least_low:.0f} %; only classes can show which model is better"
        return Recommendation(AGAIN, f"{too_little}, {needed}")
    needed = f"less than {100 * least:.0f} % or, at the low end, than {100 * least_low:.0f} %"
    if is_higher and not is_lower:
        compared = f"the new model is better ({change}), but"
        return Recommendation(AGAIN, f"{compared} {too_little}, {needed}")
    return Recommendation(
        KEEP, f"the new model is not better ({change}), and {too_little}, {needed}"
    )


class _Kept(NamedTuple):
    """The share of a score that a map keeps, and the low end of its interval."""

    value: float
    low: float

    def __str__(self) -> str:
        return f"{100 * self.value:.0f} % (at least {100 * self.low:.0f} %)"


def _kept(ways: Mapping[str, Way], name: str) -> dict[str, _Kept]:
    """Return the share of each score that a map keeps: with classes, of the weaker model's."""
    way, old, new = ways[name], ways[KEEP], ways[AGAIN]
    kept = {}
    for score, row in way.scores.items():
        if score in way.differences and score != "neighbors@10":
            before = old.scores[score].value
            low = before + way.differences[score].low
            weaker = min(before, new.scores[score].value)
            kept[score] = _Kept(row.value / weaker, low / weaker) if weaker else _Kept(1.0, 1.0)
        else:
            kept[score] = _Kept(row.value, row.low)
    return kept


def _changes(way: Way) -> str:
    """Return the differences to the old model, in points."""
    points = ", ".join(
        f"{_NAMES[score]} {100 * row.value:+.1f} ({100 * row.low:+.1f} to {100 * row.high:+.1f})"
        for score, row in way.differences.items()
    )
    return f"{points}, each image of the sample searched"
