"""TREC run and qrels files, which trec_eval, ranx, and ir-measures read."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from keras_dml import relations
from keras_dml._common.errors import ArgumentError, argument_error
from keras_dml._common.types import Metric, StrPath
from keras_dml._files.atomic import replacing_all
from keras_dml.metrics.neighbors import retrieval_task


def write_trec(
    run_path: StrPath,
    qrels_path: StrPath,
    embeddings: npt.ArrayLike,
    labels: npt.ArrayLike,
    k: int = 100,
    metric: Metric = "cosine",
    gallery: npt.ArrayLike | None = None,
    gallery_labels: npt.ArrayLike | None = None,
    *,
    relation: relations.RelationLike = None,
    tag: str = "keras_dml",
) -> None:
    """Write the k nearest items of each query as a TREC run, and all relevant items as qrels.

    Query i has the id `i`, and item j of the gallery (or of the embeddings) has the id `j`. A line
    of the run is `query Q0 item rank score tag`, and a line of the qrels is `query 0 item gain`.
    Queries without a relevant item are in neither file, as in `ranking_scores`. Only relevant items
    have a gain, so that MRR and precision count the same items there. nDCG of `ranking_scores` also
    counts the gains of other items, such as other products of the category under a `Hierarchy`.

    Tools sort a run by score and break ties in their own way. The score of a rank is therefore the
    negative rank, so that every tool keeps the order.

    Examples:
        >>> write_trec("run.txt", "qrels.txt", embeddings, labels, k=10)
        >>> open("qrels.txt").readline()
        '0 0 1 1\\n'

    Args:
        run_path, qrels_path: Files to write.
        embeddings, labels, metric, gallery, gallery_labels, relation: As for `ranking_scores`.
        k: Number of items in the run of each query, at most n - 1, or m.
        tag: Name of the run, one word.

    Raises:
        ValueError: As in `ranking_scores`. Also if both paths are one file, `tag` is not one word,
            or a gain of the relation is not a whole number.
    """
    if len(tag.split()) != 1:
        raise argument_error("tag", "one word", tag)
    task = retrieval_task(embeddings, labels, metric, gallery, gallery_labels, relation)
    (k,) = task.check_ks("k", [k])
    rows = task.matched
    every = np.arange(len(task.items))[None]
    with replacing_all(run_path=run_path, qrels_path=qrels_path) as (run, qrels):
        with run.open("w") as file:
            for block, found, _ in task.neighbors(rows, k):
                for query, nearest in zip(rows[block], found):
                    file.writelines(
                        f"{query} Q0 {item} {rank} {-rank} {tag}\n"
                        for rank, item in enumerate(nearest, 1)
                    )
        with qrels.open("w") as file:
            for query in rows:
                gains = task.relevance.gains(np.array([query]), every)[0]
                gains = np.where(task.relevance.mask(np.array([query]))[0], gains, 0)
                if task.own_rows:
                    gains[query] = 0
                fractions = gains[gains != np.round(gains)]
                if len(fractions):
                    raise ArgumentError(
                        f"relation must have whole numbers as gains, but got {fractions[0]}. A "
                        "qrels file has no fractions."
                    )
                file.writelines(
                    f"{query} 0 {item} {int(gains[item])}\n" for item in np.flatnonzero(gains)
                )
