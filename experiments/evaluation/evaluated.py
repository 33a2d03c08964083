"""Score embeddings with labels, for `experiments.evaluate`."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from experiments.evaluation.labeled_embeddings import (
    LabeledEmbeddings,
    trained_classes_line,
    zero_row_lines,
    zero_rows,
)
from experiments.evaluation.pairs import SimilarityPanels, pair_rows, similarities
from experiments.evaluation.result import Result
from experiments.evaluation.scores import (
    CATALOG,
    Embeddings,
    as_json,
    evaluate,
    of_catalog,
    of_prefixes,
    recall_by_k,
    rows_of,
    score_lines,
    score_table,
)


def result_of(
    title: str,
    embedded: LabeledEmbeddings,
    ks: Sequence[int],
    prefixes: Sequence[int] = (),
    clustering: bool = True,
    facts: Mapping[str, str | None] | None = None,
    trained: int = 0,
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
    """
    queries, gallery, catalog = embedded.queries, embedded.gallery, embedded.catalog
    items = () if gallery is None else gallery[:2]
    to_score = Embeddings(*queries[:2], ks, *items)
    scores = evaluate(to_score, clustering=clustering)
    all_scores = scores | of_prefixes(to_score, prefixes)
    in_catalog = {} if catalog is None else of_catalog(*queries[:2], ks, *catalog[:2])
    rows = rows_of(all_scores) | rows_of(in_catalog, CATALOG)
    zeros = zero_rows(embedded)
    seen = trained_classes_line(trained, queries.table)
    lines = score_lines(scores)
    all_facts: dict[str, Any] = {
        "evaluated": title,
        **(facts or {}),
        "queries": len(queries.labels),
        "gallery": None if gallery is None else len(gallery.labels),
        "catalog": None if catalog is None else len(catalog.labels),
        "dimensions": queries.embeddings.shape[1],
    }
    details = {
        **all_facts,
        **{name: len(numbers) for name, numbers in zeros.items()},
        "scores": as_json(all_scores),
    }
    if in_catalog:
        details["catalog_recall"] = {
            name.removeprefix(f"{CATALOG}, "): row
            for name, row in recall_by_k(rows_of(in_catalog, CATALOG)).items()
        }
    shown = [
        (name.capitalize(), f"{fact:,}" if isinstance(fact, int) else fact)
        for name, fact in all_facts.items()
        if fact is not None
    ]
    texts = [f"{name}: {text}" for name, text in lines]
    zero_lines = zero_row_lines(zeros)
    return Result(
        title=title,
        rows=rows,
        table="\n".join(filter(None, [score_table(rows), *texts, seen, *zero_lines])),
        details=details,
        summary=[
            *shown,
            *([("Training classes", seen)] if seen else []),
            *lines,
            *(("Rows of zeros", line) for line in zero_lines),
            ("Finished", time.strftime("%Y-%m-%d %H:%M")),
        ],
        history=None,
        images=embedded,
        figures={"Similarities of pairs": _pairs(embedded)},
    )


def _pairs(embedded: LabeledEmbeddings) -> SimilarityPanels:
    sides = [embedded.queries, *([embedded.gallery] if embedded.gallery else [])]
    arrays: list[np.ndarray] = []
    for side, rows in zip(sides, pair_rows(*(side.labels for side in sides))):
        arrays += [side.embeddings[rows], side.labels[rows]]
    return SimilarityPanels({"embeddings": similarities(*arrays)})
