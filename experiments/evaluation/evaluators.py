"""Evaluators, which measure a run before its training, after each epoch, and at its end.

`Objective.evaluators` lists the evaluators of a run.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple, TypeAlias, cast

import keras
import numpy as np

from experiments.evaluation import baselines
from experiments.evaluation.baselines import best_baseline
from experiments.evaluation.labeled_embeddings import EmbeddedSet
from experiments.evaluation.pairs import Similarities, similarities_of_some, similarity_histograms
from experiments.evaluation.result import Findings
from experiments.evaluation.scores import (
    ACCURACY,
    CATALOG,
    MAP_AT_R,
    PHOTOS,
    SCORES,
    as_json,
    certificate_lines,
    certificate_values,
    evaluate,
    information_scores,
    of_catalog,
    of_each_epoch,
    of_prefixes,
    percent,
    rows_of,
    score_lines,
)
from experiments.evaluation.scores import Embeddings as Scored
from experiments.evaluation.table_embedder import TableEmbedder, raw_pixels
from experiments.options import data as described
from experiments.options.run_options import RelationOptions
from experiments.options.visible import visible
from keras_dml.metrics import class_mean_accuracy
from keras_dml.metrics.pairwise_information import within_class_entropy
from keras_dml.models.backbones import NO_WEIGHTS
from keras_dml.relations import Relation
from pipelines import ImageTable, Split

#: The run that an evaluator measures: `RunPlan` of `experiments.training`, which imports this file.
EvaluatedRun: TypeAlias = Any
#: Name of a table of `Split.tables` -> embeddings `[n, d]`.
Embeddings: TypeAlias = Mapping[str, np.ndarray]
# Key of the histograms of `Similarities` in the file of the untrained backbone.
_PAIRS = "pairs"


@dataclasses.dataclass(frozen=True)
class Start:
    """A run that starts or resumes.

    Attributes:
        step: Number of trained steps.
        embedder: Embeds with the current weights.
        untrained: Returns the embeddings of all evaluated images by the backbone and its pooling,
            without the head. Call it only before the first step, on every worker.
    """

    step: int
    embedder: TableEmbedder
    untrained: Callable[[], Embeddings] = dict


@dataclasses.dataclass(frozen=True)
class Finished:
    """A run at its end.

    Attributes:
        model: The fitted model after the last step, a `keras.Model`.
        embeddings: Embeddings by the kept model of "test", and of "gallery" and "catalog" if the
            dataset has them.
        history: The objects of `metrics.jsonl`.
        best: The object of `history` whose model was kept.
    """

    model: Any
    embeddings: Embeddings
    history: Sequence[Mapping[str, float]]
    best: Mapping[str, float]


class Evaluator:
    """Base class. A subclass overrides the methods of the moments at which it measures."""

    def sides(self, data: Split) -> Sequence[str]:
        """Return the names of the tables that `measure` needs in addition to "test"."""
        return ()

    def before(self, run: EvaluatedRun, start: Start) -> None:
        """Measure when the run starts or resumes, on every worker."""

    def measure(
        self, run: EvaluatedRun, model: keras.Model, embeddings: Embeddings
    ) -> Iterable[tuple[str, float]]:
        """Return (key, value) pairs for `metrics.jsonl` after an epoch, on the first worker.

        Args:
            run: The run.
            model: The fitted model.
            embeddings: Embeddings `[n, d]` of every table that an evaluator's `sides` names.
        """
        return ()

    def finish(self, run: EvaluatedRun, end: Finished) -> Findings:
        """Return the results at the end of the run, on the first worker."""
        return Findings()


class RetrievalScores(Evaluator):
    """The scores of retrieval after each epoch, and every score at the end.

    A search for the test images in the catalog has separate scores.

    Args:
        prefixes: Lengths below d. The first numbers of each embedding are scored too.
        relation: The options of a relation, whose matches are scored at the end.
    """

    def __init__(
        self, prefixes: Sequence[int] = (), relation: RelationOptions | None = None
    ) -> None:
        self.prefixes = tuple(prefixes)
        self.relation = relation

    def sides(self, data: Split) -> Sequence[str]:
        """Return the names of the test images, of the gallery, and of the catalog."""
        return tuple(side for side in data.tables if side != "training")

    def measure(
        self, run: EvaluatedRun, model: keras.Model, embeddings: Embeddings
    ) -> Iterator[tuple[str, float]]:
        """Yield the scores of each epoch, and MAP@R if the run's patience needs it."""
        scored = _scored(run, embeddings)
        found = evaluate(scored, of_each_epoch()) | of_prefixes(scored, self.prefixes)
        for key, value in found.items():
            yield f"test/{key}", value
        if run.options.patience:
            yield MAP_AT_R, SCORES["map@r"].values(scored, "cosine")["map@r"]
        for key, value in of_catalog(scored, _set("catalog", run, embeddings)).items():
            yield f"catalog/{key}", value
        for key, value in certificate_values(scored).items():
            yield f"test/{key}", value

    def finish(self, run: EvaluatedRun, end: Finished) -> Findings:
        """Return every score."""
        scored = _scored(run, end.embeddings)
        options, table = self.relation, scored.queries.table
        classes = None if options is None else related_classes(options, table)
        catalog = _set("catalog", run, end.embeddings)
        related = under_relation(scored, classes)
        return retrieval_findings(scored, catalog, self.prefixes, related=related)


