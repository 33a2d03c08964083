"""Score embeddings with labels, for `experiments.evaluate`."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from experiments.evaluation.evaluators import (
    information_findings,
    retrieval_findings,
    under_relation,
)
from experiments.evaluation.labeled_embeddings import (
    LabeledEmbeddings,
    trained_classes_line,
    zero_row_lines,
    zero_rows,
)
from experiments.evaluation.pairs import similarities_of_some, similarity_histograms
from experiments.evaluation.result import Findings, Result
from experiments.evaluation.scores import Embeddings, score_table
from experiments.options.run_options import RelationOptions
from keras_dml._common.types import Neighbors


def result_of(
    title: str,
    embedded: LabeledEmbeddings,
    ks: Sequence[int],
    prefixes: Sequence[int] = (),
    clustering: bool = True,
    facts: Mapping[str, str | None] | None = None,
    trained: int = 0,
    information: bool = False,
    neighbors: Neighbors = "auto",
    relation: RelationOptions | None = None,
) -> Result:
    """Return every score of embeddings.

    Args:
        title: Title of the page.
        embedded: The embeddings.
        ks: Values of K.
        prefixes: Lengths of prefixes of the embeddings to score too.
        clustering: Whether to compute the scores that need k-means.
        facts: First entries of the JSON file and of the summary.
        trained: How many classes of the queries are training classes of the dataset.
        information: Whether to fit the probes of the information, on every row.
        neighbors: How the neighbors are found, as in `keras_dml.metrics.evaluate`.
        relation: The options of a relation, whose matches are scored too.
    """
    queries, gallery, catalog = embedded.queries, embedded.gallery, embedded.catalog
    scored = Embeddings(
        queries.embeddings,
        queries.labels,
        ks,
        None if gallery is None else gallery.embeddings,
        None if gallery is None else gallery.labels,
        neighbors,
    )
    of_catalog = None if catalog is None else catalog[:2]
    names: tuple[str, ...] = ()
    # The labels of a file are names, also if its pictures are known.
    if queries.table is not None and np.array_equal(queries.table.labels, queries.labels):
        names = queries.table.class_names
    related = under_relation(scored, relation, queries.table)
    findings = Findings.together(
        [
            retrieval_findings(scored, of_catalog, prefixes, clustering, related),
            information_findings(scored, information, names),
        ]
    )
    zeros = zero_rows(embedded)
    seen = trained_classes_line(trained, queries.table)
    all_facts: dict[str, Any] = {
        "evaluated": title,
        **(facts or {}),
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
    warnings = [("Training classes", seen)] if seen else []
    warnings += [("Rows of zeros", line) for line in zero_row_lines(zeros)]
    sides = {"test": queries} | ({} if gallery is None else {"gallery": gallery})
    pairs = similarities_of_some(
        {side: each.labels for side, each in sides.items()},
        lambda side, rows: sides[side].embeddings[rows],
    )
    figure = {} if pairs is None else {"embeddings": pairs}
    return Result(
        title=title,
        rows=findings.rows,
        table="\n".join(
            [
                score_table(findings.rows),
                *(f"{name}: {text}" for name, text in findings.lines),
                *(text for _, text in warnings),
            ]
        ),
        details={
            **all_facts,
            **{name: len(numbers) for name, numbers in zeros.items()},
            **findings.result,
        },
        summary=[
            *shown,
            *findings.lines,
            *warnings,
            ("Finished", time.strftime("%Y-%m-%d %H:%M")),
        ],
        history=None,
        images=embedded,
        figures={"Similarities of pairs": similarity_histograms(figure)},
    )
