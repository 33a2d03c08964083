"""What looks at the embeddings of a run: before its training, after an epoch, at its end.

Each is one object in the list that the run's objective gives, `Objective.evaluators`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import keras
import numpy as np

from experiments.embedding.table_embedder import (
    TableEmbedder,
    catalog_recalls,
    prefix_recalls,
    raw_pixels,
    recalls,
)
from experiments.report.page import best_raw_pixels
from experiments.report.scores import (
    as_json,
    catalog_rows,
    prefix_rows,
    prefix_scores,
    score_lines,
    score_rows,
    shown_lines,
)
from experiments.report.similarity_figure import pair_rows, similarities, similarities_svg
from experiments.training.checkpoint import State
from experiments.training.patience import MAP_AT_R
from experiments.training.run_files import RAW_PIXELS
from keras_dml import metrics
from keras_dml.metrics import class_mean_accuracy
from pipelines import Split

if TYPE_CHECKING:
    from experiments.training.plan import RunPlan

BEST = "test/recall@1/cosine"
ACCURACY = "test/accuracy"


def score(row: Mapping[str, float]) -> float:
    """What the kept model is chosen by.

    Accuracy where the test classes were trained on, MAP@R where a run has patience, else R@1.

    Args:
        row: an object of `metrics.jsonl`.
    """
    return row.get(ACCURACY, row.get(MAP_AT_R, row[BEST]))


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
        scores: (name, text) pairs of the report's summary, among the run's facts.
        summary: such pairs behind them all.
        pictures: title -> SVG text, for the report.
        printed: lines under the table on the terminal.
        result: entries of `result.json`.
    """

    rows: Mapping[str, Mapping[int | str, float]] = dataclasses.field(default_factory=dict)
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

    def before(self, run: RunPlan, state: State, embedder: TableEmbedder) -> None:
        """Whenever the run is begun or continued, on every worker.

        What it writes into the run's folder must be listed in `run_folder.OF_THE_FLAGS`.

        Args:
            run: what is trained.
            state: where the training stands.
            embedder: of the embedding model as it stands there.
        """

    def measure(
        self, run: RunPlan, model: keras.Model, embeddings: Mapping[str, np.ndarray]
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
        self, run: RunPlan, model: keras.Model, embeddings: Mapping[str, np.ndarray]
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
        self, run: RunPlan, model: keras.Model, embeddings: Mapping[str, np.ndarray]
    ) -> Iterator[tuple[str, float]]:
        """Recall at each K for each distance."""
        found = self._recalls(run, embeddings["test"], embeddings.get("catalog"))
        for metric, by_k in found.items():
            for k, share in by_k.items():
                yield f"catalog/recall@{k}/{metric}", float(share)

    def finish(self, run: RunPlan, end: Finished) -> Findings:
        """A row of the table for each distance."""
        return Findings(rows=catalog_rows(self._recalls(run, end.embeddings, end.catalog)))

    def _recalls(
        self, run: RunPlan, embeddings: np.ndarray, catalog: np.ndarray | None
    ) -> dict[str, dict[int, float]]:
        if run.data.catalog is None or catalog is None:
            return {}
        labels = run.data.test.labels
        return catalog_recalls(embeddings, labels, run.ks, catalog, run.data.catalog.labels)


class ClosedSetAccuracy(Evaluator):
    """The share of test images given their own class, where those classes were trained on."""

    def measure(
        self, run: RunPlan, model: keras.Model, embeddings: Mapping[str, np.ndarray]
    ) -> Iterator[tuple[str, float]]:
        """The accuracy."""
        if run.data.same_classes:
            yield ACCURACY, self.accuracy(run.data, model, embeddings)

    def accuracy(
        self, data: Split, model: keras.Model, embeddings: Mapping[str, np.ndarray]
    ) -> float:
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

    def accuracy(
        self, data: Split, model: keras.Model, embeddings: Mapping[str, np.ndarray]
    ) -> float:
        """The share that the classifier gets right."""
        scores = keras.ops.convert_to_numpy(model.get_layer(self.layer)(embeddings["test"]))
        return float(np.mean(np.argmax(scores, axis=1) == data.test.labels))


class ClassMeanAccuracy(ClosedSetAccuracy):
    """The means of the training images' embeddings do (Boudiaf et al. 2020, appendix B)."""

    def sides(self, data: Split) -> Sequence[str]:
        """The training images."""
        return ("training",) if data.same_classes else ()

    def accuracy(
        self, data: Split, model: keras.Model, embeddings: Mapping[str, np.ndarray]
    ) -> float:
        """As from `keras_dml.metrics.class_mean_accuracy`."""
        return float(
            class_mean_accuracy(
                embeddings["training"], data.train.labels, embeddings["test"], data.test.labels
            )
        )


class RawPixels(Evaluator):
    """Recall of the pixels themselves, the floor to beat: computed once, where it is asked for."""

    def __init__(self) -> None:
        self._found: Mapping[str, Mapping[str, float]] | None = None

    def before(self, run: RunPlan, state: State, embedder: TableEmbedder) -> None:
        """Compute it unless the run's folder has it; print R@1."""
        folder, data = run.folder, run.data
        if not run.options.raw_pixels or not folder.writes:
            return
        self._found = folder.read_json(RAW_PIXELS)
        if self._found is None:
            pixels = {
                side: raw_pixels(table, run.options.eval_batch_size)
                for side, table in data.tables.items()
                if side in ("test", "gallery")
            }
            gallery = _gallery(data, pixels.get("gallery"))
            found = recalls(pixels["test"], data.test.labels, run.ks, **gallery)
            folder.write_json(RAW_PIXELS, found)
            self._found = folder.read_json(RAW_PIXELS)
        name, best = best_raw_pixels(self._rows())
        if best is not None:
            print(f"{name}: R@1 {100 * best:.1f} %")

    def finish(self, run: RunPlan, end: Finished) -> Findings:
        """A row of the table for each distance."""
        if not run.options.raw_pixels:
            return Findings()
        return Findings(rows=self._rows())

    def _rows(self) -> dict[str, dict[int | str, float]]:
        return {
            f"raw pixels, {metric}": {int(k): v for k, v in by_k.items()}
            for metric, by_k in (self._found or {}).items()
        }


class PairSimilarities(Evaluator):
    """How similar matching and other pairs are: as pixels before, as embeddings after training."""

    def finish(self, run: RunPlan, end: Finished) -> Findings:
        """Two histograms of the same pairs."""
        sides = [(run.data.test, end.embeddings)]
        if run.data.gallery is not None and end.gallery is not None:
            sides.append((run.data.gallery, end.gallery))
        before: list[np.ndarray] = []
        after: list[np.ndarray] = []
        chosen = pair_rows(*(table.labels for table, _ in sides))
        for (table, embeddings), rows in zip(sides, chosen):
            if not len(rows):
                return Findings()
            labels = table.labels[rows]
            before += [raw_pixels(table.select(rows), run.options.eval_batch_size), labels]
            after += [embeddings[rows], labels]
        panels = {
            "before, raw pixels": similarities(*before),
            "after, embeddings": similarities(*after),
        }
        title = "Similarities of unseen pairs before and after training"
        return Findings(pictures={title: similarities_svg(panels)})


def _gallery(data: Split, embeddings: np.ndarray | None) -> dict[str, Any]:
    """What functions of retrieval take of the gallery; nothing if there is none."""
    if data.gallery is None:
        return {}
    return {"gallery": embeddings, "gallery_labels": data.gallery.labels}
