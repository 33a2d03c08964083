"""Evaluators, which measure a run before its training, after each epoch, and at its end.

`Objective.evaluators` lists the evaluators of a run.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, Protocol, TypeAlias

import keras
import numpy as np

from experiments.evaluation import baselines
from experiments.evaluation.baselines import best_baseline
from experiments.evaluation.pairs import Similarities, SimilarityPanels, pair_rows, similarities
from experiments.evaluation.scores import (
    ACCURACY,
    CATALOG,
    MAP_AT_R,
    SCORES,
    Rows,
    as_json,
    evaluate,
    of_catalog,
    of_each_epoch,
    of_prefixes,
    percent,
    rows_of,
    score_lines,
)
from experiments.evaluation.scores import Embeddings as Scored
from experiments.evaluation.table_embedder import TableEmbedder, raw_pixels
from keras_dml.metrics import class_mean_accuracy
from keras_dml.models.backbones import NO_WEIGHTS
from pipelines import Split

#: Name of a table of `Split.tables` -> embeddings `[n, d]`.
Embeddings: TypeAlias = Mapping[str, np.ndarray]
# Key of the histograms of `Similarities` in the file of the untrained backbone.
_PAIRS = "pairs"


class EvaluatedRun(Protocol):
    """The run that an evaluator measures; `experiments.training.plan.RunPlan` is one."""

    @property
    def data(self) -> Split:
        """The images."""

    @property
    def options(self) -> Any:
        """The options, `experiments.options.RunOptions`."""

    @property
    def folder(self) -> Any:
        """The folder, `experiments.training.run_folder.RunFolder`."""

    @property
    def ks(self) -> Sequence[int]:
        """Values of K."""


class Progress(Protocol):
    """The progress of a run."""

    @property
    def step(self) -> int:
        """The number of trained steps."""


@dataclasses.dataclass(frozen=True)
class Finished:
    """A run at its end.

    Attributes:
        model: The fitted model after the last step.
        embeddings: Embeddings of the test images by the kept model, `[n, d]`.
        gallery: Embeddings of the gallery, if there is one.
        history: The objects of `metrics.jsonl`.
        best: The object of `history` whose model was kept.
        catalog: Embeddings of the catalog, if there is one.
    """

    model: keras.Model
    embeddings: np.ndarray
    gallery: np.ndarray | None
    history: Sequence[Mapping[str, float]]
    best: Mapping[str, float]
    catalog: np.ndarray | None = None


@dataclasses.dataclass(frozen=True)
class Findings:
    """The results of an evaluator at the end of a run.

    Attributes:
        rows: Rows of the table of scores.
        baselines: Name of a baseline -> its rows.
        lines: (label, text) pairs below the table, and in the report's summary.
        summary: (label, text) pairs at the end of the report's summary.
        figures: Title -> the data of a figure in the report.
        printed: Further lines below the table on the terminal.
        result: Entries of `result.json`.
    """

    rows: Rows = dataclasses.field(default_factory=dict)
    baselines: Mapping[str, Rows] = dataclasses.field(default_factory=dict)
    lines: Sequence[tuple[str, str]] = ()
    summary: Sequence[tuple[str, str]] = ()
    figures: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    printed: Sequence[str] = ()
    result: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    @classmethod
    def together(cls, several: Iterable[Findings]) -> Findings:
        """Return the findings of several evaluators as one."""
        several = list(several)
        merged: dict[str, Any] = {}
        for field in dataclasses.fields(cls):
            values = [getattr(one, field.name) for one in several]
            if isinstance(getattr(cls(), field.name), dict):
                merged[field.name] = {key: value for each in values for key, value in each.items()}
            else:
                merged[field.name] = [line for each in values for line in each]
        return cls(**merged)


class Evaluator:
    """Base class. A subclass overrides the methods of the moments at which it measures."""

    def sides(self, data: Split) -> Sequence[str]:
        """Return the names of the tables that `measure` needs in addition to "test"."""
        return ()

    def before(
        self,
        run: EvaluatedRun,
        state: Progress,
        embedder: TableEmbedder,
        untrained: Callable[[], Embeddings] = dict,
    ) -> None:
        """Measure when the run starts or resumes, on every worker.

        Args:
            run: The run.
            state: Number of trained steps.
            embedder: Embeds with the current weights.
            untrained: Returns the embeddings of all evaluated images by the backbone and its
                pooling, without the head. Call it only before the first step, on every worker.
        """

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

    Args:
        prefixes: Lengths below d. The first numbers of each embedding are scored too.
    """

    def __init__(self, prefixes: Sequence[int] = ()) -> None:
        self.prefixes = tuple(prefixes)

    def sides(self, data: Split) -> Sequence[str]:
        """Return the names of the test images and of the gallery."""
        return ("test",) if data.gallery is None else ("test", "gallery")

    def measure(
        self, run: EvaluatedRun, model: keras.Model, embeddings: Embeddings
    ) -> Iterator[tuple[str, float]]:
        """Yield the scores of each epoch, and MAP@R if the run's patience needs it."""
        scored = _scored(run, embeddings["test"], embeddings.get("gallery"))
        found = evaluate(scored, of_each_epoch()) | of_prefixes(scored, self.prefixes)
        for key, value in found.items():
            yield f"test/{key}", value
        if run.options.patience:
            yield MAP_AT_R, SCORES["map@r"].values(scored, "cosine")["map@r"]

    def finish(self, run: EvaluatedRun, end: Finished) -> Findings:
        """Return every score."""
        scored = _scored(run, end.embeddings, end.gallery)
        scores = evaluate(scored)
        prefixes = of_prefixes(scored, self.prefixes)
        return Findings(
            rows=rows_of(scores | prefixes),
            lines=score_lines(scores),
            result={"scores": as_json(scores | prefixes)},
        )


