"""Evaluators, which measure a run before its training, after each epoch, and at its end.

`Objective.evaluators` lists the evaluators of a run.
"""

from __future__ import annotations

import dataclasses
import logging
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol, TypeAlias, cast

import keras
import numpy as np

from experiments.evaluation import scores
from experiments.evaluation.conclusions import reranking_gain
from experiments.evaluation.embed import TableEmbedder
from experiments.evaluation.embedded_sets import EmbeddedSet
from experiments.evaluation.measurement import (
    Measurement,
    named,
)
from experiments.evaluation.result import (
    Findings,
)
from experiments.evaluation.score_table import certificate_lines, score_lines
from experiments.options import RunOptions
from experiments.options import data as described
from experiments.options.run_options import RelationOptions
from experiments.options.visible import visible
from keras_dml._common.collapse import mean_unit_distance, nearly_equal, nearly_equal_sentence
from keras_dml._common.types import Neighbors
from keras_dml.metrics import class_mean_accuracy
from keras_dml.metrics.pairwise_information import within_class_entropy
from keras_dml.relations import Relation
from keras_dml.retrieval.reranking import Reranking
from pipelines import ImageTable, Split

#: Name of a table of `Split.tables` -> embeddings `[n, d]`.
Arrays: TypeAlias = Mapping[str, np.ndarray]
_LOGGER = logging.getLogger("experiments")


class EvaluatedFolder(Protocol):
    """The folder of a run as evaluators use it: `experiments.training.run_folder.RunFolder`."""

    @property
    def writes(self) -> bool:
        """Whether this worker writes into the folder."""

    @property
    def history(self) -> Sequence[Mapping[str, float]]:
        """The objects of `metrics.jsonl`."""

    def write_json(self, name: str, value: Any) -> None:
        """Replace a file of the run."""

    def read_json(self, name: str, form: Any = ...) -> Any:
        """Return the value of a file of the run. None if it is missing or damaged."""


class EvaluatedRun(Protocol):
    """A run as evaluators use it: `experiments.training.plan.RunPlan`."""

    @property
    def options(self) -> RunOptions:
        """The options of the run."""

    @property
    def folder(self) -> EvaluatedFolder:
        """The folder of the run."""

    @property
    def data(self) -> Split:
        """The images of the run."""

    @property
    def ks(self) -> Sequence[int]:
        """Values of K."""

    @property
    def sampler(self) -> Callable[[int], np.ndarray]:
        """Function from the number of a batch to the rows of its training images."""


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
    untrained: Callable[..., Arrays] = dict


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
    embeddings: Arrays
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
        self, run: EvaluatedRun, model: keras.Model, embeddings: Arrays
    ) -> list[Measurement]:
        """Return the measurements for `metrics.jsonl` after an epoch, on the first worker.

        Args:
            run: The run.
            model: The fitted model.
            embeddings: Embeddings `[n, d]` of every table that an evaluator's `sides` names.
        """
        return []

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
        self, run: EvaluatedRun, model: keras.Model, embeddings: Arrays
    ) -> list[Measurement]:
        """Return the scores of each epoch, and MAP@R if the run's patience needs it."""
        scored = scored_set(run, embeddings)
        # First, because its search also gives R@K.
        ranked = scores.SCORES["map@r"].measure(scored, "cosine") if run.options.patience else []
        found = scores.evaluate(scored, scores.of_each_epoch())
        found += scores.of_prefixes(scored, self.prefixes) + ranked
        found += scores.of_catalog(scored, embedded_set("catalog", run, embeddings))
        return [*found, *scores.certificates(scored)]

    def finish(self, run: EvaluatedRun, end: Finished) -> Findings:
        """Return every score."""
        scored = scored_set(run, end.embeddings)
        catalog, classes = embedded_set("catalog", run, end.embeddings), None
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
        # Of the last epoch, whose scores are often the scores of the kept model.
        self._last: scores.ScoredSet | None = None

    def measure(
        self, run: EvaluatedRun, model: keras.Model, embeddings: Arrays
    ) -> list[Measurement]:
        """Return the scores of each epoch that are finite, because JSON has no infinity."""
        self._last = scored_set(run, embeddings)
        found = scores.information_scores(self._last, at_end=False)
        return [each for each in found if math.isfinite(each.value)]

    def finish(self, run: EvaluatedRun, end: Finished) -> Findings:
        """Return every score."""
        scored = scored_set(run, end.embeddings)
        if self._last is not None and self._last.has_embeddings_of(scored):
            scored = self._last
        return information_findings(scored, self.fitted)


class MeanDistance(Evaluator):
    """The mean distance between unit embeddings, with a warning if they are nearly equal."""

    def measure(
        self, run: EvaluatedRun, model: keras.Model, embeddings: Arrays
    ) -> list[Measurement]:
        """Return the distance. Warn when it has been too short in three evaluations."""
        value = mean_unit_distance(embeddings["test"])
        found = Measurement("mean_distance", value, distance="cosine")
        # A log of an earlier version lacks the distance.
        before = [row[found.log_key] for row in run.folder.history if found.log_key in row]
        if nearly_equal([*before, value]) and not nearly_equal(before):
            _LOGGER.warning("%s", nearly_equal_sentence(value))
        return [found]