class InformationScores(Evaluator):
    """The entropies of the embeddings, and their information about the classes.

    Args:
        fitted: Whether to use every image at the end, and to fit the probes.
    """

    def __init__(self, fitted: bool = False) -> None:
        self.fitted = fitted

    def measure(
        self, run: EvaluatedRun, model: keras.Model, embeddings: Embeddings
    ) -> Iterator[tuple[str, float]]:
        """Yield the scores of each epoch that are finite, because JSON has no infinity."""
        found = information_scores(_scored(run, embeddings), at_end=False)
        for key, value in found.items():
            if math.isfinite(value):
                yield f"test/{key}", value

    def finish(self, run: EvaluatedRun, end: Finished) -> Findings:
        """Return every score."""
        return information_findings(_scored(run, end.embeddings), self.fitted)


def information_findings(scored: Scored, fitted: bool = False) -> Findings:
    """Return the scores of information, and the widest classes.

    Args:
        scored: The embeddings.
        fitted: Whether to use every image, and to fit the probes.
    """
    found, table = information_scores(scored, fitted), scored.queries.table
    names: Sequence[str] = ()
    # The labels of a file are names, also if its pictures are known.
    if table is not None and np.array_equal(table.labels, scored.labels):
        names = table.class_names
    lines = score_lines(found)
    lines += widest_classes(scored.embeddings, scored.labels, names) if found else []
    return Findings(lines=lines, result={"scores": as_json(found)})


def widest_classes(
    embeddings: np.ndarray, labels: np.ndarray, names: Sequence[str] = ()
) -> list[tuple[str, str]]:
    """Return a (label, text) pair with the ten classes of the highest entropy within the class.

    A class without variance has the entropy −∞, and then the mean over the classes is −∞ too. A
    second pair has the entropy of the pooled variance in this case. The result is empty without a
    class of two images.

    Args:
        embeddings: Numbers `[n, d]`.
        labels: Class of each row, `[n]`.
        names: Names of labels that are numbers from 0. Without names, the labels are names.
    """
    _, codes, sizes = np.unique(labels, return_inverse=True, return_counts=True)
    rows = sizes[codes] > 1
    if not rows.any():
        return []
    classes, codes = np.unique(labels[rows], return_inverse=True)
    found = within_class_entropy(embeddings[rows].astype(np.float64), codes)
    shown = []
    for code in np.argsort(-found.per_class, kind="stable")[:10]:
        name = names[classes[code]] if names else classes[code]
        shown.append(f"{visible(str(name))} ({found.per_class[code]:z.1f})")
    lines = [("Widest classes (entropy within the class, nats)", ", ".join(shown))]
    if not np.isfinite(found.average) and np.isfinite(found.pooled):
        label = "Within-class entropy H(Z|Y), bound by the pooled variance (nats)"
        lines.append((label, f"{found.pooled:z.3f}"))
    return lines