class CatalogScores(Evaluator):
    """The scores of a search for the test images in the catalog, if there is a catalog."""

    def sides(self, data: Split) -> Sequence[str]:
        """Return the names of the test images and of the catalog."""
        return () if data.catalog is None else ("test", "catalog")

    def measure(
        self, run: EvaluatedRun, model: keras.Model, embeddings: Embeddings
    ) -> Iterator[tuple[str, float]]:
        """Yield the scores of each epoch."""
        found = _of_catalog(run, embeddings["test"], embeddings.get("catalog"))
        for key, value in found.items():
            yield f"catalog/{key}", value

    def finish(self, run: EvaluatedRun, end: Finished) -> Findings:
        """Return a row of the table for each distance."""
        found = _of_catalog(run, end.embeddings, end.catalog)
        return Findings(rows=rows_of(found, CATALOG))


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

    def before(
        self,
        run: EvaluatedRun,
        state: Progress,
        embedder: TableEmbedder,
        untrained: Callable[[], Embeddings] = dict,
    ) -> None:
        """Measure the baseline if it is due; print R@1."""
        folder = run.folder
        if not self.is_wanted(run):
            return
        self._found = folder.read_json(self.file) or {}
        embeddings = self.embeddings(run, state, untrained)
        if not folder.writes:
            return
        if embeddings:
            folder.write_json(self.file, self.findings(run, embeddings))
            self._found = folder.read_json(self.file) or {}
        name, best = best_baseline(self.finish(run, None).rows)
        if best is not None:
            print(f"{name}: R@1 {percent(best)} %", flush=True)

    def is_wanted(self, run: EvaluatedRun) -> bool:
        """Return whether the run has this baseline."""
        raise NotImplementedError

    def embeddings(
        self, run: EvaluatedRun, state: Progress, untrained: Callable[[], Embeddings]
    ) -> Embeddings:
        """Return the baseline's embeddings; none if it is measured already."""
        raise NotImplementedError

    def findings(self, run: EvaluatedRun, embeddings: Embeddings) -> dict[str, Any]:
        """Return the content of the file: the rows of the baseline's scores."""
        test = embeddings["test"]
        scores = evaluate(
            _scored(run, test, embeddings.get("gallery")),
            [score for score in SCORES.values() if score.of_distance],
        )
        rows = rows_of(scores)
        rows |= rows_of(_of_catalog(run, test, embeddings.get("catalog")), CATALOG)
        # JSON has no NaN, which is the MAP@R of classes with one image.
        return {
            name.removeprefix("embedding, "): {k: v for k, v in row.items() if not math.isnan(v)}
            for name, row in rows.items()
        }

    def finish(self, run: EvaluatedRun, end: Finished | None) -> Findings:
        """Return the rows of the table."""
        rows = {name: row for name, row in self._found.items() if name != _PAIRS}
        if not rows or not self.is_wanted(run):
            return Findings()
        return Findings(
            rows={f"{self.name}, {name}": row for name, row in rows.items()},
            baselines={self.name: rows},
        )


