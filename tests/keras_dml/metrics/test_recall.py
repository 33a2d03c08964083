"""Recall, precision at R, and accuracy against loops; clustering scores; `evaluate`."""

import numpy as np
import pytest
from retrieval_sets import awkward_set, naive_neighbors

from keras_dml.metrics import (
    class_mean_accuracy,
    clustering_scores,
    distance_histograms,
    evaluate,
    nearest_neighbors,
    neighbors,
    precision_at_r,
    ranking_scores,
    recall_at_k,
)
from keras_dml.relations import SharesLabel
from keras_dml.retrieval import METRICS


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("with_gallery", [False, True])
def test_neighbors_and_recall_agree_with_a_naive_loop(metric, with_gallery, monkeypatch):
    """Without a gallery, the query's row is left out, but not its copies."""
    monkeypatch.setattr(neighbors, "_BLOCK", 7)
    queries, labels = awkward_set()
    sets, most, labels_of_items = {}, 79, labels
    if with_gallery:
        gallery, gallery_labels = awkward_set(1)
        labels_of_items = gallery_labels[:33]
        sets = {"gallery": gallery[:33], "gallery_labels": labels_of_items}
        gallery[3:9] = queries[11]
        most = 33
    expected = naive_neighbors(queries, metric, sets.get("gallery"))
    for k in (1, 4, 20, most):
        rows, scores = nearest_neighbors(queries, k, metric, sets.get("gallery"))
        np.testing.assert_array_equal(rows, expected[:, :k])
        assert scores.shape == (80, k)
        assert (np.diff(scores) * (1 if metric == "l2" else -1) >= 0).all()
    ks = [8, 1, 2, most]
    found = recall_at_k(queries, labels, ks, metric, **sets)
    hits = labels_of_items[expected] == labels[:, None]
    assert found == {k: hits[:, :k].any(axis=1).mean() for k in ks}
    assert list(found) == ks
    assert found[most] < 1  # queries without an item of their class can only miss


def test_a_collapsed_model_scores_only_by_row_order():
    # All are equal: the nearest of row 0 is row 1, of every other row 0.
    labels = np.array([0, 1, 0, 0, 1])
    assert recall_at_k(np.zeros((5, 3)), labels, [1]) == {1: 2 / 5}


WITH_GALLERY = {"gallery": np.ones((4, 5)), "gallery_labels": np.zeros(4)}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"gallery": np.eye(5)}, "together.*gallery_labels=None"),
        ({"gallery_labels": np.zeros(5)}, "together.*gallery=None"),
        (WITH_GALLERY | {"gallery": np.eye(4)}, "same width"),
        (WITH_GALLERY | {"gallery": np.empty((0, 5))}, "gallery.*at least one row each"),
        (WITH_GALLERY | {"gallery_labels": np.zeros(5)}, r"gallery_labels must be of shape \[4\]"),
        (WITH_GALLERY | {"ks": [5]}, "ks must be .* 4.* but got 5"),
        ({"embeddings": np.eye(5) * 1j}, "embeddings must be an array of numbers.*complex128"),
        ({"embeddings": np.full((5, 5), np.nan)}, "embeddings must be finite.*5 of 5"),
        ({"ks": [5]}, "ks must be .* 4.* but got 5"),
        ({"ks": []}, "ks must be a list"),
        ({"labels": np.zeros(4)}, r"labels must be of shape \[5\]"),
        ({"metric": "euclidean"}, "metric must be one of"),
    ],
)
def test_bad_arguments_of_recall(change, message):
    arguments = {"embeddings": np.eye(5), "labels": np.zeros(5), "ks": [1], **change}
    with pytest.raises(ValueError, match=message):
        recall_at_k(**arguments)


@pytest.mark.parametrize("exponent", [-115, 120])
def test_recall_by_distance_does_not_depend_on_the_scale(exponent):
    """Squares of numbers below 1e-22 are 0 in float32, and above 1e19 infinite."""
    embeddings, labels = awkward_set(0)
    assert recall_at_k(embeddings * 2.0**exponent, labels, [1, 2, 8], "l2") == recall_at_k(
        embeddings, labels, [1, 2, 8], "l2"
    )


def naive_precision(embeddings, labels, metric, gallery=None, gallery_labels=None):
    of_items = labels if gallery is None else gallery_labels
    averages, precisions = [], []
    for query, rows in enumerate(naive_neighbors(embeddings, metric, gallery)):
        hits = of_items[rows] == labels[query]
        matches = hits.sum()
        if matches:
            hits = hits[:matches]
            averages.append(np.mean(hits * np.cumsum(hits) / np.arange(1, matches + 1)))
            precisions.append(np.mean(hits))
    return np.mean(averages), np.mean(precisions), len(labels) - len(averages)


