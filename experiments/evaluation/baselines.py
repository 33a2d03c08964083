"""The evaluators of baselines, which measure something other than the trained embedding."""

from __future__ import annotations

import concurrent.futures
import sys
import threading
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import keras
import numpy as np

from experiments.evaluation import scores
from experiments.evaluation.conclusions import best_baseline
from experiments.evaluation.embed import raw_pixels
from experiments.evaluation.evaluators import (
    Arrays,
    EvaluatedRun,
    Evaluator,
    Finished,
    Start,
    both_directions,
    embedded_set,
    labels_of,
    scored_set,
)
from experiments.evaluation.figures import (
    BINS,
    Similarities,
    similarities_of_some,
    similarity_histograms,
)
from experiments.evaluation.measurement import (
    RAW_PIXELS,
    UNTRAINED,
    Measurement,
    untrained_at,
)
from experiments.evaluation.result import (
    NATIVE_FILE,
    RAW_PIXELS_FILE,
    UNTRAINED_FILE,
    Findings,
    baseline_json,
    rows_of,
)
from keras_dml._common.progress import Bar
from keras_dml.models.backbones import NO_WEIGHTS, native_image_size

# Keys in the file of a baseline: the histograms of `Similarities`, and the scores of each class.
_PAIRS, _CLASSES = "pairs", "classes"


def _stored(run: EvaluatedRun, file: str) -> dict[str, Any]:
    """Read the file of a baseline: rows of scores by name, `_PAIRS`, and `_CLASSES`."""
    of_classes = [[float] * len(np.unique(labels_of(run)["test"]))] * 2
    form = {
        _PAIRS: ([[float] * BINS, [float] * BINS, float, float], None),
        _CLASSES: ({scores.RECALL.at_1: of_classes, "map@r": of_classes}, None),
        ...: dict[str, float],
    }
    found: dict[str, Any] = run.folder.read_json(file, form) or {}
    return found


class Baseline(Evaluator):
    """Scores of something other than the trained embedding, measured before the first step.

    The run's folder stores them, so that a resumed run shows the same scores.

    Attributes:
        name: Name of the baseline, the part of its measurements.
        file: Name of the file in the run's folder.
    """

    name: str
    file: ClassVar[str]

    def __init__(self) -> None:
        self._found: list[Measurement] = []
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
            self._write(run, self.findings(run, embeddings))
        self._print()

    def _print(self) -> None:
        best = best_baseline(self._found)
        if best is not None:
            # Above the progress bar of the training, if there is one.
            Bar.write(f"{best.row}: R@1 {scores.percent(best.value)} %")
            sys.stdout.flush()

    def _write(self, run: EvaluatedRun, findings: Mapping[str, Any]) -> None:
        run.folder.write_json(self.file, findings)
        self._read(run)

    def _read(self, run: EvaluatedRun) -> None:
        stored = _stored(run, self.file)
        rows = {name: row for name, row in stored.items() if name not in (_PAIRS, _CLASSES)}
        self._found = rows_of(rows, self.name)
        # A file of an earlier version lacks the classes.
        self._classes = {self.name: stored[_CLASSES]} if _CLASSES in stored else {}

    def is_wanted(self, run: EvaluatedRun) -> bool:
        """Return whether the run has this baseline."""
        raise NotImplementedError

    def embeddings(self, run: EvaluatedRun, start: Start) -> Arrays:
        """Return the baseline's embeddings; none if it is measured already."""
        raise NotImplementedError

    def findings(self, run: EvaluatedRun, embeddings: Arrays) -> dict[str, Any]:
        """Return the content of the file: the rows, and the similarities of pairs."""
        found = self.rows(run, embeddings)
        pairs = similarities_of_some(labels_of(run), lambda side, rows: embeddings[side][rows])
        if pairs is not None:
            found[_PAIRS] = [pairs.matching.tolist(), pairs.other.tolist(), *pairs[2:]]
        return found

    def rows(self, run: EvaluatedRun, embeddings: Arrays) -> dict[str, Any]:
        """Return the rows of the baseline's scores, and the scores of each class."""
        scored = scored_set(run, embeddings)
        catalog = embedded_set("catalog", run, embeddings)
        found = [*scores.of_distances(scored), *both_directions(scored, catalog)]
        return {**baseline_json(found), _CLASSES: scored.of_classes()}

    def finish(self, run: EvaluatedRun, end: Finished) -> Findings:
        """Return the scores."""
        if not self._found:
            return Findings()
        return Findings(measurements=self._found, classes=self._classes)


