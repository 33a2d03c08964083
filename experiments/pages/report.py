"""The report of a run, and the page of an evaluation: one function writes both."""

from __future__ import annotations

import functools
import os
from collections.abc import Sequence

import tensorflow as tf

from experiments.evaluation.conclusions import best_baseline
from experiments.evaluation.embedded_sets import EmbeddedSets
from experiments.evaluation.figures import Curves, over_epochs
from experiments.evaluation.measurement import PAPER, log_key
from experiments.evaluation.result import Result
from experiments.evaluation.score_table import label_of, score_of, score_table
from experiments.evaluation.scores import ACCURACY, DISTANCES, RECALL, RECALL_AT_1, SCORES
from experiments.pages.figures import svgs
from experiments.pages.page import Links, write_page
from experiments.pages.retrieval import Shown, shown_of
from pipelines import find_bad_images

# The scores of information with a curve, by the title of their figure.
_INFORMATION_FIGURES = {
    "Entropies": ("entropy_pairwise/l2", "entropy_within/l2"),
    "Mutual information": (
        "information_neighbors/cosine",
        "information_neighbors/l2",
        "class_entropy",
    ),
}
# Parts of the loss, by their names in `metrics.jsonl`.
_LOSS_PARTS = {
    log_key("tightness", side="train"): (
        "Tightness is the part of the loss that draws images of a class together. Lower is "
        "tighter. It is lowest if all embeddings are equal."
    ),
    log_key("contrastive", side="train"): (
        "Contrastive is the part of the loss that drives classes apart. The scale depends on the "
        "loss: compare epochs, not losses."
    ),
}


def write_report(
    path: str | os.PathLike[str],
    result: Result,
    links: Links | None = None,
) -> None:
    """Write the page of a run or of an evaluation.

    The queries with their neighbors follow figure 4 of RankMI (Kemertas et al. 2020). The same
    result gives the same bytes.

    Args:
        path: The file; its folder exists.
        result: The result.
        links: Paths of other pages -> their names.
    """
    table, recall = score_table(result.measurements), RECALL.of(result.measurements)
    write_page(
        path,
        result.title,
        links=links,
        template="report.html",
        result=result,
        headline=RECALL.text(None if recall is None else recall.value),
        others=_others(result),
        explanations=list(dict.fromkeys(score_of(each).explanation for each in table.columns)),
        in_catalog=any(each.side == "catalog" for each in result.measurements),
        columns=["", *map(label_of, table.columns)],
        rows=table.rows,
        more=_explanations(result),
        of_information=_meanings(result.information),
        pictures=svgs({**_curves(result), **result.figures}),
        evaluations=None if result.history is None else len(result.history),
        shown=shown_of_readable(result.images),
    )


def shown_of_readable(images: EmbeddedSets | None) -> Shown:
    """Return the pictures of a report; none if the images are unknown or not readable."""
    if images is None or images.queries.table is None:
        return Shown()
    try:
        return shown_of(images)
    except tf.errors.OpError as error:
        why = " ".join(error.message.split())
        for table in (each.table for _, each in images.sets if each.table is not None):
            # To decode every image again takes too long for the pictures of a page.
            for _, name, reason in find_bad_images(table, decode=False)[:1]:
                why = f"{name}: {reason}"
        print(f"the page shows no pictures: {why}")
        return Shown()


def _others(result: Result) -> dict[str, str]:
    """Return the smaller numbers of the headline."""
    found = {"accuracy on the training classes": result.best.get(ACCURACY)}
    if baseline := best_baseline(result.measurements):
        found[f"{baseline.row}, for comparison"] = baseline.value
    if paper := RECALL.of(result.measurements, part=PAPER):
        found["in the paper"] = paper.value
    return {name: RECALL.text(value) for name, value in found.items() if value is not None}


def _explanations(result: Result) -> list[str]:
    """Return the explanations of the scores in the summary, and of the parts of the loss."""
    logged = {key for row in result.history or () for key in row}
    parts = [text for key, text in _LOSS_PARTS.items() if key in logged]
    return [*_meanings(result.summary), *parts]


def _meanings(lines: Sequence[tuple[str, str]]) -> list[str]:
    """Return the explanations of the scores in (label, text) pairs."""
    labels = {label for label, _ in lines}
    return [
        score.explanation
        for score in SCORES.values()
        if not score.of_distance and score.label in labels and score.explanation
    ]


def _curves(result: Result) -> dict[str, Curves]:
    """Return the curves of the training: title -> figure."""
    history = result.history
    if history is None:
        return {}
    curve = functools.partial(over_epochs, history)
    baseline = best_baseline(result.measurements)
    kept = over_epochs([result.best], RECALL_AT_1, 100)
    images = result.measured
    figures = {
        f"R@1 on the {images}": Curves(
            {each: curve(RECALL.log_key(each), 100) for each in DISTANCES},
            RECALL.axis,
            rings={f"kept, epoch {point[0]:g}": point for point in kept},
            levels={} if baseline is None else {baseline.row: 100 * baseline.value},
        ),
        f"Accuracy on the {images}": Curves({"accuracy": curve(ACCURACY, 100)}, "accuracy, %"),
    }
    for score in SCORES.values():
        if score.of_distance and score is not RECALL:
            lines = {score.label: curve(score.log_key(), score.scale)}
            figures[f"{score.label} on the {images}"] = Curves(lines, score.axis)
    for title, names in _INFORMATION_FIGURES.items():
        lines = {SCORES[name].label: curve(SCORES[name].log_key()) for name in names}
        figures[f"{title} of the {images}"] = Curves(lines, "nats")
    parts = ("loss", "tightness", "contrastive", "profile_ce")
    figures["Training loss"] = Curves({part: curve(log_key(part, side="train")) for part in parts})
    rate = curve(log_key("learning_rate", side="train"))
    figures["Learning rate"] = Curves({"learning rate": rate})
    return figures