@pytest.mark.parametrize("metric", METRICS)
def test_precision_agrees_with_a_naive_loop(metric, monkeypatch):
    monkeypatch.setattr(neighbors, "_PAIRS", 100)
    embeddings, labels = awkward_set()
    labels[10:60][labels[10:60] < 6] = 3  # one class is searched deeper than the others
    assert (labels == 3).sum() > 17
    found = precision_at_r(embeddings, labels, metric)
    assert found == pytest.approx(naive_precision(embeddings, labels, metric), abs=1e-12)
    assert found.queries_without_match == 3

    sets = (embeddings[:30], labels[:30], metric, embeddings[30:], labels[30:])
    assert precision_at_r(*sets) == pytest.approx(naive_precision(*sets), abs=1e-12)


def test_queries_without_matches():
    found = precision_at_r(np.eye(4), ["a", "b", "c", "c"])
    assert not np.isnan(found.map_at_r) and found.queries_without_match == 2
    z, labels = np.eye(3), ["a", "b", "c"]
    gallery = {"gallery": z, "gallery_labels": ["d", "e", "f"]}
    for score in (
        lambda **more: precision_at_r(z, labels, **more),
        lambda **more: recall_at_k(z, labels, [1], **more),
        lambda **more: ranking_scores(z, labels, [1], **more),
        lambda **more: evaluate(z, labels, [1], **more),
    ):
        with pytest.raises(ValueError, match="another row also has, but got 3 rows"):
            score()
        with pytest.raises(ValueError, match="gallery_labels also has, but got 3 rows"):
            score(**gallery)
    with pytest.raises(ValueError, match="without a match"):
        precision_at_r(z, np.eye(3, dtype=int), relation=SharesLabel())


def test_class_mean_accuracy_agrees_with_its_definition():
    """Classes of unequal size and length, one missing in training, one missing in the test set."""
    generator = np.random.default_rng(0)
    centres = generator.normal(size=(6, 4)) * generator.uniform(0.5, 3, size=(6, 1))
    train_labels = generator.choice([0, 1, 2, 4, 7], 60, p=[0.5, 0.2, 0.1, 0.1, 0.1])
    labels = generator.choice([0, 1, 3, 4, 7], 40)
    train = centres[train_labels % 6] + generator.normal(size=(60, 4))
    test = centres[labels % 6] + generator.normal(size=(40, 4))
    classes = np.array([0, 1, 2, 4, 7])
    means = np.array([train[train_labels == label].mean(axis=0) for label in classes])
    expected = np.mean(classes[np.argmax(test @ means.T, axis=1)] == labels)
    assert class_mean_accuracy(train, train_labels, test, labels) == expected
    assert 0 < expected < 1


def test_class_means_of_large_float32_sums_are_exact():
    train = np.full((3000, 1), 1.1, np.float32)
    train[1500:] = 1.1000001
    assert class_mean_accuracy(train, np.arange(3000) // 1500, train[:1], [1]) == 1.0


def test_bad_arguments_of_other_scores():
    for metric in ([], ["cosine", "dot"]):
        with pytest.raises(ValueError, match="metric must be one of.* but got"):
            evaluate(np.eye(4), [0, 0, 1, 1], metric=metric)
    with pytest.raises(ValueError, match=r"train_labels must be of shape \[1\].*\(2,\)"):
        class_mean_accuracy([[1.0]], [0, 1], [[1.0]], [0])
    with pytest.raises(ValueError, match=r"same width.*\(1, 1\) and \(1, 2\)"):
        class_mean_accuracy([[1.0]], [0], [[1.0, 2.0]], [0])


def test_nmi_and_ami_of_known_clusters():
    clusters = [0, 0, 0, 1, 1, 2, 2]
    labels = ["a", "a", "b", "b", "b", "c", "a"]
    # Three orthogonal directions: k-means finds these clusters from any initial centers.
    z = np.eye(3)[clusters] * np.linspace(1, 4, 7)[:, None] + 0.01 * np.eye(7, 3)
    # The arithmetic mean of both entropies, and the mean over all permutations of the clusters.
    assert clustering_scores(z, labels) == pytest.approx((0.5120965, 0.1912924), abs=1e-6)


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
