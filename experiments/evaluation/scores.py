"""The scores of embeddings.

Each `Score` in `SCORES` is one number about the embeddings of a set of images. A log, a table, a
page, a comparison, a study, and a model card show every registered score, so a new score is one
entry of the registry.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from experiments.evaluation.labeled_embeddings import EmbeddedSet
from experiments.evaluation.tables import text_table
from keras_dml import metrics
from keras_dml._common.labels import joined_labels
from keras_dml._common.types import Metric, Neighbors
from keras_dml.metrics import approximate
from keras_dml.metrics.clustering import ClusteringScores
from keras_dml.metrics.information_scores import whole_classes
from keras_dml.relations import Relation

#: Row of a table, such as "embedding, cosine" -> {key of a score: value}.
Rows: TypeAlias = Mapping[str, Mapping[str, float]]
#: Key of a score -> its sum over the queries of each class, and the number of these queries.
ClassScores: TypeAlias = Mapping[str, Sequence[Sequence[float]]]

DISTANCES: tuple[Metric, ...] = ("cosine", "l2")
#: First part of the row names of a search in a catalog, and of the scores that a paper reports.
CATALOG, PAPER = "photo to catalog", "paper"
#: First part of the row names of a search among the photos with the catalog's pictures.
PHOTOS = "catalog to photo"
#: Keys of `metrics.jsonl`. The best epoch is chosen by one of them.
RECALL_AT_1, MAP_AT_R, ACCURACY = "test/recall@1/cosine", "test/map@r/cosine", "test/accuracy"
MEAN_DISTANCE = "test/mean_distance/cosine"
#: Key of the number of rows of the scores of information.
ROWS = "information_rows"
# The most rows of these scores, unless all rows are asked for.
_MOST_ROWS = 4096


@dataclasses.dataclass(eq=False)
class Embeddings:
    """Embeddings with labels, and the intermediate results that several scores share.

    Attributes:
        queries: The embeddings to search with, and in without a gallery.
        ks: Values of K for the scores at K.
        gallery: Embeddings to search in instead of the other queries.
        neighbors: How the neighbors are found, as in `keras_dml.metrics.evaluate`.
        name: First part of the row names of these embeddings.
        relation: Which rows match. The labels are its labels. None: the rows of the query's class.
        certificates: Name of a row -> {key of a score: its certificate}. Filled when ScaNN finds
            the neighbors. `dataclasses.replace` returns embeddings that share it.
        embeddings, labels: Numbers `[n, d]` and classes `[n]` of the queries.
    """

    queries: EmbeddedSet
    ks: Sequence[int] = (1,)
    gallery: EmbeddedSet | None = None
    neighbors: Neighbors = "auto"
    name: str = "embedding"
    relation: Relation | None = None
    certificates: dict[str, Mapping[str, approximate.Certificate]] = dataclasses.field(
        default_factory=dict
    )

    def __post_init__(self) -> None:
        self.embeddings, self.labels, _ = self.queries
        self._found: dict[Metric, approximate.ApproximateScores] = {}
        # The gallery and the relation as arguments of `keras_dml.metrics`.
        self._gallery: dict[str, Any] = {}
        if (items := self.gallery) is not None:
            self._gallery = {"gallery": items.embeddings, "gallery_labels": items.labels}
        self._search = {**self._gallery, "relation": self.relation}

    @functools.cached_property
    def by_scann(self) -> bool:
        """Whether ScaNN finds the neighbors."""
        items = self._gallery.get("gallery")
        return approximate.takes_scann(self.neighbors, self.embeddings, items)

    def retrieval(self, distance: Metric) -> approximate.ApproximateScores:
        """Return the scores, by ScaNN's neighbors with certificates that are remembered."""
        if distance not in self._found:
            search = {**self._search, "by_scann": self.by_scann}
            found = approximate.approximate_scores(
                self.embeddings, self.labels, self.ks, distance, **search
            )
            self._found[distance] = found
            if self.by_scann:
                self.certificates[f"{self.name}, {distance}"] = found.certificates
        return self._found[distance]

    def recall(self, distance: Metric) -> dict[int, float]:
        """Return the recall at each K, which needs no sorted neighbors if the search is exact."""
        if self.by_scann:
            return self.retrieval(distance).recall
        return metrics.recall_at_k(self.embeddings, self.labels, self.ks, distance, **self._search)

    def precision(self, distance: Metric) -> metrics.PrecisionAtR:
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

    def information(self, names: Sequence[str], every_row: bool = False) -> dict[str, float]:
        """Return scores of `metrics.information`, with a gallery of both sets together.

        They are of whole classes with at most 4,096 rows, or of every row.

        Returns:
            {name: nats} and the number of rows as `ROWS`. Empty if fewer than two classes have
            images, or no class has two.
        """
        embeddings, labels = self._together
        codes = np.unique(labels, return_inverse=True)[1]
        rows = np.arange(len(codes)) if every_row else whole_classes(codes, _MOST_ROWS, seed=0)
        sizes = np.bincount(codes[rows])
        if np.count_nonzero(sizes) < 2 or sizes.max() < 2:
            return {}
        found = metrics.information(
            embeddings[rows], codes[rows], [name for name in names if name != ROWS]
        )
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
        if self.by_scann:
            return approximate.sampled_divergence(self.embeddings, self.labels, **self._gallery)
        return metrics.distance_histograms(
            self.embeddings, self.labels, **self._gallery
        ).divergence()


