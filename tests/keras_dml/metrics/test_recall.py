import numpy as np
import pytest
from retrieval_sets import awkward_set, naive_neighbors, naive_recall

from keras_dml.metrics import nearest_neighbors, neighbors, recall_at_k, retrieval_task
from keras_dml.retrieval import METRICS, ExactIndex


@pytest.fixture(params=["chosen", "exact"])
def index(request, monkeypatch):
    if request.param == "exact":
        monkeypatch.setattr(retrieval_task, "make_index", ExactIndex)


@pytest.mark.usefixtures("index")
@pytest.mark.parametrize("metric", METRICS)
def test_recall_agrees_with_a_naive_loop(metric, monkeypatch):
    monkeypatch.setattr(neighbors, "_BLOCK", 7)
    for seed in range(2):
        embeddings, labels = awkward_set(seed)
        ks = [8, 1, 2, 79]
        result = recall_at_k(embeddings, labels, ks, metric)
        assert list(result) == ks
        for k in ks:
            assert result[k] == naive_recall(embeddings, labels, k, metric)
        assert result[79] == 78 / 80  # two single-item classes can only miss


@pytest.mark.usefixtures("index")
@pytest.mark.parametrize("metric", METRICS)
def test_neighbors_exclude_the_query_row_but_not_its_copies(metric):
    embeddings, _ = awkward_set()
    expected = naive_neighbors(embeddings, metric)
    for k in (1, 4, 20, 79):
        rows, scores = nearest_neighbors(embeddings, k, metric)
        assert rows.shape == scores.shape == (80, k)
        np.testing.assert_array_equal(rows, [one[:k] for one in expected])
        assert (np.diff(scores) * (1 if metric == "l2" else -1) >= 0).all()


@pytest.mark.usefixtures("index")
@pytest.mark.parametrize("metric", METRICS)
def test_a_gallery_agrees_with_a_naive_loop(metric, monkeypatch):
    monkeypatch.setattr(neighbors, "_BLOCK", 7)
    queries, labels = awkward_set()
    gallery, gallery_labels = awkward_set(1)
    gallery, gallery_labels = gallery[:33], gallery_labels[:33]
    gallery[3:9] = queries[11]  # copies of a query count: nothing is left out
    expected = naive_neighbors(queries, metric, gallery)
    rows, scores = nearest_neighbors(queries, 33, metric, gallery)
    np.testing.assert_array_equal(rows, expected)
    assert scores.shape == (80, 33)
    ks = [5, 1, 33]
    found = recall_at_k(queries, labels, ks, metric, gallery, gallery_labels)
    assert list(found) == ks
    for k in ks:
        assert found[k] == naive_recall(queries, labels, k, metric, gallery, gallery_labels)
    assert found[33] < 1  # two queries' classes are not in the gallery: they can only miss


@pytest.mark.usefixtures("index")
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
        ({"ks": [1.0]}, "ks must be .* but got 1.0"),
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


@pytest.mark.parametrize("metric", METRICS)
def test_vectors_beyond_float32_products_use_the_index(metric):
    embeddings, labels = awkward_set(2)
    huge = embeddings * np.float32(1e25)
    recall = recall_at_k(huge, labels, [1, 5], metric)
    assert recall == {k: naive_recall(huge, labels, k, metric) for k in (1, 5)}
