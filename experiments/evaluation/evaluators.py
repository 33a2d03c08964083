"""Evaluators, which measure a run before its training, after each epoch, and at its end.

`Objective.evaluators` lists the evaluators of a run.
"""

from __future__ import annotations

import dataclasses
import logging
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple, TypeAlias, cast

import keras
import numpy as np

from experiments.evaluation import baselines, scores
from experiments.evaluation.labeled_embeddings import EmbeddedSet
from experiments.evaluation.pairs import Similarities, similarities_of_some, similarity_histograms
from experiments.evaluation.result import Findings
from experiments.evaluation.table_embedder import TableEmbedder, raw_pixels
from experiments.options import data as described
from experiments.options.run_options import RelationOptions
from experiments.options.visible import visible
from keras_dml._common.collapse import mean_unit_distance, nearly_equal, nearly_equal_sentence
from keras_dml.metrics import class_mean_accuracy
from keras_dml.metrics.pairwise_information import within_class_entropy
from keras_dml.models.backbones import NO_WEIGHTS, native_image_size
from keras_dml.relations import Relation
from pipelines import ImageTable, Split

#: The run that an evaluator measures: `RunPlan` of `experiments.training`, which imports this file.
EvaluatedRun: TypeAlias = Any
#: Name of a table of `Split.tables` -> embeddings `[n, d]`.
Embeddings: TypeAlias = Mapping[str, np.ndarray]
#: Keys of `metrics.jsonl` with their values.
Measured: TypeAlias = Iterable[tuple[str, float]]
# Keys in the file of a baseline: the histograms of `Similarities` of the untrained backbone, and
# the scores of each class.
_PAIRS, _CLASSES = "pairs", "classes"
_LOGGER = logging.getLogger("experiments")
# Rows of scores, the scores of each class, and the histograms of `_PAIRS` with their means.
_BASELINE = dict[str, dict[str, float] | dict[str, list[list[float]]] | list[list[float] | float]]


@dataclasses.dataclass(frozen=True)
class Start:
    """A run that starts or resumes.

    Attributes:
        step: Number of trained steps.
        embedder: Embeds with the current weights.
        untrained: Returns the embeddings of all evaluated images by the backbone and its pooling,
            without the head. The argument is another image size than the run's. Call it only before
            the first step, on every worker.
    """

    step: int
    embedder: TableEmbedder
    untrained: Callable[..., Embeddings] = dict


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

    def measure(self, run: EvaluatedRun, model: keras.Model, embeddings: Embeddings) -> Measured:
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

    def measure(self, run: EvaluatedRun, model: keras.Model, embeddings: Embeddings) -> Measured:
        """Yield the scores of each epoch, and MAP@R if the run's patience needs it."""
        scored = _scored(run, embeddings)
        found = scores.evaluate(scored, scores.of_each_epoch())
        found |= scores.of_prefixes(scored, self.prefixes)
        if run.options.patience:
            found["map@r/cosine"] = scores.SCORES["map@r"].values(scored, "cosine")["map@r"]
        for key, value in found.items():
            yield f"test/{key}", value
        for key, value in scores.of_catalog(scored, _set("catalog", run, embeddings)).items():
            yield f"catalog/{key}", value
        for key, value in scores.certificate_values(scored).items():
            yield f"test/{key}", value

    def finish(self, run: EvaluatedRun, end: Finished) -> Findings:
        """Return every score."""
        scored = _scored(run, end.embeddings)
        catalog, classes = _set("catalog", run, end.embeddings), None
        if self.relation is not None:
            classes = related_classes(self.relation, scored.queries.table)
        return retrieval_findings(scored, catalog, self.prefixes, classes=classes)


class InformationScores(Evaluator):
    """The entropies of the embeddings, and their information about the classes.

    Args:
        fitted: Whether to use every image at the end, and to fit the probes.
    """

    def __init__(self, fitted: bool = False) -> None:
        self.fitted = fitted

    def measure(self, run: EvaluatedRun, model: keras.Model, embeddings: Embeddings) -> Measured:
        """Yield the scores of each epoch that are finite, because JSON has no infinity."""
        for key, value in scores.information_scores(_scored(run, embeddings), at_end=False).items():
            if math.isfinite(value):
                yield f"test/{key}", value

    def finish(self, run: EvaluatedRun, end: Finished) -> Findings:
        """Return every score."""
        return information_findings(_scored(run, end.embeddings), self.fitted)


