"""The results of evaluators, and the result of a run or of an evaluation with its JSON file."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from experiments.evaluation.scores import PAPER, ClassScores, Rows, as_json, recall_by_k

if TYPE_CHECKING:
    from experiments.evaluation.labeled_embeddings import LabeledEmbeddings

#: Files in the folder of a run.
REPORT, FLAGS_FILE = "report.html", "flags.txt"


@dataclasses.dataclass(frozen=True)
class Findings:
    """The results of an evaluator at the end of a run.

    Attributes:
        rows: Rows of the table of scores.
        baselines: Name of a baseline -> its rows.
        classes: "embedding" or the name of a baseline -> its scores of each class.
        lines: (label, text) pairs below the table, and in the report's summary.
        summary: (label, text) pairs at the end of the report's summary.
        figures: Title -> a figure in the report, from `experiments.evaluation.figures`.
        printed: Further lines below the table on the terminal.
        result: Entries of `result.json`.
    """

    rows: Rows = dataclasses.field(default_factory=dict)
    baselines: Mapping[str, Rows] = dataclasses.field(default_factory=dict)
    classes: Mapping[str, ClassScores] = dataclasses.field(default_factory=dict)
    lines: Sequence[tuple[str, str]] = ()
    summary: Sequence[tuple[str, str]] = ()
    figures: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    printed: Sequence[str] = ()
    result: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    @classmethod
    def together(cls, several: Iterable[Findings]) -> Findings:
        """Return the findings of several evaluators as one. Entries of one name are joined."""
        several = list(several)
        merged: dict[str, Any] = {}
        for field in dataclasses.fields(cls):
            values = [getattr(one, field.name) for one in several]
            if isinstance(getattr(cls(), field.name), dict):
                merged[field.name] = {}
                for key, value in [item for each in values for item in each.items()]:
                    former = merged[field.name].get(key)
                    both = isinstance(former, dict) and isinstance(value, dict)
                    merged[field.name][key] = {**former, **value} if both else value
            else:
                merged[field.name] = [line for each in values for line in each]
        return cls(**merged)


@dataclasses.dataclass(frozen=True)
class Result:
    """The scores of a model, and everything else that a page shows of it.

    Attributes:
        title: Title of the page.
        rows: The table of scores. The headline is R@1 of the row "embedding, cosine", next to the
            baseline and to "paper, cosine", if the table has them.
        table: The scores as text, for the terminal.
        details: Entries of the JSON file in addition to the recall and the table.
        whose: Which model or images the scores belong to, if not this model and unseen images.
        note: The same in sentences.
        conclusions: Sentences about the scores, from `experiments.evaluation.conclusions`. A page
            begins with them.
        summary: (label, text) pairs, such as sizes, backbone, and times.
        history: The objects of `metrics.jsonl`, in order; None without a training.
        best: The object of `history` whose model was kept.
        why_kept: Why this model was kept, such as "the last".
        images: The embedded images, for queries with their neighbors and for the map.
        figures: Title -> a figure, from `experiments.evaluation.figures`.
        reproduce: The command that repeats the run, and its versions.
        flags: The resolved flags as text.
        measured: Which images the curves are measured on.
    """

    title: str
    rows: Rows
    table: str = ""
    details: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    whose: str = ""
    note: str = ""
    conclusions: Sequence[str] = ()
    summary: Sequence[tuple[str, str]] = ()
    history: Sequence[Mapping[str, float]] | None = ()
    best: Mapping[str, float] = dataclasses.field(default_factory=dict)
    why_kept: str = ""
    images: LabeledEmbeddings | None = None
    figures: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    reproduce: str = ""
    flags: str = ""
    measured: str = "test images"

    def as_json(self) -> dict[str, Any]:
        """Return the content of the JSON file."""
        own = {name: row for name, row in self.rows.items() if not name.startswith(PAPER)}
        rows = {name: as_json(row) for name, row in own.items()}
        recall = recall_by_k(own)
        return {"recall": recall, "rows": rows, **self.details, "table": self.table}
