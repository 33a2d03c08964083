"""The report of a run, and the page of an evaluation: one function writes both."""

from __future__ import annotations

import functools
import os

import tensorflow as tf

from experiments.evaluation import scores
from experiments.evaluation.baselines import best_baseline
from experiments.evaluation.figures import Curves, over_epochs
from experiments.evaluation.labeled_embeddings import LabeledEmbeddings
from experiments.evaluation.result import Result
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
# Parts of the loss, by their keys in `metrics.jsonl`.
_LOSS_PARTS = {
    "train/tightness": (
        "Tightness is the part of the loss that draws images of a class together. Lower is "
        "tighter. It is lowest if all embeddings are equal."
    ),
    "train/contrastive": (
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
    keys = scores.columns_of(result.rows)
    write_page(
        path,
        result.title,
        links=links,
        template="report.html",
        result=result,
        headline=scores.percent(result.rows["embedding, cosine"][scores.RECALL.at_1]),
        others=_others(result),
        explanations=list(dict.fromkeys(scores.score_of(key).explanation for key in keys)),
        in_catalog=any(name.startswith(scores.CATALOG) for name in result.rows),
        columns=["", *map(scores.label_of, keys)],
        rows=[
            (name, [scores.score_of(key).text(row.get(key)) for key in keys])
            for name, row in result.rows.items()
        ],
        more=_explanations(result),
        pictures=svgs({**_curves(result), **result.figures}),
        evaluations=None if result.history is None else len(result.history),
        shown=shown_of_readable(result.images),
    )


def shown_of_readable(images: LabeledEmbeddings | None) -> Shown:
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
    baseline, of_baseline = best_baseline(result.rows)
    found = {
        "accuracy on the training classes": result.best.get(scores.ACCURACY),
        f"{baseline}, for comparison": of_baseline,
        "in the paper": result.rows.get(f"{scores.PAPER}, cosine", {}).get(scores.RECALL.at_1),
    }
    return {name: scores.RECALL.text(value) for name, value in found.items() if value is not None}


def _explanations(result: Result) -> list[str]:
    """Return the explanations of the scores in the summary, and of the parts of the loss."""
    labels = {label for label, _ in result.summary}
    of_scores = [
        s.explanation for s in scores.SCORES.values() if not s.of_distance and s.label in labels
    ]
    logged = {key for row in result.history or () for key in row}
    parts = [text for key, text in _LOSS_PARTS.items() if key in logged]
    return [text for text in (*of_scores, *parts) if text]


def _curves(result: Result) -> dict[str, Curves]:
    """Return the curves of the training: title -> figure."""
    history = result.history
    if history is None:
        return {}
    curve = functools.partial(over_epochs, history)
    name, value = best_baseline(result.rows)
    kept = over_epochs([result.best], scores.RECALL_AT_1, 100)
    images = result.measured
    figures = {
        f"R@1 on the {images}": Curves(
            {each: curve(f"test/{scores.RECALL.at_1}/{each}", 100) for each in scores.DISTANCES},
            scores.RECALL.axis,
            rings={f"kept, epoch {point[0]:g}": point for point in kept},
            levels={} if value is None else {name: 100 * value},
        ),
        f"Accuracy on the {images}": Curves(
            {"accuracy": curve(scores.ACCURACY, 100)}, "accuracy, %"
        ),
    }
    for score in scores.SCORES.values():
        if score.of_distance and score is not scores.RECALL:
            lines = {score.label: curve(f"test/{score.at_1}/cosine", score.scale)}
            figures[f"{score.label} on the {images}"] = Curves(lines, score.axis)
    for title, names in _INFORMATION_FIGURES.items():
        lines = {scores.SCORES[name].label: curve(f"test/{name}") for name in names}
        figures[f"{title} of the {images}"] = Curves(lines, "nats")
    parts = ("loss", "tightness", "contrastive", "profile_ce")
    figures["Training loss"] = Curves({part: curve(f"train/{part}") for part in parts})
    figures["Learning rate"] = Curves({"learning rate": curve("train/learning_rate")})
    return figures