def retrieval_findings(
    scored: Scored,
    catalog: EmbeddedSet | None = None,
    prefixes: Sequence[int] = (),
    clustering: bool = True,
    related: Sequence[Scored] = (),
) -> Findings:
    """Return every score.

    Args:
        scored: The embeddings.
        catalog: The catalog, if there is one.
        prefixes: Lengths of prefixes of the embeddings to score too.
        clustering: Whether to compute the scores that need k-means.
        related: Further searches, each with rows of the table, as from `under_relation`.
    """
    scores = evaluate(scored, clustering=clustering)
    with_prefixes = scores | of_prefixes(scored, prefixes)
    rows = rows_of(with_prefixes) | _catalog_rows(scored, catalog)
    for search in related:
        rows |= _distance_rows(search)
    certificates = certificate_values(scored)
    return Findings(
        rows=rows,
        lines=[*certificate_lines(scored), *score_lines(scores)],
        result={"scores": as_json(with_prefixes)}
        | ({"certificates": as_json(certificates)} if certificates else {}),
    )


def _distance_rows(scored: Scored) -> dict[str, dict[str, float]]:
    """Return the rows of the scores that depend on the distance."""
    of_distance = [score for score in SCORES.values() if score.of_distance]
    return rows_of(evaluate(scored, of_distance), scored.name)


def _catalog_rows(scored: Scored, catalog: EmbeddedSet | None) -> dict[str, dict[str, float]]:
    """Return the rows of both directions between photos and catalog."""
    if catalog is None:
        return {}
    back = scored.part(PHOTOS, catalog, scored.ks, scored.queries)
    return rows_of(of_catalog(scored, catalog), CATALOG) | _distance_rows(back)


class RelatedClasses(NamedTuple):
    """The relation of `--relation`, and the labels that it compares.

    Attributes:
        name: Name of the relation.
        relation: The relation.
        labels: Labels of each class, `[K, 2]`, from `data.paths_of_classes`.
    """

    name: str
    relation: Relation
    labels: np.ndarray


def related_classes(options: RelationOptions, table: ImageTable | None) -> RelatedClasses | None:
    """Return the relation of `--relation` on the classes of a table. None without the flag.

    Raises:
        UsageError: The table lacks coarse classes, or as `data.relation`.
    """
    relation = described.relation(options)
    if relation is None:
        return None
    return RelatedClasses(str(options.relation), relation, described.paths_of_classes(table))


def under_relation(scored: Scored, classes: RelatedClasses | None) -> list[Scored]:
    """Return the same embeddings with the labels and the matches of a relation, if there is one.

    Args:
        scored: The embeddings, with class numbers as labels.
        classes: The relation on these classes.
    """
    if classes is None:
        return []
    queries, gallery = (
        None if each is None else each._replace(labels=classes.labels[each.labels])
        for each in (scored.queries, scored.gallery)
    )
    queries = cast(EmbeddedSet, queries)
    return [scored.part(classes.name, queries, scored.ks, gallery, classes.relation)]


