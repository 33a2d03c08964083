"""Score embeddings with labels, for `experiments.evaluate`."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any, cast

import numpy as np
from keras import ops

from experiments.evaluation import embedded_sets, evaluators
from experiments.evaluation.embedded_sets import EmbeddedSet
from experiments.evaluation.figures import similarities_of_some, similarity_histograms
from experiments.evaluation.result import Findings, Result, scores_json
from experiments.evaluation.score_table import score_text
from experiments.evaluation.scores import ScoredSet
from experiments.options.errors import UsageError
from experiments.options.evaluate_options import EvaluateOptions
from experiments.options.loss_flags import naming_flags
from keras_dml import losses
from keras_dml._common.types import Neighbors
from keras_dml.retrieval.reranking import Reranked, Reranking, check_reciprocal_rows


def result_of(
    options: EvaluateOptions,
    title: str,
    embedded: embedded_sets.EmbeddedSets,
    ks: Sequence[int],
    prefixes: Sequence[int],
    facts: Mapping[str, str | None],
    trained: int,
    classes: evaluators.RelatedClasses | None = None,
) -> Result:
    """Return every score of embeddings.

    Args:
        options: Which scores, and how the neighbors are found.
        title: Title of the page.
        embedded: The embeddings.
        ks: Values of K.
        prefixes: Lengths of prefixes of the embeddings to score too.
        facts: First entries of the JSON file and of the summary.
        trained: How many classes of the queries are training classes of the dataset.
        classes: The relation of `--relation` on these classes.
    """
    queries, gallery, catalog = embedded.queries, embedded.gallery, embedded.catalog
    scored = ScoredSet(queries, ks, gallery, cast(Neighbors, options.neighbors))
    findings = Findings.together(
        [
            evaluators.retrieval_findings(
                scored, catalog, prefixes, options.clustering, classes, options.rerankings
            ),
            evaluators.information_findings(scored, options.information),
            loss_parts_findings(queries, options.loss_parts),
        ]
    )
    zeros, warnings = embedded_sets.zero_rows(embedded)
    if seen := embedded_sets.trained_classes_line(trained, queries.table):
        warnings.insert(0, ("Training classes", seen))
    all_facts: dict[str, Any] = {
        "evaluated": title,
        **facts,
        "queries": len(queries.labels),
        "gallery": None if gallery is None else len(gallery.labels),
        "catalog": None if catalog is None else len(catalog.labels),
        "dimensions": queries.embeddings.shape[1],
    }
    shown = [
        (name.capitalize(), f"{fact:,}" if isinstance(fact, int) else fact)
        for name, fact in all_facts.items()
        if fact is not None
    ]
    sides = {"test": queries} | ({} if gallery is None else {"gallery": gallery})
    pairs = similarities_of_some(
        {side: each.labels for side, each in sides.items()},
        lambda side, rows: sides[side].embeddings[rows],
    )
    figure = similarity_histograms({} if pairs is None else {"embeddings": pairs})
    printed = [*findings.lines, *(findings.information if options.information else ())]
    lines = [f"{name}: {text}" for name, text in printed]
    finished = ("Finished", time.strftime("%Y-%m-%d %H:%M"))
    return Result(
        title=title,
        measurements=findings.measurements,
        table="\n".join(
            [score_text(findings.measurements), *lines, *(text for _, text in warnings)]
        ),
        details={
            **all_facts,
            **zeros,
            "scores": scores_json(findings.measurements),
            **findings.result,
        },
        summary=[*shown, *findings.lines, *warnings, *findings.summary, finished],
        information=findings.information,
        history=None,
        images=embedded,
        figures={"Similarities of pairs": figure},
    )


# The losses compare all images with each other.
_MOST_IMAGES = 5_000


def check_loss_parts(names: Sequence[str], images: int) -> None:
    """Raise an error for losses that `loss_parts_findings` cannot evaluate.

    Raises:
        UsageError: There are too many images, or a loss has another input than embeddings.
        ArgumentError: A name is not the name of a loss.
    """
    if names and images > _MOST_IMAGES:
        raise UsageError(
            f"loss_parts must be unset for more than {_MOST_IMAGES:,} images, but got {images:,}. "
            "Evaluate fewer classes, for example with --test_classes."
        )
    for name in names:
        with naming_flags({"loss": "loss_parts"}):
            loss = losses.get(name)
        if loss.kind not in ("pairs", "beside_classifier") or loss.boundaries:
            raise UsageError(
                f"loss_parts must be losses over embeddings, such as snca, but got {name}."
            )


def check_rerankings(rerankings: Mapping[str, Reranking], images: int) -> None:
    """Raise an error for re-rankings that cannot order so many images.

    Args:
        rerankings: The re-rankings by name.
        images: Number of queries or of items in the gallery, whichever is larger.

    Raises:
        ArgumentError: There are too many images, or an argument is out of range.
    """
    with naming_flags({"k": "rerank_k", "alpha": "rerank_alpha", "k1": "rerank_k1",
                       "k2": "rerank_k2", "weight": "rerank_weight"}):  # fmt: skip
        for rerank in rerankings.values():
            Reranked(rerank, np.eye(2), np.eye(2))
    if "k_reciprocal" in rerankings:
        check_reciprocal_rows(images, "The queries and the gallery")


def loss_parts_findings(embedded: EmbeddedSet, names: Sequence[str]) -> Findings:
    """Return the mean parts of each loss, with the default arguments of the loss."""
    class_ids = np.unique(embedded.labels, return_inverse=True)[1]
    embeddings = np.asarray(embedded.embeddings, np.float64)
    found: dict[str, dict[str, float]] = {}
    for name in names:
        parts = losses.get(name, dtype="float64").parts(class_ids, embeddings)
        tightness, contrastive = (float(ops.mean(part)) for part in parts)
        found[name] = {"tightness": tightness, "contrastive": contrastive}
    return Findings(
        lines=[
            (name, f"tightness {part['tightness']:.4g}, contrastive {part['contrastive']:.4g}")
            for name, part in found.items()
        ],
        result={"loss_parts": found} if found else {},
    )