def percent(fraction: float) -> str:
    """Return a fraction as percent, such as "85.4"."""
    return f"{100 * fraction:z.1f}"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Score:
    """A number about embeddings, with everything that is needed to show it.

    Attributes:
        name: Key in logs and JSON files, such as "map@r".
        label: Name in tables and on pages, such as "MAP@R".
        explanation: What the number means, one or two sentences.
        compute: `(embeddings, distance) -> value`. A score at K returns `{K: value}`. None for a
            score that `information_scores` computes and `evaluate` does not.
        format: Returns a value as text.
        line: Returns a value as text with its unit, for a separate line. "" hides the line. The
            default is `format`.
        scale: Factor from a value to the number that `format` shows.
        higher_is_better: Whether a higher value is a better one; None for neither.
        of_distance: Whether the score depends on the distance. Then it is a column of the table,
            and its key ends with "/cosine" or "/l2". If not, it is a line below the table.
        at_k: Whether the score has a value for each K. Its keys are "NAME@K".
        each_epoch: Whether it is computed after each epoch, not only at the end.
        compared: Whether `compare` and `study` have a column for it.
        clusters: Whether it needs k-means.
        fitted: Whether it fits a classifier or a network.
    """

    name: str
    label: str
    explanation: str = ""
    compute: Callable[[Embeddings, Metric], float | Mapping[int, float]] | None = None
    format: Callable[[float], str] = percent
    line: Callable[[float], str] | None = None
    scale: float = 100
    higher_is_better: bool | None = True
    of_distance: bool = True
    at_k: bool = False
    each_epoch: bool = True
    compared: bool = True
    clusters: bool = False
    fitted: bool = False

    def values(self, embeddings: Embeddings, distance: Metric) -> dict[str, float]:
        """Return the value of each key."""
        found = self.compute(embeddings, distance) if self.compute else {}
        if isinstance(found, Mapping):
            return {f"{self.name}@{k}": float(value) for k, value in found.items()}
        return {self.name: found}

    @property
    def at_1(self) -> str:
        """The key that `compare` and `study` show: of a score at K its value at 1."""
        return f"{self.name}@1" if self.at_k else self.name

    @property
    def key(self) -> str:
        """The key of `at_1` among the scores: of a score of a distance, its cosine value."""
        return f"{self.at_1}/cosine" if self.of_distance else self.at_1

    @property
    def axis(self) -> str:
        """The label of an axis: the label at 1, with the unit if that is percent."""
        label = f"{self.label}@1" if self.at_k else self.label
        return f"{label}, %" if self.scale == 100 else label

    @property
    def digits(self) -> int:
        """The number of decimal places of a mean over seeds."""
        return 1 if self.scale == 100 else 3

    def text(self, value: float | None) -> str:
        """Return a value as text; a dash if it is missing."""
        return "–" if value is None or math.isnan(value) else self.format(value)


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
        ),
        Score(
            name="r_precision",
            label="R-precision",
            explanation="R-precision is the share of matches among the R nearest, where R is the "
            "number of other images of the query's class.",
            compute=lambda embeddings, distance: embeddings.precision(distance).r_precision,
            each_epoch=False,
            compared=False,
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
    embeddings: Embeddings, scores: Iterable[Score] | None = None, clustering: bool = True
) -> dict[str, float]:
    """Compute scores.

    Args:
        embeddings: The embeddings.
        scores: Which scores. The default is every registered score but `information_scores`.
        clustering: Whether to compute the scores that need k-means.

    Returns:
        {key: value}. A key is the name of the score, with "@K" for a score at K, and with
        "/cosine" or "/l2" for a score of a distance.
    """
    chosen = [score for score in SCORES.values() if score.compute]
    chosen = chosen if scores is None else list(scores)
    found: dict[str, float] = {}
    for distance in DISTANCES:
        for score in chosen:
            if score.of_distance:
                values = score.values(embeddings, distance)
                found |= {f"{key}/{distance}": value for key, value in values.items()}
    for score in chosen:
        if not score.of_distance and (clustering or not score.clusters):
            found |= score.values(embeddings, DISTANCES[0])
    return found