def information_findings(scored: scores.ScoredSet, fitted: bool = False) -> Findings:
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
    lines = score_lines(found)
    lines += widest_classes(scored.embeddings, scored.labels, names) if found else []
    return Findings(measurements=found, information=lines)


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
    scored: scores.ScoredSet,
    catalog: EmbeddedSet | None = None,
    prefixes: Sequence[int] = (),
    clustering: bool = True,
    classes: RelatedClasses | None = None,
    rerankings: Mapping[str, Reranking] | None = None,
) -> Findings:
    """Return every score.

    Args:
        scored: The embeddings, for a relation with class numbers as labels.
        catalog: The catalog, if there is one.
        prefixes: Lengths of prefixes of the embeddings to score too.
        clustering: Whether to compute the scores that need k-means.
        classes: The relation on these classes, whose search has separate rows.
        rerankings: Name -> a re-ranking, whose search has a separate row.
    """
    found = scores.evaluate(scored, clustering=clustering)
    lines = score_lines(found)
    found += scores.of_prefixes(scored, prefixes)
    found += both_directions(scored, catalog)
    if classes is not None:
        found += scores.of_distances(_under_relation(scored, classes))
    of_classes = {scored.part: scored.of_classes()}
    for name, (measured, reranked) in scores.of_rerankings(scored, rerankings or {}).items():
        found += measured
        of_classes[name] = reranked
        lines.append((f"Gain of {name}", reranking_gain(of_classes[scored.part], reranked)))
    certificates = scores.as_json(named(scores.certificates(scored), lambda each: each.key))
    result: dict[str, Any] = {"engine": scored.engine}
    if certificates:
        result["certificates"] = certificates
    return Findings(
        measurements=found,
        classes=of_classes,
        lines=[*certificate_lines(scored), *lines],
        summary=[("Neighbors by", scores.ENGINES[scored.engine])],
        result=result,
    )


def both_directions(scored: scores.ScoredSet, catalog: EmbeddedSet | None) -> list[Measurement]:
    """Return the scores of both directions between photos and catalog."""
    if catalog is None:
        return []
    back = dataclasses.replace(scored, side="photos", queries=catalog, gallery=scored.queries)
    return [*scores.of_catalog(scored, catalog), *scores.of_distances(back)]


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


def _under_relation(scored: scores.ScoredSet, classes: RelatedClasses) -> scores.ScoredSet:
    """Return the same embeddings with the labels and the matches of a relation."""
    queries, gallery = scored.queries, scored.gallery
    queries = queries._replace(labels=classes.labels[queries.labels])
    if gallery is not None:
        gallery = gallery._replace(labels=classes.labels[gallery.labels])
    return dataclasses.replace(
        scored, side=classes.name, queries=queries, gallery=gallery, relation=classes.relation
    )


def accuracy_line(accuracy: float) -> str:
    """Return the accuracy of `ClosedSetAccuracy` for a terminal."""
    return f"accuracy on the training classes: {scores.percent(accuracy)} %"


class ClosedSetAccuracy(Evaluator):
    """The share of test images that get their class, if the test classes were trained on."""

    def measure(
        self, run: EvaluatedRun, model: keras.Model, embeddings: Arrays
    ) -> list[Measurement]:
        """Return the accuracy."""
        if not run.data.same_classes:
            return []
        return [Measurement("accuracy", self.accuracy(run.data, model, embeddings))]

    def accuracy(self, data: Split, model: keras.Model, embeddings: Arrays) -> float:
        """Return the accuracy as a fraction. It has the arguments of `measure`."""
        raise NotImplementedError

    def finish(self, run: EvaluatedRun, end: Finished) -> Findings:
        """Return the accuracy of the kept model."""
        if scores.ACCURACY not in end.best:
            return Findings()
        accuracy = end.best[scores.ACCURACY]
        return Findings(
            printed=[accuracy_line(accuracy)],
            result={"accuracy": accuracy},
        )


class ClassifierAccuracy(ClosedSetAccuracy):
    """The accuracy of the fitted model's classifier.

    Args:
        layer: Name of its layer, from embeddings to a score for each class.
    """

    def __init__(self, layer: str = "logits") -> None:
        self.layer = layer

    def accuracy(self, data: Split, model: keras.Model, embeddings: Arrays) -> float:
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

    def accuracy(self, data: Split, model: keras.Model, embeddings: Arrays) -> float:
        """Return `keras_dml.metrics.class_mean_accuracy`."""
        return float(
            class_mean_accuracy(
                embeddings["training"], data.train.labels, embeddings["test"], data.test.labels
            )
        )


def labels_of(run: EvaluatedRun) -> dict[str, np.ndarray]:
    """Return the classes of the test images and of the gallery."""
    return {side: run.data.tables[side].labels for side in ("test", "gallery")
            if side in run.data.tables}  # fmt: skip


def scored_set(run: EvaluatedRun, embeddings: Arrays) -> scores.ScoredSet:
    """Return the test images of a run, and its gallery, for the scores."""
    queries, gallery = (
        embedded_set("test", run, embeddings),
        embedded_set("gallery", run, embeddings),
    )
    neighbors = cast(Neighbors, run.options.neighbors)
    return scores.ScoredSet(cast(EmbeddedSet, queries), run.ks, gallery, neighbors)


def embedded_set(side: str, run: EvaluatedRun, embeddings: Arrays) -> EmbeddedSet | None:
    """Return the embeddings of a table with their labels, if they are there."""
    tables = run.data.tables
    if side not in tables or side not in embeddings:
        return None
    return EmbeddedSet(embeddings[side], tables[side].labels, tables[side])