class UntrainedBackbone(Baseline):
    """The backbone and its pooling with the weights at the start of the training."""

    name = baselines.UNTRAINED
    file = baselines.UNTRAINED_FILE

    def is_wanted(self, run: EvaluatedRun) -> bool:
        """Return whether the training starts with trained weights."""
        return bool(run.options.weights != NO_WEIGHTS)

    def embeddings(
        self, run: EvaluatedRun, state: Progress, untrained: Callable[[], Embeddings]
    ) -> Embeddings:
        """Return the embeddings before the first step. Later the weights have changed."""
        return untrained() if state.step == 0 else {}

    def findings(self, run: EvaluatedRun, embeddings: Embeddings) -> dict[str, Any]:
        """Return the rows, and the similarities of pairs."""
        found = super().findings(run, embeddings)
        pairs = _similarities(run.data, lambda side, rows: embeddings[side][rows])
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

    def embeddings(
        self, run: EvaluatedRun, state: Progress, untrained: Callable[[], Embeddings]
    ) -> Embeddings:
        """Return the pixels, on the first worker only."""
        if self._found or not run.folder.writes:
            return {}
        return {
            side: raw_pixels(table, run.options.eval_batch_size)
            for side, table in run.data.tables.items()
            if side in ("test", "gallery")
        }


class PairSimilarities(Evaluator):
    """Histograms of the similarities of matching and other pairs, before and after training."""

    def finish(self, run: EvaluatedRun, end: Finished) -> Findings:
        """Return two histograms of the same pairs."""
        embeddings = {"test": end.embeddings}
        if end.gallery is not None:
            embeddings["gallery"] = end.gallery
        name, before = self._before(run)
        after = _similarities(run.data, lambda side, rows: embeddings[side][rows])
        if before is None or after is None:
            return Findings()
        panels = SimilarityPanels({f"before, {name}": before, "after, embeddings": after})
        return Findings(figures={"Similarities of unseen pairs before and after training": panels})

    def _before(self, run: EvaluatedRun) -> tuple[str, Similarities | None]:
        """Return the name of the baseline and its pairs."""
        stored = (run.folder.read_json(baselines.UNTRAINED_FILE) or {}).get(_PAIRS)
        if stored is not None:
            matching, other, *means = stored
            return baselines.UNTRAINED, Similarities(np.array(matching), np.array(other), *means)
        tables, size = run.data.tables, run.options.eval_batch_size
        pixels = _similarities(
            run.data, lambda side, rows: raw_pixels(tables[side].select(rows), size)
        )
        return baselines.RAW_PIXELS, pixels


def _similarities(
    data: Split, embeddings: Callable[[str, np.ndarray], np.ndarray]
) -> Similarities | None:
    """Return the similarities of pairs of test images, or of test and gallery images.

    Args:
        data: The images.
        embeddings: (side, rows) -> the embeddings of these rows.

    Returns:
        None without pairs.
    """
    tables = {side: table for side, table in data.tables.items() if side in ("test", "gallery")}
    arrays: list[np.ndarray] = []
    for side, rows in zip(tables, pair_rows(*(table.labels for table in tables.values()))):
        if not len(rows):
            return None
        arrays += [embeddings(side, rows), tables[side].labels[rows]]
    return similarities(*arrays)


def _scored(run: EvaluatedRun, test: np.ndarray, gallery: np.ndarray | None) -> Scored:
    data = run.data
    if data.gallery is None:
        return Scored(test, data.test.labels, run.ks)
    return Scored(test, data.test.labels, run.ks, gallery, data.gallery.labels)


def _of_catalog(
    run: EvaluatedRun, embeddings: np.ndarray, catalog: np.ndarray | None
) -> dict[str, float]:
    """Return the scores of the test images in the catalog; {} without a catalog."""
    data = run.data
    if data.catalog is None or catalog is None:
        return {}
    return of_catalog(embeddings, data.test.labels, run.ks, catalog, data.catalog.labels)