class MeanDistance(Evaluator):
    """The mean distance between unit embeddings, with a warning if they are nearly equal."""

    def measure(self, run: EvaluatedRun, model: keras.Model, embeddings: Embeddings) -> Measured:
        """Yield the distance. Warn when it has been too short in three evaluations."""
        found = mean_unit_distance(embeddings["test"])
        # A log of an earlier version lacks the distance.
        key, history = scores.MEAN_DISTANCE, run.folder.history
        yield key, found
        before = [row[key] for row in history if key in row]
        if nearly_equal([*before, found]) and not nearly_equal(before):
            _LOGGER.warning("%s", nearly_equal_sentence(found))


def information_findings(scored: scores.Embeddings, fitted: bool = False) -> Findings:
    """Return the scores of information, and the widest classes.

    Args:
        scored: The embeddings.
        fitted: Whether to use every image, and to fit the probes.
    """
    found, table = scores.information_scores(scored, fitted), scored.queries.table
    names: Sequence[str] = ()
    # The labels of a file are names, also if its pictures are known.
    if table is not None and np.array_equal(table.labels, scored.labels):
        names = table.class_names
    lines = scores.score_lines(found)
    lines += widest_classes(scored.embeddings, scored.labels, names) if found else []
    return Findings(lines=lines, result={"scores": scores.as_json(found)})


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
    scored: scores.Embeddings,
    catalog: EmbeddedSet | None = None,
    prefixes: Sequence[int] = (),
    clustering: bool = True,
    classes: RelatedClasses | None = None,
) -> Findings:
    """Return every score.

    Args:
        scored: The embeddings, for a relation with class numbers as labels.
        catalog: The catalog, if there is one.
        prefixes: Lengths of prefixes of the embeddings to score too.
        clustering: Whether to compute the scores that need k-means.
        classes: The relation on these classes, whose search has separate rows.
    """
    found = scores.evaluate(scored, clustering=clustering)
    with_prefixes = found | scores.of_prefixes(scored, prefixes)
    rows = scores.rows_of(with_prefixes) | _catalog_rows(scored, catalog)
    if classes is not None:
        rows |= _distance_rows(_under_relation(scored, classes))
    result = {"scores": scores.as_json(with_prefixes)}
    if certificates := scores.certificate_values(scored):
        result["certificates"] = scores.as_json(certificates)
    lines = [*scores.certificate_lines(scored), *scores.score_lines(found)]
    of_classes = {scored.name: scored.of_classes()}
    return Findings(rows=rows, classes=of_classes, lines=lines, result=result)


def _distance_rows(scored: scores.Embeddings) -> dict[str, dict[str, float]]:
    """Return the rows of the scores that depend on the distance."""
    of_distance = [score for score in scores.SCORES.values() if score.of_distance]
    return scores.rows_of(scores.evaluate(scored, of_distance), scored.name)


def _catalog_rows(
    scored: scores.Embeddings, catalog: EmbeddedSet | None
) -> dict[str, dict[str, float]]:
    """Return the rows of both directions between photos and catalog."""
    if catalog is None:
        return {}
    back = dataclasses.replace(scored, name=scores.PHOTOS, queries=catalog, gallery=scored.queries)
    return scores.rows_of(scores.of_catalog(scored, catalog), scores.CATALOG) | _distance_rows(back)


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


def _under_relation(scored: scores.Embeddings, classes: RelatedClasses) -> scores.Embeddings:
    """Return the same embeddings with the labels and the matches of a relation."""
    queries, gallery = scored.queries, scored.gallery
    queries = queries._replace(labels=classes.labels[queries.labels])
    if gallery is not None:
        gallery = gallery._replace(labels=classes.labels[gallery.labels])
    return dataclasses.replace(
        scored, name=classes.name, queries=queries, gallery=gallery, relation=classes.relation
    )