class ClosedSetAccuracy(Evaluator):
    """The share of test images that get their class, if the test classes were trained on."""

    def measure(
        self, run: EvaluatedRun, model: keras.Model, embeddings: Embeddings
    ) -> Iterator[tuple[str, float]]:
        """Yield the accuracy."""
        if run.data.same_classes:
            yield ACCURACY, self.accuracy(run.data, model, embeddings)

    def accuracy(self, data: Split, model: keras.Model, embeddings: Embeddings) -> float:
        """Return the accuracy as a fraction. It has the arguments of `measure`."""
        raise NotImplementedError

    def finish(self, run: EvaluatedRun, end: Finished) -> Findings:
        """Return the accuracy of the kept model."""
        if ACCURACY not in end.best:
            return Findings()
        accuracy = end.best[ACCURACY]
        return Findings(
            printed=[f"accuracy on the training classes: {percent(accuracy)} %"],
            result={"accuracy": accuracy},
        )


class ClassifierAccuracy(ClosedSetAccuracy):
    """The accuracy of the fitted model's classifier.

    Args:
        layer: Name of its layer, from embeddings to a score for each class.
    """

    def __init__(self, layer: str = "logits") -> None:
        self.layer = layer

    def accuracy(self, data: Split, model: keras.Model, embeddings: Embeddings) -> float:
        """Return the share of test images that the classifier gets right."""
        scores = keras.ops.convert_to_numpy(model.get_layer(self.layer)(embeddings["test"]))
        return float(np.mean(np.argmax(scores, axis=1) == data.test.labels))


class ClassMeanAccuracy(ClosedSetAccuracy):
    """The accuracy of the nearest class mean of the training images.

    Reference: Boudiaf et al. 2020, appendix B.
    """

    def sides(self, data: Split) -> Sequence[str]:
        """Return the name of the training images."""
        return ("training",) if data.same_classes else ()

    def accuracy(self, data: Split, model: keras.Model, embeddings: Embeddings) -> float:
        """Return `keras_dml.metrics.class_mean_accuracy`."""
        return float(
            class_mean_accuracy(
                embeddings["training"], data.train.labels, embeddings["test"], data.test.labels
            )
        )


class Baseline(Evaluator):
    """Scores of something other than the trained embedding, measured before the first step.

    The run's folder stores them, so that a resumed run shows the same scores.

    Attributes:
        name: Name of the baseline, one of `baselines.BASELINES`.
        file: Name of the file in the run's folder.
    """

    name: ClassVar[str]
    file: ClassVar[str]

    def __init__(self) -> None:
        self._found: Mapping[str, Any] = {}

    def before(self, run: EvaluatedRun, start: Start) -> None:
        """Measure the baseline if it is due; print R@1."""
        folder = run.folder
        if not self.is_wanted(run):
            return
        self._found = folder.read_json(self.file) or {}
        embeddings = self.embeddings(run, start)
        if not folder.writes:
            return
        if embeddings:
            folder.write_json(self.file, self.findings(run, embeddings))
            self._found = folder.read_json(self.file) or {}
        name, best = best_baseline(self._rows)
        if best is not None:
            print(f"{name}: R@1 {percent(best)} %", flush=True)

    def is_wanted(self, run: EvaluatedRun) -> bool:
        """Return whether the run has this baseline."""
        raise NotImplementedError

    def embeddings(self, run: EvaluatedRun, start: Start) -> Embeddings:
        """Return the baseline's embeddings; none if it is measured already."""
        raise NotImplementedError

    def findings(self, run: EvaluatedRun, embeddings: Embeddings) -> dict[str, Any]:
        """Return the content of the file: the rows of the baseline's scores."""
        scored = _scored(run, embeddings)
        catalog = _set("catalog", run, embeddings)
        rows = _distance_rows(scored) | _catalog_rows(scored, catalog)
        # JSON has no NaN, which is the MAP@R of classes with one image.
        return {
            name.removeprefix("embedding, "): {k: v for k, v in row.items() if not math.isnan(v)}
            for name, row in rows.items()
        }

    @property
    def _rows(self) -> dict[str, Mapping[str, float]]:
        return {f"{self.name}, {name}": row for name, row in self._found.items() if name != _PAIRS}

    def finish(self, run: EvaluatedRun, end: Finished) -> Findings:
        """Return the rows of the table."""
        if not self._rows or not self.is_wanted(run):
            return Findings()
        stored = {name: row for name, row in self._found.items() if name != _PAIRS}
        return Findings(rows=self._rows, baselines={self.name: stored})


