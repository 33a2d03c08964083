"""Relations: their masks and gains against loops, their messages, and the scores that use them."""

import keras
import numpy as np
import pytest
from relation_cases import CASES, IDS, PATHS, SETS, TAGS

from keras_dml import callbacks, metrics, relations


@pytest.mark.parametrize("case", CASES)
def test_the_masks_are_those_of_a_loop_over_pairs(case):
    relation, labels, is_positive, is_negative = CASES[case]
    for mask, is_so in zip(relation(labels[:3], labels), (is_positive, is_negative), strict=True):
        np.testing.assert_array_equal(mask, [[is_so(a, b) for b in labels] for a in labels[:3]])


def test_an_argument_without_an_attribute_is_not_lost_in_silence():
    class Near(relations.Relation):
        def __init__(self, distance=1):
            self._distance = distance

    with pytest.raises(AttributeError, match="distance"):
        Near(2).get_config()


@pytest.mark.parametrize(
    ("relation", "labels"),
    [(relations.SharesLabel(), TAGS), (relations.SharesLabel(encoding="ids"), IDS)],
)
def test_gains_count_shared_tags(relation, labels):
    checked = relation.checked_labels(labels)
    found = np.array(relation.gains(checked, checked))
    np.testing.assert_array_equal(found, [[len(a & b) for b in SETS] for a in SETS])


def test_gains_count_shared_levels():
    paths = relations.Hierarchy()
    found = np.array(paths.gains(paths.checked_labels(PATHS[:1]), paths.checked_labels(PATHS)))
    np.testing.assert_array_equal(found, [[2, 2, 1, 0, 0, 0, 0]])


WRONG = {
    "no tag": (relations.SharesLabel(), np.array([[0, 1], [0, 0]]), "row 1"),
    "ids as multi-hot": (relations.SharesLabel(), IDS, "encoding='ids'"),
    "a tag twice": (relations.SharesLabel(encoding="ids"), np.array([[3, 3]]), "tag 3 twice"),
    "class ids as tags": (relations.SharesLabel(), np.array([0, 1]), "but got shape \\(2,\\)"),
    "too few levels": (relations.Hierarchy(), np.array([[0], [1]]), "'category', 'product'"),
    "NaN": (relations.Graded(0.5, 0.5), np.array([[np.nan, 1.0]]), "NaN"),
    "scalars as vectors": (relations.Graded(0.5, 0.5), np.array([0.5]), "\\[n, d\\]"),
    "strings": (relations.SharesLabel(), np.array([["a"]]), "labels"),
}


@pytest.mark.parametrize(("relation", "labels", "message"), WRONG.values(), ids=WRONG)
def test_invalid_labels_raise_an_error(relation, labels, message):
    with pytest.raises(ValueError, match=message):
        relation.checked_labels(labels)


MISTAKES = {
    "unknown level": (lambda: relations.Hierarchy(positives="shop"), "positives.*'product'"),
    "finer negatives": (
        lambda: relations.Hierarchy(positives="category", negatives="other_product"),
        "negatives.*other_category",
    ),
    "thresholds": (lambda: relations.Graded(0.2, 0.8), "negative_below"),
    "not a function": (lambda: relations.get("same_class"), "relation must"),
    "class": (lambda: relations.get(relations.SameClass), "relation must"),
    "shape": (lambda: relations.get(lambda a, c: (a > 0, a > 0))([1, 2], [1, 2]), "shape \\(2, 2"),
    "one mask": (lambda: relations.get(lambda a, c: a[:, None] > c[None])([1], [2]), "two masks"),
    "both": (
        lambda: relations.get(lambda a, c: (a[:, None] > c[None], a[:, None] > c[None]))([2], [1]),
        "both positive and negative.*anchor 0 and candidate 0",
    ),
}