def information_scores(
    embeddings: Embeddings, fitted: bool = False, at_end: bool = True
) -> dict[str, float]:
    """Compute the registered scores of information.

    Args:
        embeddings: The embeddings.
        fitted: Whether to use every row, and to fit the probes and the statistics network.
        at_end: Whether to include the scores that are not computed after each epoch.
    """
    names = [
        score.name
        for score in SCORES.values()
        if not score.compute and (fitted or not score.fitted) and (at_end or score.each_epoch)
    ]
    return embeddings.information(names, every_row=fitted)


def of_each_epoch() -> list[Score]:
    """Return the scores that `evaluate` computes after each epoch."""
    return [score for score in SCORES.values() if score.each_epoch and score.compute]


def compared() -> list[Score]:
    """Return the scores that `compare` and `study` show."""
    return [score for score in SCORES.values() if score.compared]


def score_of(key: str) -> Score:
    """Return the score of a table's key, such as "map@r" or "recall@5"."""
    return SCORES[key] if key in SCORES else SCORES[key.rpartition("@")[0]]


def label_of(key: str) -> str:
    """Return the label of a table's key, such as "MAP@R" or "R@5"."""
    score = score_of(key)
    return f"{score.label}@{key.rpartition('@')[2]}" if score.at_k else score.label


def rows_of(scores: Mapping[str, float], name: str = "embedding") -> dict[str, dict[str, float]]:
    """Return the rows of a table: `{"embedding, cosine": {"recall@1": 0.5, "map@r": 0.3}}`.

    Args:
        scores: As from `evaluate`. The key of a part of the embedding has a third component:
            "recall@1/cosine/first 64" is in the row "first 64, cosine".
        name: First part of the row names of the whole embedding.
    """
    rows: dict[str, dict[str, float]] = {}
    for key, value in scores.items():
        score, *distance = key.split("/")
        if distance and key not in SCORES:
            part = distance[1] if len(distance) > 1 else name
            rows.setdefault(f"{part}, {distance[0]}", {})[score] = value
    return rows


