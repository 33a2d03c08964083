import numpy as np
import pytest

from keras_dml.metrics import nearest_neighbours, recall, recall_at_k
from keras_dml.retrieval import METRICS, ExactIndex


def naive_neighbours(embeddings, metric):
    """All other rows of each row by (score as float32, row), in float64."""
    embeddings = np.asarray(embeddings, np.float64)
    result = []
    for query in range(len(embeddings)):
        order = []
        for row in range(len(embeddings)):
            if row == query:
                continue
            a, b = embeddings[query], embeddings[row]
            if metric == "l2":
                order.append((np.float32(np.sqrt(((a - b) ** 2).sum())), row))
            else:
                lengths = np.sqrt((a**2).sum() * (b**2).sum())
                order.append((np.float32(-(a * b).sum() / lengths if lengths else 0), row))
        result.append([row for _, row in sorted(order)])
    return result


def naive_recall(embeddings, labels, k, metric):
    hits = 0
    for query, rows in enumerate(naive_neighbours(embeddings, metric)):
        hits += any(labels[row] == labels[query] for row in rows[:k])
    return hits / len(labels)


def awkward_set(seed=0):
    """80 rows of 12 classes: copies within and across classes, zero rows, two lone classes."""
    generator = np.random.default_rng(seed)
    labels = generator.integers(0, 10, 80)
    embeddings = generator.normal(size=(80, 6)).astype(np.float32)
    embeddings[30:45] = embeddings[2]
    embeddings[[5, 50, 51]] = 0
    labels[0], labels[79] = 100, 101
    return embeddings, labels


@pytest.fixture(params=["chosen", "exact"])
def index(request, monkeypatch):
    if request.param == "exact":
        monkeypatch.setattr(recall, "_index", ExactIndex)


@pytest.mark.usefixtures("index")
@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("block", [4096, 7])
def test_recall_agrees_with_a_naive_loop(metric, block, monkeypatch):
    monkeypatch.setattr(recall, "_BLOCK", block)
    for seed in range(3):
        embeddings, labels = awkward_set(seed)
        ks = [8, 1, 2, 79]
        result = recall_at_k(embeddings, labels, ks, metric)
        assert list(result) == ks
        for k in ks:
            assert result[k] == naive_recall(embeddings, labels, k, metric)
        assert result[79] == 78 / 80  # two classes of one item can only miss


@pytest.mark.usefixtures("index")
@pytest.mark.parametrize("metric", METRICS)
def test_neighbours_leave_out_the_own_row_and_no_copy_of_it(metric):
    embeddings, _ = awkward_set()
    expected = naive_neighbours(embeddings, metric)
    for k in (1, 4, 20, 79):
        rows, scores = nearest_neighbours(embeddings, k, metric)
        assert rows.shape == scores.shape == (80, k)
        np.testing.assert_array_equal(rows, [one[:k] for one in expected])
        assert (np.diff(scores) * (1 if metric == "l2" else -1) >= 0).all()


@pytest.mark.usefixtures("index")
def test_a_collapsed_model_scores_by_row_order_alone():
    # All equal: the nearest of row 0 is row 1, of every other row 0.
    labels = np.array([0, 1, 0, 0, 1])
    assert recall_at_k(np.zeros((5, 3)), labels, [1]) == {1: 2 / 5}


def test_labels_may_be_strings():
    embeddings = [[1, 0], [0, 1], [1, 0.1]]
    assert recall_at_k(embeddings, ["a", "b", "a"], [1]) == {1: 2 / 3}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"ks": [5]}, "ks must be whole numbers from 1 to .* 4. Received: ks=5"),
        ({"ks": [1, 0]}, "Received: ks=0"),
        ({"ks": [1.0]}, "Received: ks=1.0"),
        ({"ks": [True]}, "Received: ks=True"),
        ({"ks": []}, "ks must name at least one K"),
        ({"labels": np.zeros(4)}, r"labels must have shape \[5\].*\(4,\)"),
        ({"labels": np.zeros((5, 1))}, r"labels must have shape \[5\].*\(5, 1\)"),
        ({"metric": "euclidean"}, "metric must be one of"),
        ({"embeddings": np.full((5, 2), np.nan)}, "embeddings must be finite.*5 of 5"),
    ],
)
def test_recall_refuses(change, message):
    arguments = {"embeddings": np.eye(5), "labels": np.zeros(5), "ks": [1], **change}
    with pytest.raises(ValueError, match=message):
        recall_at_k(**arguments)


def test_neighbours_refuse_as_many_as_there_are_rows():
    with pytest.raises(ValueError, match=r"k must be .* from 1 to .* 4\. Received: k=5"):
        nearest_neighbours(np.eye(5), 5)