@pytest.mark.parametrize(("make", "message"), MISTAKES.values(), ids=MISTAKES)
def test_an_invalid_relation_raises_an_error(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def ranked(embeddings, relation, labels):
    """Return the positives and the gains of the other rows, nearest first, for each row."""
    embeddings = embeddings / np.linalg.norm(embeddings, axis=1, keepdims=True)
    positive = np.array(relation(labels, labels)[0])
    checked = relation.checked_labels(labels)
    gains = np.array(relation.gains(checked, checked))
    for i, row in enumerate(embeddings):
        order = [j for j in np.argsort(-(embeddings @ row), kind="stable") if j != i]
        yield positive[i, order], gains[i, order]


@pytest.mark.parametrize("case", [case for case in CASES if case != "function"])
def test_the_scores_of_a_relation_are_those_of_a_loop(case):
    relation, labels, *_ = CASES[case]
    rng = np.random.default_rng(3)
    rows = rng.integers(0, 7, 40)
    labels, embeddings = labels[rows], rng.normal(size=(40, 6)).astype("float32")
    positive, gains = map(np.array, zip(*ranked(embeddings, relation, labels)))
    recall = metrics.recall_at_k(embeddings, labels, [3], relation=relation)
    assert recall[3] == pytest.approx(positive[:, :3].any(axis=1).mean())

    matched = positive.any(axis=1)
    positive, gains = positive[matched], gains[matched]
    number = positive.sum(axis=1)
    precision = np.cumsum(positive, axis=1) / np.arange(1, 40)
    until_r = np.arange(39) < number[:, None]
    map_at_r = (positive * precision * until_r).sum(axis=1) / number
    at_r = metrics.precision_at_r(embeddings, labels, relation=relation)
    assert at_r.map_at_r == pytest.approx(map_at_r.mean())

    first, best = positive[:, :3], np.sort(gains, axis=1)[:, ::-1]
    discount = 1 / np.log2(np.arange(2, 5))
    expected = {
        "ndcg@3": np.mean(gains[:, :3] @ discount / (best[:, :3] @ discount)),
        "mrr@3": np.mean(first.any(axis=1) / (1 + first.argmax(axis=1))),
        "precision@3": first.mean(),
    }
    scores = metrics.ranking_scores(embeddings, labels, [3], relation=relation)
    assert scores == pytest.approx(expected)


RELATION = relations.SharesLabel()


def test_evaluate_reports_the_scores_of_a_relation():
    embeddings = np.random.default_rng(0).normal(size=(7, 3))
    scores = metrics.evaluate(embeddings, TAGS, [1], "cosine", relation=RELATION)
    assert list(scores) == [
        "recall@1/cosine", "map@r/cosine", "r_precision/cosine", "ndcg@6/cosine",
        "queries_without_match",
    ]  # fmt: skip
    sets = {"gallery": embeddings, "gallery_labels": TAGS, "relation": RELATION}
    assert metrics.evaluate(embeddings, TAGS, [1], "cosine", **sets)["recall@1/cosine"] == 1.0
    with pytest.raises(ValueError, match="gallery_labels must have 7 rows"):
        metrics.recall_at_k(embeddings, TAGS, [1], **sets | {"gallery_labels": TAGS[:2]})


def test_the_callback_and_the_metric_take_a_relation():
    images = np.random.default_rng(0).normal(size=(7, 3)).astype("float32")
    model = keras.Sequential([keras.layers.Input((3,)), keras.layers.Dense(2)])
    scores = callbacks.RetrievalEvaluation(
        (images, TAGS), ks=[1], relation=RELATION, embedding_model=model
    ).evaluate()
    embeddings = model.predict(images, verbose=0)
    expected = metrics.recall_at_k(embeddings, TAGS, [1], relation=RELATION)
    assert scores["val_recall@1"] == expected[1]
    metric = metrics.PositivesPerAnchor(relation=RELATION)
    metric.update_state(TAGS, embeddings)
    others = [sum(bool(a & b) for b in SETS) - 1 for a in SETS]
    assert float(metric.result()) == pytest.approx(np.mean(others))