class ClosedSetAccuracy(Evaluator):
    """The share of test images that get their class, if the test classes were trained on."""

    def measure(self, run: EvaluatedRun, model: keras.Model, embeddings: Embeddings) -> Measured:
        """Yield the accuracy."""
        if run.data.same_classes:
            yield scores.ACCURACY, self.accuracy(run.data, model, embeddings)

    def accuracy(self, data: Split, model: keras.Model, embeddings: Embeddings) -> float:
        """Return the accuracy as a fraction. It has the arguments of `measure`."""
        raise NotImplementedError

    def finish(self, run: EvaluatedRun, end: Finished) -> Findings:
        """Return the accuracy of the kept model."""
        if scores.ACCURACY not in end.best:
            return Findings()
        accuracy = end.best[scores.ACCURACY]
        return Findings(
            printed=[f"accuracy on the training classes: {scores.percent(accuracy)} %"],
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
        logits = keras.ops.convert_to_numpy(model.get_layer(self.layer)(embeddings["test"]))
        return float(np.mean(np.argmax(logits, axis=1) == data.test.labels))


class ClassMeanAccuracy(ClosedSetAccuracy):
    """The accuracy of the class whose mean has the largest inner product with an image.

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
        name: Name of the baseline, which begins with one of `baselines.BASELINES`.
        file: Name of the file in the run's folder.
    """

    name: str
    file: ClassVar[str]

    def __init__(self) -> None:
        self._found: Mapping[str, Mapping[str, float]] = {}
        self._classes: Mapping[str, scores.ClassScores] = {}

    def before(self, run: EvaluatedRun, start: Start) -> None:
        """Measure the baseline if it is due; print R@1."""
        if not self.is_wanted(run):
            return
        self._read(run)
        embeddings = self.embeddings(run, start)
        if not run.folder.writes:
            return
        if embeddings:
            run.folder.write_json(self.file, self.findings(run, embeddings))
            self._read(run)
        name, best = baselines.best_baseline(self._rows)
        if best is not None:
            print(f"{name}: R@1 {scores.percent(best)} %", flush=True)

    def _read(self, run: EvaluatedRun) -> None:
        stored = run.folder.read_json(self.file, _BASELINE) or {}
        self._found = {name: row for name, row in stored.items() if name not in (_PAIRS, _CLASSES)}
        # A file of an earlier version lacks the classes.
        self._classes = {self.name: stored[_CLASSES]} if _CLASSES in stored else {}

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
        found: dict[str, Any] = {
            name.removeprefix("embedding, "): {k: v for k, v in row.items() if not math.isnan(v)}
            for name, row in rows.items()
        }
        return found | {_CLASSES: scored.of_classes()}

    @property
    def _rows(self) -> dict[str, Mapping[str, float]]:
        return {f"{self.name}, {name}": row for name, row in self._found.items()}

    def finish(self, run: EvaluatedRun, end: Finished) -> Findings:
        """Return the rows of the table."""
        if not self._found:
            return Findings()
        return Findings(rows=self._rows, baselines={self.name: self._found}, classes=self._classes)


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


class NativeBackbone(UntrainedBackbone):
    """The untrained backbone at the image size of its weights, if the run has another size."""

    file = baselines.NATIVE_FILE

    def before(self, run: EvaluatedRun, start: Start) -> None:
        """Measure the baseline if it is due; print R@1."""
        self._size = native_image_size(run.options.backbone)
        self.name = f"{baselines.UNTRAINED} at {self._size} px"
        super().before(run, start)

    def is_wanted(self, run: EvaluatedRun) -> bool:
        """Return whether the training starts with trained weights of another image size."""
        return super().is_wanted(run) and self._size not in (None, run.options.image_size)

    def embeddings(self, run: EvaluatedRun, start: Start) -> Embeddings:
        """Return the embeddings before the first step. Later the scores are on the disk."""
        return start.untrained(self._size) if start.step == 0 else {}

    def findings(self, run: EvaluatedRun, embeddings: Embeddings) -> dict[str, Any]:
        """Return the scores, without the histograms of the untrained backbone."""
        return Baseline.findings(self, run, embeddings)


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
        stored = (run.folder.read_json(baselines.UNTRAINED_FILE, _BASELINE) or {}).get(_PAIRS)
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


def _scored(run: EvaluatedRun, embeddings: Embeddings) -> scores.Embeddings:
    queries, gallery = _set("test", run, embeddings), _set("gallery", run, embeddings)
    return scores.Embeddings(cast(EmbeddedSet, queries), run.ks, gallery, run.options.neighbors)


def _set(side: str, run: EvaluatedRun, embeddings: Embeddings) -> EmbeddedSet | None:
    """Return the embeddings of a table with their labels, if they are there."""
    tables = run.data.tables
    if side not in tables or side not in embeddings:
        return None
    return EmbeddedSet(embeddings[side], tables[side].labels, tables[side])
