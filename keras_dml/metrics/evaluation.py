"""All metrics of a set of embeddings in one call."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt

from keras_dml import relations
from keras_dml._common.checks import check_bool, check_seed, items_of
from keras_dml._common.errors import argument_error, as_array
from keras_dml._common.labels import joined_labels
from keras_dml._common.types import METRICS, Metric, Neighbors
from keras_dml.metrics.clustering import check_scikit_learn, clustering_scores
from keras_dml.metrics.distances import distance_histograms, sampled_divergence

# The values of the benchmarks, first CUB and Cars. Values above the number of items are dropped.
_KS = (1, 2, 4, 8, 10, 100, 1000)


def evaluate(
    embeddings: npt.ArrayLike,
    labels: npt.ArrayLike,
    ks: Iterable[int] | None = None,
    metric: Metric | Iterable[Metric] = METRICS,
    gallery: npt.ArrayLike | None = None,
    gallery_labels: npt.ArrayLike | None = None,
    clustering: bool = True,
    seed: int = 0,
    *,
    relation: relations.RelationLike = None,
    neighbors: Neighbors = "auto",
) -> dict[str, float]:
    """Compute retrieval, clustering, and separation scores of embeddings from any model.

    Never stores n × n numbers. Needs a few hundred MB in addition to the embeddings.

    Examples:
        >>> labels = np.array([0, 0, 1, 1])
        >>> z = np.array([[3, 4, 0], [4, 3, 0], [-4, 0, 3], [0, 0, 5]], "float32") / 5
        >>> scores = evaluate(z, labels, ks=[1], clustering=False)
        >>> scores["recall@1/cosine"], scores["map@r/cosine"]
        (1.0, 1.0)

    Args:
        embeddings: Numbers `[n, d]`, n at least 2 (1 with a gallery).
        labels: Class of each row, `[n]`, as numbers or strings.
        ks: Values of K for R@K. The default is 1, 2, 4, 8, 10, 100, 1000, up to the number of
            items.
        metric: "cosine", "l2" (on the unnormalized embeddings), or a list of both.
        gallery: Numbers `[m, d]` to search instead of the other rows.
        gallery_labels: Class of each row of the gallery, `[m]`.
        clustering: Whether to run k-means (with a gallery, on both sets together).
        seed: Seed of k-means, and of the sample of queries for the certificates.
        relation: A relation of `keras_dml.relations`. Its positives count as rows of the query's
            class, and `labels` are its labels. The scores then include `ndcg@10/cosine`
            (`ranking_scores`), and exclude `nmi`, `ami`, and `jensen_shannon`, which need classes.
        neighbors: How ScaNN finds the neighbors. "auto" compares each query with all items below
            200,000 rows (with a gallery: below as many pairs of a row and an item), and uses a tree
            above. "scann" always uses the tree. "exact" compares each query with all items by
            NumPy, with the same scores as ScaNN's comparison. NumPy also takes the place of a
            missing ScaNN. For a tree, the logger "keras_dml" then first gets the time that it
            takes.

    Returns:
        A dictionary of floats, in this order: for each metric `recall@K/cosine` for each K,
        `map@r/cosine`, and `r_precision/cosine` (see `recall_at_k` and `precision_at_r`); `nmi` and
        `ami` (`clustering_scores`); `jensen_shannon`, the divergence in nats between the distances
        of positive and of negative pairs (`distance_histograms`; NaN without pairs of one kind);
        and the integer `queries_without_match`. R@K counts these queries as misses, and the two
        precisions exclude them.

        With "scann", each retrieval score has a certificate: `recall@1/cosine/exact` is the exact
        score of at most 5,000 random queries, and `recall@1/cosine/exact_low` and `exact_high` are
        its 95 % interval. If the queries have more than 1,000 matches on average, `map@r` and
        `r_precision` are the exact scores of the sample. `jensen_shannon` is then the divergence of
        the pairs of 2,000 random queries with all items.

    Raises:
        ValueError: The embeddings are not finite (the message has the count and the first rows),
            labels have another shape, a K is out of range, the metric or the value of neighbors is
            unknown, or only one of gallery and gallery_labels is set.
        MissingExtraError: scikit-learn is not installed, with `clustering`.
    """
    chosen = [metric] if isinstance(metric, str) else items_of(metric)
    if not chosen or any(not isinstance(name, str) or name not in METRICS for name in chosen):
        raise argument_error("metric", f"one of {METRICS}, or a list of them", metric)
    seed = check_seed("seed", seed)
    by_class = relations.get(relation).of_classes
    clustering = check_bool("clustering", clustering) and by_class
    # Imported here, so that chains of imports stay short.
    from keras_dml.metrics.neighbors import engine_of, retrieval_task
    from keras_dml.metrics.retrieval_scores import approximate_scores, ranking_scores_of

    engine = engine_of(neighbors, embeddings, gallery)
    if clustering:
        check_scikit_learn()  # fail before the work
    sets: dict[str, Any] = {"gallery": gallery, "gallery_labels": gallery_labels}
    items = _count("embeddings", embeddings) - 1
    if gallery is not None:
        items = _count("gallery", gallery)
    if ks is None:
        ks = [k for k in _KS if k <= items] or [1]
    ks = list(ks) if isinstance(ks, Iterable) else ks  # an iterator can be read once
    scores: dict[str, float] = {}
    for name in chosen:
        found = approximate_scores(
            embeddings, labels, ks, name, **sets, relation=relation, seed=seed, engine=engine
        )
        scores |= found.named(suffix=f"/{name}")
        if not by_class:
            deepest = min(10, items)
            task = retrieval_task(
                embeddings, labels, name, **sets, relation=relation, engine=engine
            )
            ranked = ranking_scores_of(task, [deepest])
            scores[f"ndcg@{deepest}/{name}"] = ranked[f"ndcg@{deepest}"]
    if clustering:
        rows, classes = embeddings, labels
        if gallery is not None and gallery_labels is not None:
            sides = as_array("embeddings", embeddings), as_array("gallery", gallery)
            rows = np.concatenate(sides)
            classes = joined_labels([("labels", labels), ("gallery_labels", gallery_labels)])
        scores |= clustering_scores(rows, classes, seed)._asdict()
    if by_class and engine == "scann_tree":
        scores["jensen_shannon"] = sampled_divergence(embeddings, labels, **sets, seed=seed)
    elif by_class:
        scores["jensen_shannon"] = distance_histograms(embeddings, labels, **sets).divergence()
    scores["queries_without_match"] = found.precision.queries_without_match
    return scores


def _count(name: str, rows: npt.ArrayLike) -> int:
    array = as_array(name, rows)
    return len(array) if array.ndim else 0  # an array without rows is refused later