def of_prefixes(embeddings: Embeddings, lengths: Iterable[int]) -> dict[str, float]:
    """Compute the scores of each epoch for the first numbers of each embedding.

    Returns:
        {"recall@1/cosine/first 64": value}.
    """
    found: dict[str, float] = {}
    for length in lengths:
        queries, gallery = embeddings.queries, embeddings.gallery
        queries = queries._replace(embeddings=queries.embeddings[:, :length])
        if gallery is not None:
            gallery = gallery._replace(embeddings=gallery.embeddings[:, :length])
        name = f"first {length}"
        part = dataclasses.replace(embeddings, name=name, queries=queries, gallery=gallery)
        scores = evaluate(part, of_each_epoch())
        found |= {f"{key}/{name}": value for key, value in scores.items()}
    return found


def of_catalog(queries: Embeddings, catalog: EmbeddedSet | None) -> dict[str, float]:
    """Compute the scores of each epoch for a search in a catalog, if there is one.

    K is 1 and every K that is at most the size of the catalog.
    """
    if catalog is None:
        return {}
    ks = sorted({1, *(k for k in queries.ks if k <= len(catalog.labels))})
    part = dataclasses.replace(queries, name=CATALOG, ks=ks, gallery=catalog)
    return evaluate(part, of_each_epoch())


def columns_of(rows: Rows) -> list[str]:
    """Return the keys of a table's columns: scores at K by K, then the others in their order."""
    order = list(SCORES)

    def place(key: str) -> tuple[int, int]:
        score = score_of(key)
        if not score.at_k:
            return len(order), 0
        return order.index(score.name), int(key.rpartition("@")[2])

    return sorted(dict.fromkeys(key for row in rows.values() for key in row), key=place)


def score_table(rows: Rows) -> str:
    """Return the scores as text in aligned columns, for a terminal.

    A missing value is a dash. The head of a recall column is only its K.
    """
    keys = columns_of(rows)
    heads = [label_of(key).removeprefix(f"{RECALL.label}@") for key in keys]
    lines = [[name, *(score_of(key).text(row.get(key)) for key in keys)]
             for name, row in rows.items()]  # fmt: skip
    return text_table([[f"{RECALL.label}@K, %", *heads], *lines])


def score_lines(scores: Mapping[str, float]) -> list[tuple[str, str]]:
    """Return (label, text) of the scores that no column of the table shows."""
    found = []
    for key, value in scores.items():
        score = SCORES.get(key)
        if score is not None and not math.isnan(value):
            found.append((score.label, (score.line or score.format)(value)))
    return [(label, text) for label, text in found if text]


def certificate_lines(embeddings: Embeddings) -> list[tuple[str, str]]:
    """Return (label, text) of the certificates of each row of the table."""
    lines = []
    for row, certificates in embeddings.certificates.items():
        texts = []
        for key, each in certificates.items():
            values = each.exact, each.low, each.high, each.approximate
            exact, low, high, by_scann = map(score_of(key).text, values)
            texts.append(f"{label_of(key)} {exact} ({low} to {high}), ScaNN on the same {by_scann}")
        queries = max(each.queries for each in certificates.values())
        label = f"Exact on {queries:,} random queries, with 95 % interval ({row})"
        lines.append((label, "; ".join(texts)))
    return lines


def certificate_values(embeddings: Embeddings) -> dict[str, float]:
    """Return the certificates by keys such as "recall@1/cosine/exact_low"."""
    found: dict[str, float] = {}
    for row, certificates in embeddings.certificates.items():
        part, _, distance = row.rpartition(", ")
        of_part = "" if part == embeddings.name else f"/{part}"
        for key, certificate in certificates.items():
            found |= certificate.named(f"{key}/{distance}{of_part}")
    return found


def as_json(scores: Mapping[str, float]) -> dict[str, float | None]:
    """Return the scores with None instead of NaN and infinity, which JSON does not have."""
    return {name: value if math.isfinite(value) else None for name, value in scores.items()}


def recall_by_k(rows: Rows) -> dict[str, dict[str, float]]:
    """Return the recall of each row by K as text: `{"embedding, cosine": {"1": 0.5}}`."""
    return {
        name: {key.rpartition("@")[2]: value for key, value in row.items()
               if score_of(key) is RECALL}
        for name, row in rows.items()
    }  # fmt: skip
