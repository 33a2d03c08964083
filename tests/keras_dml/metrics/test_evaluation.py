import itertools
import math

import numpy as np
import pytest
from retrieval_sets import awkward_set

from keras_dml.metrics import (
    clustering_scores,
    distance_histograms,
    evaluate,
    precision_at_r,
    recall_at_k,
)


def naive_information(a, b):
    n = len(a)
    total = 0.0
    for x, y in set(zip(a, b)):
        both = sum(pair == (x, y) for pair in zip(a, b)) / n
        total += both * math.log(both * n * n / (a.count(x) * b.count(y)))
    return total


def test_nmi_and_ami_of_known_clusters():
    clusters = [0, 0, 0, 1, 1, 2, 2]
    labels = ["a", "a", "b", "b", "b", "c", "a"]
    # Three orthogonal directions: k-means finds these clusters from any initial centers.
    z = np.eye(3)[clusters] * np.linspace(1, 4, 7)[:, None] + 0.01 * np.eye(7, 3)
    information = naive_information(clusters, labels)
    entropy = (naive_information(clusters, clusters) + naive_information(labels, labels)) / 2
    by_chance = [
        naive_information(list(order), labels) for order in set(itertools.permutations(clusters))
    ]
    expected = sum(by_chance) / len(by_chance)
    found = clustering_scores(z, labels)
    assert found.nmi == pytest.approx(information / entropy)
    assert found.ami == pytest.approx((information - expected) / (entropy - expected))


@pytest.mark.parametrize("metric", [[], ["cosine", "dot"]])
def test_a_list_of_metrics_is_checked(metric):
    with pytest.raises(ValueError, match="metric must be one of.* but got"):
        evaluate(np.eye(4), [0, 0, 1, 1], metric=metric)


def test_over_a_thousand_clear_clusters_are_found_with_any_seed():
    """With random rows as first centers, k-means misses a third of the classes."""
    rng = np.random.default_rng(0)
    labels = np.repeat(np.arange(1_001), 3)
    z = rng.normal(size=(1_001, 16))[labels] + 0.15 * rng.normal(size=(3_003, 16))
    first, second = clustering_scores(z, labels, seed=0), clustering_scores(z, labels, seed=1)
    assert min(first.nmi, second.nmi) > 0.99
    assert abs(first.nmi - second.nmi) < 0.003


@pytest.mark.parametrize("with_gallery", [False, True])
def test_evaluate_gives_the_same_as_the_single_functions(with_gallery):
    embeddings, labels = awkward_set()
    sets, rows, classes = {}, embeddings, labels
    if with_gallery:
        sets = {"gallery": embeddings[50:], "gallery_labels": labels[50:]}
        embeddings, labels = embeddings[:50], labels[:50]
    scores = evaluate(embeddings, labels, ks=[1, 7], **sets)
    expected = {}
    for distance in ("cosine", "l2"):
        recall = recall_at_k(embeddings, labels, [1, 7], distance, **sets)
        precision = precision_at_r(embeddings, labels, distance, **sets)
        expected |= {f"recall@{k}/{distance}": recall[k] for k in (1, 7)}
        expected |= {f"map@r/{distance}": precision.map_at_r}
        expected |= {f"r_precision/{distance}": precision.r_precision}
    expected["nmi"], expected["ami"] = clustering_scores(rows, classes)
    expected["jensen_shannon"] = distance_histograms(embeddings, labels, **sets).divergence()
    expected["queries_without_match"] = precision.queries_without_match
    assert list(scores) == list(expected)
    assert scores == pytest.approx(expected)
