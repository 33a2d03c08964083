"""Score embeddings with labels, for `experiments.evaluate`."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any, cast

from experiments.evaluation import evaluators, labeled_embeddings
from experiments.evaluation.evaluate_options import EvaluateOptions
from experiments.evaluation.loss_parts import loss_parts_findings
from experiments.evaluation.pairs import similarities_of_some, similarity_histograms
from experiments.evaluation.result import Findings, Result
from experiments.evaluation.scores import Embeddings, score_table
from keras_dml._common.types import Neighbors


def result_of(
    options: EvaluateOptions,
    title: str,
    embedded: labeled_embeddings.LabeledEmbeddings,
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
    scored = Embeddings(queries, ks, gallery, cast(Neighbors, options.neighbors))
    findings = Findings.together(
        [
            evaluators.retrieval_findings(scored, catalog, prefixes, options.clustering, classes),
            evaluators.information_findings(scored, options.information),
            loss_parts_findings(queries, options.loss_parts),
        ]
    )
    zeros, warnings = labeled_embeddings.zero_rows(embedded)
    if seen := labeled_embeddings.trained_classes_line(trained, queries.table):
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
    lines = [f"{name}: {text}" for name, text in findings.lines]
    finished = ("Finished", time.strftime("%Y-%m-%d %H:%M"))
    return Result(
        title=title,
        rows=findings.rows,
        table="\n".join([score_table(findings.rows), *lines, *(text for _, text in warnings)]),
        details={**all_facts, **zeros, **findings.result},
        summary=[*shown, *findings.lines, *warnings, finished],
        history=None,
        images=embedded,
        figures={"Similarities of pairs": figure},
    )