class UntrainedBackbone(Baseline):
    """The backbone and its pooling with the weights at the start of the training."""

    name = baselines.UNTRAINED
    file = baselines.UNTRAINED_FILE

    def is_wanted(self, run: EvaluatedRun) -> bool:
        """Return whether the training starts with trained weights."""
        return bool(run.options.weights != NO_WEIGHTS)

    def embeddings(self, run: EvaluatedRun, start: Start) -> Embeddings:
        """Return the embeddings before the first step. Later the weights have changed."""
        return start.untrained() if start.step == 0 else {}

    def findings(self, run: EvaluatedRun, embeddings: Embeddings) -> dict[str, Any]:
        """Return the rows, and the similarities of pairs."""
        found = super().findings(run, embeddings)
        pairs = similarities_of_some(_labels(run), lambda side, rows: embeddings[side][rows])
        if pairs is not None:
            found[_PAIRS] = [pairs.matching.tolist(), pairs.other.tolist(), *pairs[2:]]
        return found


class RawPixels(Baseline):
    """The pixels, if `--raw_pixels` is set."""

    name = baselines.RAW_PIXELS
    file = baselines.RAW_PIXELS_FILE

    def is_wanted(self, run: EvaluatedRun) -> bool:
        """Return whether the options ask for it."""
        return bool(run.options.raw_pixels)

    def embeddings(self, run: EvaluatedRun, start: Start) -> Embeddings:
        """Return the pixels, on the first worker only."""
        if self._found or not run.folder.writes:
            return {}
        tables, size = run.data.tables, run.options.eval_batch_size
        return {side: raw_pixels(tables[side], size) for side in _labels(run)}


class PairSimilarities(Evaluator):
    """Histograms of the similarities of matching and other pairs, before and after training."""

    def finish(self, run: EvaluatedRun, end: Finished) -> Findings:
        """Return two histograms of the same pairs."""
        name, before = self._before(run)
        after = similarities_of_some(_labels(run), lambda side, rows: end.embeddings[side][rows])
        if before is None or after is None:
            return Findings()
        figure = similarity_histograms({f"before, {name}": before, "after, embeddings": after})
        return Findings(figures={"Similarities of unseen pairs before and after training": figure})

    def _before(self, run: EvaluatedRun) -> tuple[str, Similarities | None]:
        """Return the name of the baseline and its pairs."""
        stored = (run.folder.read_json(baselines.UNTRAINED_FILE) or {}).get(_PAIRS)
        if stored is not None:
            matching, other, *means = stored
            return baselines.UNTRAINED, Similarities(np.array(matching), np.array(other), *means)
        tables, size = run.data.tables, run.options.eval_batch_size
        pixels = similarities_of_some(
            _labels(run), lambda side, rows: raw_pixels(tables[side].select(rows), size)
        )
        return baselines.RAW_PIXELS, pixels


def _labels(run: EvaluatedRun) -> dict[str, np.ndarray]:
    """Return the classes of the test images and of the gallery."""
    return {side: run.data.tables[side].labels for side in ("test", "gallery")
            if side in run.data.tables}  # fmt: skip


def _scored(run: EvaluatedRun, embeddings: Embeddings) -> Scored:
    queries, gallery = _set("test", run, embeddings), _set("gallery", run, embeddings)
    return Scored(cast(EmbeddedSet, queries), run.ks, gallery, run.options.neighbors)


def _set(side: str, run: EvaluatedRun, embeddings: Embeddings) -> EmbeddedSet | None:
    """Return the embeddings of a table with their labels, if they are there."""
    tables = run.data.tables
    if side not in tables or side not in embeddings:
        return None
    return EmbeddedSet(embeddings[side], tables[side].labels, tables[side])