class UntrainedBackbone(Baseline):
    """The backbone and its pooling with the weights at the start of the training."""

    name = UNTRAINED
    file = UNTRAINED_FILE

    def is_wanted(self, run: EvaluatedRun) -> bool:
        """Return whether the training starts with trained weights."""
        return bool(run.options.weights != NO_WEIGHTS)

    def embeddings(self, run: EvaluatedRun, start: Start) -> Arrays:
        """Return the embeddings before the first step. Later the weights have changed."""
        return start.untrained() if start.step == 0 else {}


class NativeBackbone(UntrainedBackbone):
    """The untrained backbone at the image size of its weights, if the run has another size."""

    file = NATIVE_FILE

    def before(self, run: EvaluatedRun, start: Start) -> None:
        """Measure the baseline if it is due; print R@1."""
        self._size = native_image_size(run.options.backbone)
        self.name = untrained_at(self._size)
        super().before(run, start)

    def is_wanted(self, run: EvaluatedRun) -> bool:
        """Return whether the training starts with trained weights of another image size."""
        return super().is_wanted(run) and self._size not in (None, run.options.image_size)

    def embeddings(self, run: EvaluatedRun, start: Start) -> Arrays:
        """Return the embeddings before the first step. Later the scores are on the disk."""
        return start.untrained(self._size) if start.step == 0 else {}

    def findings(self, run: EvaluatedRun, embeddings: Arrays) -> dict[str, Any]:
        """Return the scores, without the histograms of the untrained backbone."""
        return self.rows(run, embeddings)


class RawPixels(Baseline):
    """The pixels, if `--raw_pixels` is set. A thread scores them while the training starts."""

    name = RAW_PIXELS
    file = RAW_PIXELS_FILE

    def __init__(self) -> None:
        super().__init__()
        self._scoring: concurrent.futures.Future[dict[str, Any]] | None = None

    def before(self, run: EvaluatedRun, start: Start) -> None:
        """Start to measure the baseline if it is due."""
        if not self.is_wanted(run):
            return
        self._read(run)
        if embeddings := self.embeddings(run, start):
            # TensorFlow traces the first step on one core. The search takes the others.
            self._scoring = _in_thread(lambda: self.findings(run, embeddings))
        elif run.folder.writes:
            self._print()

    def measure(
        self, run: EvaluatedRun, model: keras.Model, embeddings: Arrays
    ) -> list[Measurement]:
        """Store the scores of the pixels before the first scores of the embedding."""
        self._settle(run)
        return []

    def finish(self, run: EvaluatedRun, end: Finished) -> Findings:
        """Return the scores."""
        self._settle(run)
        return super().finish(run, end)

    def _settle(self, run: EvaluatedRun) -> None:
        if self._scoring is not None:
            self._write(run, self._scoring.result())
            self._scoring = None
            self._print()

    def is_wanted(self, run: EvaluatedRun) -> bool:
        """Return whether the options ask for it."""
        return bool(run.options.raw_pixels)

    def embeddings(self, run: EvaluatedRun, start: Start) -> Arrays:
        """Return the pixels, on the first worker only."""
        if self._found or not run.folder.writes:
            return {}
        tables, size = run.data.tables, run.options.eval_batch_size
        return {side: raw_pixels(tables[side], size) for side in labels_of(run)}


def _in_thread(compute: Callable[[], dict[str, Any]]) -> concurrent.futures.Future[dict[str, Any]]:
    """Compute in a thread that does not keep a failed run from ending, as a pool would."""
    future: concurrent.futures.Future[dict[str, Any]] = concurrent.futures.Future()

    def run() -> None:
        try:
            future.set_result(compute())
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return future


class PairSimilarities(Evaluator):
    """Histograms of the similarities of matching and other pairs, before and after training."""

    def finish(self, run: EvaluatedRun, end: Finished) -> Findings:
        """Return two histograms of the same pairs."""
        name, before = self._before(run)
        after = similarities_of_some(labels_of(run), lambda side, rows: end.embeddings[side][rows])
        if before is None or after is None:
            return Findings()
        figure = similarity_histograms({f"before, {name}": before, "after, embeddings": after})
        return Findings(figures={"Similarities of unseen pairs before and after training": figure})

    def _before(self, run: EvaluatedRun) -> tuple[str, Similarities | None]:
        """Return the name of the baseline and its pairs."""
        for name, file in ((UNTRAINED, UNTRAINED_FILE), (RAW_PIXELS, RAW_PIXELS_FILE)):
            stored = _stored(run, file).get(_PAIRS)
            if stored is not None:
                matching, other, *means = stored
                return name, Similarities(np.array(matching), np.array(other), *means)
        tables, size = run.data.tables, run.options.eval_batch_size
        pixels = similarities_of_some(
            labels_of(run), lambda side, rows: raw_pixels(tables[side].select(rows), size)
        )
        return RAW_PIXELS, pixels
