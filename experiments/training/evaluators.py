"""What looks at the embeddings of a run: before its training, after an epoch, at its end.

Each is one object in the list that the run's objective gives, `Objective.evaluators`.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

import keras
import numpy as np

from experiments.embedding.table_embedder import (
    TableEmbedder,
    catalog_recalls,
    prefix_recalls,
    raw_pixels,
    recalls,
)
from experiments.report import baselines
from experiments.report.baselines import Rows, best_baseline
from experiments.report.scores import (
    as_json,
    catalog_rows,
    prefix_rows,
    prefix_scores,
    score_lines,
    score_rows,
    shown_lines,
)
from experiments.report.similarity_figure import (
    Similarities,
    pair_rows,
    similarities,
    similarities_svg,
)
from experiments.training.checkpoint import State
from experiments.training.kept import ACCURACY
from experiments.training.patience import MAP_AT_R
from experiments.training.run_files import RAW_PIXELS, UNTRAINED
from keras_dml import metrics
from keras_dml.metrics import class_mean_accuracy
from keras_dml.models.backbones import NO_WEIGHTS
from pipelines import Split

if TYPE_CHECKING:
    from experiments.training.plan import RunPlan

#: Name of a table of `Split.tables` -> embeddings `[n, d]`.
Embeddings: TypeAlias = Mapping[str, np.ndarray]
# Next to the rows in the file of the untrained backbone: the histograms of `Similarities`.
_PAIRS = "pairs"


@dataclasses.dataclass(frozen=True)
class Finished:
    """What there is at the end of a run.

    Attributes:
        model: the fitted model, as the last step left it.
        embeddings: of the test images by the kept embedding model, `[n, d]`.
        gallery: of the gallery's images; None where there is none.
        history: the objects of `metrics.jsonl`.
        best: the one of `history` whose embedding model was kept.
        catalog: of the catalog's images; None where there is none.
    """

    model: keras.Model
    embeddings: np.ndarray
    gallery: np.ndarray | None
    history: Sequence[Mapping[str, float]]
    best: Mapping[str, float]
    catalog: np.ndarray | None = None


@dataclasses.dataclass(frozen=True)
class Findings:
    """What an evaluator has to show at the end of a run.

    Attributes:
        rows: of the table of scores: name -> {K or a column's name: fraction}.
        baselines: name -> its rows, as from `experiments.report.baselines`.
        scores: (name, text) pairs of the report's summary, among the run's facts.
        summary: such pairs behind them all.
        pictures: title -> SVG text, for the report.
        printed: lines under the table on the terminal.
        result: entries of `result.json`.
    """

    rows: Mapping[str, Mapping[int | str, float]] = dataclasses.field(default_factory=dict)
    baselines: Mapping[str, Rows] = dataclasses.field(default_factory=dict)
    scores: Sequence[tuple[str, str]] = ()
    summary: Sequence[tuple[str, str]] = ()
    pictures: Mapping[str, str] = dataclasses.field(default_factory=dict)
    printed: Sequence[str] = ()
    result: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    @classmethod
    def together(cls, several: Iterable[Findings]) -> Findings:
        """Those of several evaluators, one behind the other."""
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
    """Looks at a run at its three moments; does nothing at those that it does not override."""

    def sides(self, data: Split) -> Sequence[str]:
        """Names of `Split.tables` whose embeddings `measure` needs; "test" is always there."""
        return ()

    def before(
        self,
        run: RunPlan,
        state: State,
        embedder: TableEmbedder,
        untrained: Callable[[], Embeddings] = dict,
    ) -> None:
        """Whenever the run is begun or continued, on every worker.

        What it writes into the run's folder must be listed in `run_folder.OF_THE_FLAGS`.

        Args:
            run: what is trained.
            state: where the training stands.
            embedder: of the embedding model as it stands there.
            untrained: returns the embeddings of all images to evaluate by the backbone and its
                pooling, without the head. Before the first step only; call it on every worker.
        """

    def measure(
        self, run: RunPlan, model: keras.Model, embeddings: Embeddings
    ) -> Iterable[tuple[str, float]]:
        """(name, value) pairs for `metrics.jsonl` after an epoch, on the first worker alone.

        Args:
            run: what is trained.
            model: the fitted model.
            embeddings: `[n, d]` of each table that some evaluator's `sides` names.
        """
        return ()

    def finish(self, run: RunPlan, end: Finished) -> Findings:
        """What there is to show at the end, on the first worker alone."""
        return Findings()


class RetrievalScores(Evaluator):
    """Recall at K after each epoch; at the end every score of retrieval and clustering.

    Args:
        prefixes: lengths below d, of which recall at K is measured too: of the embeddings' first
            numbers alone, normalised anew.
    """

    def __init__(self, prefixes: Sequence[int] = ()) -> None:
        self.prefixes = tuple(prefixes)

    def sides(self, data: Split) -> Sequence[str]:
        """The test images, and the gallery where there is one."""
        return ("test",) if data.gallery is None else ("test", "gallery")

    def measure(
        self, run: RunPlan, model: keras.Model, embeddings: Embeddings
    ) -> Iterator[tuple[str, float]]:
        """Recall at each K for each distance; MAP@R where the run's patience watches it."""
        labels, gallery = run.data.test.labels, _gallery(run.data, embeddings.get("gallery"))
        found = recalls(embeddings["test"], labels, run.ks, **gallery)
        for metric, by_k in found.items():
            for k, share in by_k.items():
                yield f"test/recall@{k}/{metric}", float(share)
        if run.options.patience:
            yield MAP_AT_R, metrics.precision_at_r(embeddings["test"], labels, **gallery).map_at_r
        of_prefixes = prefix_recalls(embeddings["test"], labels, run.ks, self.prefixes, **gallery)
        for name, share in prefix_scores(of_prefixes).items():
            yield f"test/{name}", share

    def finish(self, run: RunPlan, end: Finished) -> Findings:
        """As from `keras_dml.metrics.evaluate`."""
        gallery = _gallery(run.data, end.gallery)
        scores = metrics.evaluate(end.embeddings, run.data.test.labels, run.ks, **gallery)
        rows = {f"embedding, {metric}": row for metric, row in score_rows(scores).items()}
        found = prefix_recalls(
            end.embeddings, run.data.test.labels, run.ks, self.prefixes, **gallery
        )
        rows |= prefix_rows(found)
        result = {"scores": as_json(scores) | prefix_scores(found)}
        return Findings(
            rows=rows, scores=score_lines(scores), printed=[shown_lines(scores)], result=result
        )


class CatalogScores(Evaluator):
    """Recall at K of the test images in the catalog, where there is one."""

    def sides(self, data: Split) -> Sequence[str]:
        """Both."""
        return () if data.catalog is None else ("test", "catalog")

    def measure(
        self, run: RunPlan, model: keras.Model, embeddings: Embeddings
    ) -> Iterator[tuple[str, float]]:
        """Recall at each K for each distance."""
        found = _catalog_recalls(run, embeddings["test"], embeddings.get("catalog"))
        for metric, by_k in found.items():
            for k, share in by_k.items():
                yield f"catalog/recall@{k}/{metric}", float(share)

    def finish(self, run: RunPlan, end: Finished) -> Findings:
        """A row of the table for each distance."""
        return Findings(rows=catalog_rows(_catalog_recalls(run, end.embeddings, end.catalog)))


class ClosedSetAccuracy(Evaluator):
    """The share of test images given their own class, where those classes were trained on."""

    def measure(
        self, run: RunPlan, model: keras.Model, embeddings: Embeddings
    ) -> Iterator[tuple[str, float]]:
        """The accuracy."""
        if run.data.same_classes:
            yield ACCURACY, self.accuracy(run.data, model, embeddings)

    def accuracy(self, data: Split, model: keras.Model, embeddings: Embeddings) -> float:
        """A fraction; the arguments are those of `measure`."""
        raise NotImplementedError

    def finish(self, run: RunPlan, end: Finished) -> Findings:
        """The accuracy of the kept model."""
        if ACCURACY not in end.best:
            return Findings()
        accuracy = end.best[ACCURACY]
        return Findings(
            printed=[f"accuracy on the training classes: {100 * accuracy:.1f} %"],
            result={"accuracy": accuracy},
        )


class ClassifierAccuracy(ClosedSetAccuracy):
    """The fitted model's own classifier gives the class.

    Args:
        layer: the name of its layer, from embeddings to a score for each class.
    """

    def __init__(self, layer: str = "logits") -> None:
        self.layer = layer

    def accuracy(self, data: Split, model: keras.Model, embeddings: Embeddings) -> float:
        """The share that the classifier gets right."""
        scores = keras.ops.convert_to_numpy(model.get_layer(self.layer)(embeddings["test"]))
        return float(np.mean(np.argmax(scores, axis=1) == data.test.labels))


class ClassMeanAccuracy(ClosedSetAccuracy):
    """The means of the training images' embeddings do (Boudiaf et al. 2020, appendix B)."""

    def sides(self, data: Split) -> Sequence[str]:
        """The training images."""
        return ("training",) if data.same_classes else ()

    def accuracy(self, data: Split, model: keras.Model, embeddings: Embeddings) -> float:
        """As from `keras_dml.metrics.class_mean_accuracy`."""
        return float(
            class_mean_accuracy(
                embeddings["training"], data.train.labels, embeddings["test"], data.test.labels
            )
        )


class Baseline(Evaluator):
    """Scores of something other than the trained embedding, measured before the first step.

    The run's folder stores them, so that a continued run shows the same scores.

    Attributes:
        name: of the baseline, one of `experiments.report.baselines.BASELINES`.
        file: name of the file in the run's folder.
    """

    name: ClassVar[str]
    file: ClassVar[str]

    def __init__(self) -> None:
        self._found: Mapping[str, Any] = {}

    def before(
        self,
        run: RunPlan,
        state: State,
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
            print(f"{name}: R@1 {100 * best:.1f} %", flush=True)

    def is_wanted(self, run: RunPlan) -> bool:
        """Whether the run has this baseline."""
        raise NotImplementedError

    def embeddings(
        self, run: RunPlan, state: State, untrained: Callable[[], Embeddings]
    ) -> Embeddings:
        """Return the baseline's embeddings; none if it is measured already."""
        raise NotImplementedError

    def findings(self, run: RunPlan, embeddings: Embeddings) -> dict[str, Any]:
        """Return what the file stores: rows by the evaluation of the trained embedding."""
        data, labels, test = run.data, run.data.test.labels, embeddings["test"]
        gallery = _gallery(data, embeddings.get("gallery"))
        rows = score_rows(metrics.evaluate(test, labels, run.ks, clustering=False, **gallery))
        rows |= catalog_rows(_catalog_recalls(run, test, embeddings.get("catalog")))
        # A class of one image has no MAP@R.
        return {
            name: {column: share for column, share in row.items() if not math.isnan(share)}
            for name, row in rows.items()
        }

    def finish(self, run: RunPlan, end: Finished | None) -> Findings:
        """Return the rows of the table."""
        rows = {name: row for name, row in self._found.items() if name != _PAIRS}
        if not rows or not self.is_wanted(run):
            return Findings()
        return Findings(
            rows={
                f"{self.name}, {name}": {int(k) if k.isdigit() else k: v for k, v in row.items()}
                for name, row in rows.items()
            },
            baselines={self.name: rows},
        )


class UntrainedBackbone(Baseline):
    """The backbone and its pooling with the weights that the training begins with."""

    name = baselines.UNTRAINED
    file = UNTRAINED

    def is_wanted(self, run: RunPlan) -> bool:
        """Whether the training begins with trained weights."""
        return run.options.weights != NO_WEIGHTS

    def embeddings(
        self, run: RunPlan, state: State, untrained: Callable[[], Embeddings]
    ) -> Embeddings:
        """Return them before the first step: later the weights are others."""
        return untrained() if state.step == 0 else {}

    def findings(self, run: RunPlan, embeddings: Embeddings) -> dict[str, Any]:
        """Return the rows, and how similar pairs are."""
        found = super().findings(run, embeddings)
        pairs = _similarities(run.data, lambda side, rows: embeddings[side][rows])
        if pairs is not None:
            found[_PAIRS] = [pairs.matching.tolist(), pairs.other.tolist(), *pairs[2:]]
        return found


class RawPixels(Baseline):
    """The pixels themselves, if `--raw_pixels` is given."""

    name = baselines.RAW_PIXELS
    file = RAW_PIXELS

    def is_wanted(self, run: RunPlan) -> bool:
        """Whether the options ask for it."""
        return run.options.raw_pixels

    def embeddings(
        self, run: RunPlan, state: State, untrained: Callable[[], Embeddings]
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

    def finish(self, run: RunPlan, end: Finished) -> Findings:
        """Two histograms of the same pairs."""
        embeddings = {"test": end.embeddings}
        if end.gallery is not None:
            embeddings["gallery"] = end.gallery
        name, before = self._before(run)
        after = _similarities(run.data, lambda side, rows: embeddings[side][rows])
        if before is None or after is None:
            return Findings()
        panels = {f"before, {name}": before, "after, embeddings": after}
        title = "Similarities of unseen pairs before and after training"
        return Findings(pictures={title: similarities_svg(panels)})

    def _before(self, run: RunPlan) -> tuple[str, Similarities | None]:
        """Return the name of the baseline and its pairs."""
        stored = (run.folder.read_json(UNTRAINED) or {}).get(_PAIRS)
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
        data: the images.
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


def _catalog_recalls(
    run: RunPlan, embeddings: np.ndarray, catalog: np.ndarray | None
) -> dict[str, dict[int, float]]:
    """Return the recall of the test images in the catalog; {} without a catalog."""
    if run.data.catalog is None or catalog is None:
        return {}
    labels = run.data.test.labels
    return catalog_recalls(embeddings, labels, run.ks, catalog, run.data.catalog.labels)


def _gallery(data: Split, embeddings: np.ndarray | None) -> dict[str, Any]:
    """What functions of retrieval take of the gallery; nothing if there is none."""
    if data.gallery is None:
        return {}
    return {"gallery": embeddings, "gallery_labels": data.gallery.labels}
