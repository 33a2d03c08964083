"""The scores of embeddings.

Each `Score` in `SCORES` is one number about the embeddings of a set of images, and `evaluate`
returns it as measurements. A log, a table, a page, a comparison, a study, a model card, and a
tracker show the measurements of every registered score, so a new score is one entry of the
registry.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from experiments.evaluation.embedded_sets import EmbeddedSet
from experiments.evaluation.measurement import (
    EMBEDDING,
    SEARCHES,
    Estimate,
    Measurement,
    find,
    log_key,
)
from experiments.evaluation.tables import MISSING
from keras_dml import metrics
from keras_dml._common.labels import joined_labels
from keras_dml._common.types import Engine, Metric, Neighbors
from keras_dml.metrics.clustering import ClusteringScores
from keras_dml.metrics.distances import sampled_divergence
from keras_dml.metrics.information_scores import whole_classes
from keras_dml.metrics.neighbors import engine_of
from keras_dml.metrics.retrieval_scores import ApproximateScores, Certificate, approximate_scores
from keras_dml.relations import Relation
from keras_dml.retrieval.reranking import Reranking

#: "recall@1" and "map@r" -> the sum over the queries of each class, and their number.
ClassScores: TypeAlias = Mapping[str, Sequence[Sequence[float]]]

DISTANCES: tuple[Metric, ...] = ("cosine", "l2")
#: Names of the engines for a page.
ENGINES: dict[Engine, str] = {
    "numpy": "NumPy, all images compared",
    "scann": "ScaNN, all images compared",
    "scann_tree": "ScaNN, a tree",
}
#: Names in `metrics.jsonl`. The best epoch is chosen by one of them.
RECALL_AT_1, MAP_AT_R = log_key("recall", 1, "cosine"), log_key("map@r", distance="cosine")
ACCURACY = log_key("accuracy")
#: Name of the number of rows of the scores of information.
ROWS = "information_rows"
# The most rows of these scores, unless all rows are asked for.
_MOST_ROWS = 4096


class Certified(NamedTuple):
    """A score by ScaNN with its certificate.

    Attributes:
        score, k: Name and K of the score.
        certificate: The exact score on a sample of the queries.
    """

    score: str
    k: int | None
    certificate: Certificate


@dataclasses.dataclass(eq=False)
class ScoredSet:
    """Embeddings with labels, and the intermediate results that several scores share.

    Attributes:
        queries: The embeddings to search with, and in without a gallery.
        ks: Values of K for the scores at K.
        gallery: Embeddings to search in instead of the other queries.
        neighbors: How the neighbors are found, as in `keras_dml.metrics.evaluate`.
        part, side: Of the measurements.
        relation: Which rows match. The labels are its labels. None: the rows of the query's class.
        rerank: A re-ranking of the neighbors by cosine, as in `keras_dml.retrieval`.
        certificates: (part, side, distance) -> the certificates of its scores. Filled when ScaNN's
            tree finds the neighbors. `dataclasses.replace` returns embeddings that share it.
        embeddings, labels: Numbers `[n, d]` and classes `[n]` of the queries.
    """

    queries: EmbeddedSet
    ks: Sequence[int] = (1,)
    gallery: EmbeddedSet | None = None
    neighbors: Neighbors = "auto"
    part: str = EMBEDDING
    side: str = "test"
    relation: Relation | None = None
    rerank: Reranking | None = None
    certificates: dict[tuple[str, str, Metric], list[Certified]] = dataclasses.field(
        default_factory=dict
    )

    def __post_init__(self) -> None:
        self.embeddings, self.labels, _ = self.queries
        self._found: dict[Metric, ApproximateScores] = {}
        self._information: dict[tuple[tuple[str, ...], bool], dict[str, float]] = {}
        # The gallery and the relation as arguments of `keras_dml.metrics`.
        self._gallery: dict[str, Any] = {}
        if (items := self.gallery) is not None:
            self._gallery = {"gallery": items.embeddings, "gallery_labels": items.labels}
        self._search = {
            **self._gallery, "relation": self.relation, "rerank": self.rerank
        }  # fmt: skip

    def has_embeddings_of(self, other: ScoredSet) -> bool:
        """Return whether the embeddings of queries and gallery are those of another set."""
        pairs = [(self.queries, other.queries), (self.gallery, other.gallery)]
        return all(
            mine is its or (mine and its and np.array_equal(mine.embeddings, its.embeddings))
            for mine, its in pairs
        )

    @functools.cached_property
    def engine(self) -> Engine:
        """The engine that finds the neighbors. A re-ranking compares all images."""
        if self.rerank is not None:
            return "numpy"
        return engine_of(self.neighbors, self.embeddings, self._gallery.get("gallery"))

    @property
    def by_tree(self) -> bool:
        """Whether a tree of ScaNN finds the neighbors."""
        return self.engine == "scann_tree"

    def retrieval(self, distance: Metric) -> ApproximateScores:
        """Return the scores, by a tree with certificates that are remembered."""
        if distance not in self._found:
            search = {**self._search, "engine": self.engine}
            found = approximate_scores(self.embeddings, self.labels, self.ks, distance, **search)
            self._found[distance] = found
            if self.by_tree:
                ks = {f"recall@{k}": k for k in found.recall}
                self.certificates[self.part, self.side, distance] = [
                    Certified("recall" if name in ks else name, ks.get(name), certificate)
                    for name, certificate in found.certificates.items()
                ]
        return self._found[distance]

    def recall(self, distance: Metric) -> dict[int, float]:
        """Return the recall at each K. Without `retrieval`, an exact search finds fewer
        neighbors."""
        if self.by_tree or distance in self._found:
            return self.retrieval(distance).recall
        search = {**self._search, "engine": self.engine, "ranked": False}
        found = approximate_scores(self.embeddings, self.labels, self.ks, distance, **search)
        return found.recall

    def precision(self, distance: Metric) -> metrics.PrecisionScores:
        """Return MAP@R and R-precision."""
        return self.retrieval(distance).precision

    @functools.cached_property
    def _together(self) -> tuple[np.ndarray, np.ndarray]:
        """The embeddings and labels of the queries and the gallery."""
        if self.gallery is None:
            return self.embeddings, self.labels
        named = [("labels", self.labels), ("gallery_labels", self.gallery.labels)]
        return np.concatenate([self.embeddings, self.gallery.embeddings]), joined_labels(named)

    @functools.cached_property
    def clusters(self) -> ClusteringScores:
        """NMI and AMI of k-means, with a gallery of both sets together."""
        return metrics.clustering_scores(*self._together)

    def measured(
        self, score: str, value: float | Estimate, k: int | None, distance: Metric | None
    ) -> Measurement:
        """Return a value of these embeddings as a measurement."""
        found = value if isinstance(value, Estimate) else Estimate(value, math.nan, math.nan)
        low, high = (None if math.isnan(bound) else float(bound) for bound in found[1:])
        return Measurement(score, found.value, k, distance, self.part, self.side, low, high)

    def information(self, names: Sequence[str], every_row: bool = False) -> dict[str, float]:
        """Return scores of `metrics.information`, with a gallery of both sets together.

        They are of whole classes with at most 4,096 rows, or of every row. The result is
        remembered.

        Returns:
            {name: nats} and the number of rows as `ROWS`. Empty if fewer than two classes have
            images, or no class has two.
        """
        key = (tuple(names), every_row)
        if key not in self._information:
            self._information[key] = self._compute_information(names, every_row)
        return self._information[key]

    def _compute_information(self, names: Sequence[str], every_row: bool) -> dict[str, float]:
        embeddings, labels = self._together
        codes = np.unique(labels, return_inverse=True)[1]
        rows = np.arange(len(codes)) if every_row else whole_classes(codes, _MOST_ROWS, seed=0)
        sizes = np.bincount(codes[rows])
        if np.count_nonzero(sizes) < 2 or sizes.max() < 2:
            return {}
        asked = [name for name in names if name != ROWS]
        found = metrics.information(embeddings[rows], codes[rows], asked)
        return {**found, ROWS: len(rows)}

    def of_classes(self) -> ClassScores:
        """Return R@1 and MAP@R (cosine) of each class, as `ClassScores`."""
        classes, codes = np.unique(self.labels, return_inverse=True)
        found = {}
        for key, values in self.retrieval(DISTANCES[0]).of_queries.items():
            if key in (RECALL.at_1, "map@r"):
                known = np.flatnonzero(~np.isnan(values))
                sums = np.bincount(codes[known], values[known], len(classes))
                counts = np.bincount(codes[known], minlength=len(classes))
                found[key] = [sums.tolist(), counts.tolist()]
        return found

    def divergence(self) -> float:
        """Return the Jensen-Shannon divergence of the distances, in nats."""
        if self.by_tree:
            return sampled_divergence(self.embeddings, self.labels, **self._gallery)
        return metrics.distance_histograms(
            self.embeddings, self.labels, **self._gallery
        ).divergence()


#: A value of a score, which may have an interval.
Value: TypeAlias = float | Estimate


def percent(fraction: float) -> str:
    """Return a fraction as percent, such as "85.4"."""
    return f"{100 * fraction:z.1f}"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Score:
    """A number about embeddings, with everything that is needed to show it.

    Attributes:
        name: Name in logs and JSON files, such as "map@r".
        label: Name in tables and on pages, such as "MAP@R".
        explanation: What the number means, one or two sentences.
        compute: `(embeddings, distance) -> value`, a number or an `Estimate`. A score at K returns
            `{K: value}`. None for a score that `information_scores` computes.
        format: Returns a value as text.
        line: Returns a value as text with its unit, for a separate line. "" hides the line. The
            default is `format`.
        scale: Factor from a value to the number that `format` shows.
        higher_is_better: Whether a higher value is a better one; None for neither.
        of_distance: Whether the score depends on the distance. Then it is a column of the table,
            and its names end with "/cosine" or "/l2". If not, it is a line below the table.
        at_k: Whether the score has a value for each K. Its names are "NAME@K".
        each_epoch: Whether it is computed after each epoch, not only at the end.
        compared: Whether `compare` and `study` have a column for it.
        clusters: Whether it needs k-means.
        ranked: Whether it needs as many neighbors of a query as the query has matches.
        fitted: Whether it fits a classifier or a network.
    """

    name: str
    label: str
    explanation: str = ""
    compute: Callable[[ScoredSet, Metric], Value | Mapping[int, Value]] | None = None
    format: Callable[[float], str] = percent
    line: Callable[[float], str] | None = None
    scale: float = 100
    higher_is_better: bool | None = True
    of_distance: bool = True
    at_k: bool = False
    each_epoch: bool = True
    compared: bool = True
    clusters: bool = False
    ranked: bool = False
    fitted: bool = False

    def measure(self, embeddings: ScoredSet, distance: Metric) -> list[Measurement]:
        """Compute the score."""
        found = self.compute(embeddings, distance) if self.compute else {}
        values = found if isinstance(found, Mapping) else {None: found}
        of = distance if self.of_distance else None
        return [embeddings.measured(self.name, value, k, of) for k, value in values.items()]

    def of(
        self,
        measurements: Iterable[Measurement],
        distance: str = "cosine",
        part: str = EMBEDDING,
        side: str = "test",
    ) -> Measurement | None:
        """Return the measurement that `compare` and `study` show: of a score at K the one at 1."""
        of = distance if self.of_distance else None
        return find(measurements, self.name, 1 if self.at_k else None, of, part, side)

    @property
    def _place(self) -> Measurement:
        distance = "cosine" if self.of_distance else None
        return Measurement(self.name, 0, 1 if self.at_k else None, distance)

    @property
    def at_1(self) -> str:
        """The name in a row of the measurement that `of` returns."""
        return self._place.name

    @property
    def key(self) -> str:
        """The name in `result.json` of the measurement that `of` returns."""
        return self._place.key

    def log_key(self, distance: str = "cosine") -> str:
        """Return the name in a log of the measurement that `of` returns."""
        return log_key(self.name, 1 if self.at_k else None, distance if self.of_distance else None)

    @property
    def label_at_1(self) -> str:
        """The label of the measurement that `of` returns."""
        return f"{self.label}@1" if self.at_k else self.label

    @property
    def axis(self) -> str:
        """The label of an axis: the label at 1, with the unit if that is percent."""
        return f"{self.label_at_1}, %" if self.scale == 100 else self.label_at_1

    @property
    def digits(self) -> int:
        """The number of decimal places of a mean over seeds."""
        return 1 if self.scale == 100 else 3

    @property
    def of_information(self) -> bool:
        """Whether `information_scores` computes it."""
        return self.compute is None

    def text(self, value: float | None) -> str:
        """Return a value as text; a dash if it is missing."""
        return MISSING if value is None or math.isnan(value) else self.format(value)


# The entry of a score that is a line below the table.
_line = functools.partial(Score, of_distance=False, each_epoch=False, compared=False)
# The entry of a score of `keras_dml.metrics.information`.
_information = functools.partial(
    Score,
    format="{:z.3f}".format,
    scale=1,
    higher_is_better=None,
    of_distance=False,
    compared=False,
)
RECALL = Score(
    name="recall",
    label="R",
    explanation="R@K is the share of queries with at least one other image of their class among "
    "the K nearest.",
    compute=lambda embeddings, distance: embeddings.recall(distance),
    at_k=True,
)
#: Every score by its name, in the order of tables.
SCORES: dict[str, Score] = {
    score.name: score
    for score in (
        RECALL,
        Score(
            name="map@r",
            label="MAP@R",
            explanation="MAP@R is the mean average precision at R: R-precision that also depends "
            "on the order, highest if the matches come first.",
            compute=lambda embeddings, distance: embeddings.precision(distance).map_at_r,
            each_epoch=False,
            ranked=True,
        ),
        Score(
            name="r_precision",
            label="R-precision",
            explanation="R-precision is the share of matches among the R nearest, where R is the "
            "number of other images of the query's class.",
            compute=lambda embeddings, distance: embeddings.precision(distance).r_precision,
            each_epoch=False,
            compared=False,
            ranked=True,
        ),
        _line(
            name="nmi",
            label="NMI",
            explanation="NMI is the normalized mutual information of the classes and of k-means "
            "clusters, as many as classes. It is 100 % if both are the same. It rises with the "
            "number of classes, also for random clusters.",
            compute=lambda embeddings, _: embeddings.clusters.nmi,
            line=lambda value: f"{percent(value)} %",
            clusters=True,
        ),
        _line(
            name="ami",
            label="AMI",
            explanation="AMI is the mutual information adjusted for chance, 0 % for random "
            "clusters. Compare runs by AMI rather than by NMI.",
            compute=lambda embeddings, _: embeddings.clusters.ami,
            line=lambda value: f"{percent(value)} %",
            clusters=True,
        ),
        _line(
            name="jensen_shannon",
            label="Jensen-Shannon divergence",
            explanation="The Jensen-Shannon divergence between the distances of matching pairs "
            "and of other pairs is 0 if both have the same distribution, and log 2 if they do not "
            "overlap.",
            compute=lambda embeddings, _: embeddings.divergence(),
            format="{:z.3f}".format,
            line="{:z.3f} nats (below log 2 = 0.693)".format,
            scale=1,
        ),
        _line(
            name="queries_without_match",
            label="Queries without a match",
            compute=lambda embeddings, _: embeddings.precision("cosine").queries_without_match,
            format="{:,}".format,
            line=lambda value: (
                f"{value:,}: a miss in R@K, left out of the other scores" if value else ""
            ),
            scale=1,
            higher_is_better=False,
        ),
        _information(
            name="class_entropy",
            label="Entropy of the classes H(Y) (nats)",
            explanation="H(Y) is the upper limit of the mutual information.",
        ),
        _information(
            name="entropy_pairwise/l2",
            label="Entropy index H(Z), all pairs (nats)",
            explanation="The entropy index rises as embeddings spread. Compare only embeddings of "
            "one size.",
        ),
        _information(
            name="entropy_uniformity/cosine",
            label="Uniformity on the sphere (nats per dimension, 0 = uniform)",
            explanation="Uniformity compares the distances with those of uniform directions.",
        ),
        _information(name="mean_distance/l2", label="Mean pairwise distance"),
        _information(
            name="entropy_within/l2",
            label="Within-class entropy H(Z|Y), Gaussian bound (nats)",
            explanation="The within-class entropy falls as the images of a class move together.",
        ),
        _information(
            name="information_neighbors/cosine",
            label="Mutual information, nearest neighbors (nats)",
            explanation="The nearest neighbors of each image estimate the mutual information of "
            "embeddings and classes. It is from 0 to H(Y), and too low in high dimensions.",
            higher_is_better=True,
            compared=True,
        ),
        _information(
            name="information_neighbors/l2",
            label="Mutual information, nearest neighbors, l2 (nats)",
            higher_is_better=True,
        ),
        _information(
            name="information_generative/l2",
            label="Generative index, all pairs (nats)",
            explanation="The generative index is the entropy index minus its mean within classes. "
            "It has no limit.",
            each_epoch=False,
        ),
        _information(
            name="information_probe/cosine",
            label="Mutual information, lower bound by a linear probe (nats)",
            explanation="A linear classifier of one half of the images predicts the classes of the "
            "other half. The mutual information is at least this value.",
            higher_is_better=True,
            compared=True,
            fitted=True,
        ),
        _information(
            name="information_probe/l2",
            label="Mutual information, lower bound by a linear probe, l2 (nats)",
            higher_is_better=True,
            fitted=True,
        ),
        _information(
            name="information_distances",
            label="Pair information, lower bound by a fitted network (nats)",
            explanation="The statistics network of RankMI bounds the information of a matching "
            "pair, for at least five equal classes. It is below 2 log 2 = 1.386.",
            higher_is_better=True,
            fitted=True,
        ),
        _information(
            name=ROWS,
            label="Images of the entropies and of the information",
            format="{:,.0f}".format,
        ),
    )
}


def evaluate(
    embeddings: ScoredSet, scores: Iterable[Score] | None = None, clustering: bool = True
) -> list[Measurement]:
    """Compute scores.

    Args:
        embeddings: The embeddings.
        scores: Which scores. The default is every registered score but `information_scores`.
        clustering: Whether to compute the scores that need k-means.
    """
    chosen = [score for score in SCORES.values() if not score.of_information]
    chosen = chosen if scores is None else list(scores)
    found: list[Measurement] = []
    for distance in DISTANCES:
        if any(score.ranked for score in chosen):
            embeddings.retrieval(distance)  # before R@K, which then needs no other search
        for score in chosen:
            if score.of_distance:
                found += score.measure(embeddings, distance)
    for score in chosen:
        if not score.of_distance and (clustering or not score.clusters):
            found += score.measure(embeddings, DISTANCES[0])
    return found


def of_distances(embeddings: ScoredSet) -> list[Measurement]:
    """Compute the scores of a distance."""
    return evaluate(embeddings, [score for score in SCORES.values() if score.of_distance])


def information_scores(
    embeddings: ScoredSet, fitted: bool = False, at_end: bool = True
) -> list[Measurement]:
    """Compute the registered scores of information.

    Args:
        embeddings: The embeddings.
        fitted: Whether to use every row, and to fit the probes and the statistics network.
        at_end: Whether to include the scores that are not computed after each epoch.
    """
    # All at once: one pass over the pairs gives the scores of pairs.
    names = [
        score.name
        for score in SCORES.values()
        if score.of_information and (fitted or not score.fitted)
    ]
    return [
        embeddings.measured(name, value, None, None)
        for name, value in embeddings.information(names, every_row=fitted).items()
        if at_end or SCORES[name].each_epoch
    ]


def of_prefixes(embeddings: ScoredSet, lengths: Iterable[int]) -> list[Measurement]:
    """Compute the scores of each epoch for the first numbers of each embedding."""
    found: list[Measurement] = []
    for length in lengths:
        queries, gallery = embeddings.queries, embeddings.gallery
        queries = queries._replace(embeddings=queries.embeddings[:, :length])
        if gallery is not None:
            gallery = gallery._replace(embeddings=gallery.embeddings[:, :length])
        part = f"first {length}"
        first = dataclasses.replace(embeddings, part=part, queries=queries, gallery=gallery)
        found += evaluate(first, of_each_epoch())
    return found


def of_rerankings(
    embeddings: ScoredSet, rerankings: Mapping[str, Reranking]
) -> dict[str, tuple[list[Measurement], ClassScores]]:
    """Compute the scores of the cosine after each re-ranking, and the scores of each class.

    Args:
        embeddings: The embeddings.
        rerankings: Name -> the re-ranking. The name is the part of the measurements.
    """
    found = {}
    for name, rerank in rerankings.items():
        each = dataclasses.replace(embeddings, part=name, rerank=rerank)
        measured = [
            measurement
            for score in SCORES.values()
            if score.of_distance
            for measurement in score.measure(each, DISTANCES[0])
        ]
        found[name] = measured, each.of_classes()
    return found


def of_catalog(queries: ScoredSet, catalog: EmbeddedSet | None) -> list[Measurement]:
    """Compute the scores of each epoch for a search in a catalog, if there is one.

    K is 1 and every K that is at most the size of the catalog.
    """
    if catalog is None:
        return []
    ks = sorted({1, *(k for k in queries.ks if k <= len(catalog.labels))})
    search = dataclasses.replace(queries, side="catalog", ks=ks, gallery=catalog)
    return evaluate(search, of_each_epoch())


def of_each_epoch() -> list[Score]:
    """Return the scores that `evaluate` computes after each epoch."""
    return [score for score in SCORES.values() if score.each_epoch and not score.of_information]


def compared() -> list[Score]:
    """Return the scores that `compare` and `study` show."""
    return [score for score in SCORES.values() if score.compared]


def certificates(embeddings: ScoredSet) -> list[Measurement]:
    """Return the exact scores on a sample of the queries, with the interval of all queries.

    "exact" is in their part, so that their names are "recall@1/cosine/exact", and of a catalog
    "recall@1/cosine/photo to catalog/exact".
    """
    found = []
    for (part, side, distance), each in embeddings.certificates.items():
        names = [None if part == EMBEDDING else part, SEARCHES.get(side, side), "exact"]
        name = "/".join(filter(None, names))
        found += [
            Measurement(score, of.exact, k, distance, part=name, low=of.low, high=of.high)
            for score, k, of in each
        ]
    return found


def as_json(scores: Mapping[str, float]) -> dict[str, float | None]:
    """Return the scores with None instead of NaN and infinity, which JSON does not have."""
    return {name: value if math.isfinite(value) else None for name, value in scores.items()}
