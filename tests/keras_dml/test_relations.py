"""Relations: their masks and gains against loops, their messages, and the scores that use them."""

import backend
import keras
import numpy as np
import pytest
from relation_cases import CASES, IDS, PATHS, SETS, TAGS

from keras_dml import callbacks, losses, metrics, relations


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


TAG_IDS = relations.SharesLabel(encoding="ids")
WRONG = {
    "no tag": (relations.SharesLabel(), np.array([[0, 1], [0, 0]]), "row 1"),
    "ids as multi-hot": (relations.SharesLabel(), IDS, "encoding='ids'"),
    "a fraction as a tag": (TAG_IDS, np.array([[1.5, 2.0]]), "must be tag ids.*whole.*1.5"),
    "a negative tag": (TAG_IDS, np.array([[1, -2]]), "tag ids from 0 on.*-2"),
    "an unsigned -1": (TAG_IDS, np.array([[1, 2**64 - 1]], "uint64"), "must be tag ids"),
    "infinite vectors": (relations.Graded(0.5, 0.5), np.array([[1, 0], [np.inf, 1]]), "row 1"),
    "vectors of zeros": (relations.Graded(0.5, 0.5), np.array([[1, 0], [0, 0]]), "row 1"),
    "class ids as tags": (relations.SharesLabel(), np.array([0, 1]), "but got shape \\(2,\\)"),
    "too few levels": (relations.Hierarchy(), np.array([[0], [1]]), "'category', 'product'"),
    "NaN": (relations.Graded(0.5, 0.5), np.array([[np.nan, 1.0]]), "NaN"),
    "scalars as vectors": (relations.Graded(0.5, 0.5), np.array([0.5]), "\\[n, d\\]"),
    "strings": (relations.SharesLabel(), np.array([["a"]]), "labels"),
}


@pytest.mark.any_backend
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


@pytest.mark.any_backend
def test_a_tag_counts_once_in_a_row():
    """Jaccard of {1, 2} and {1, 3} is 1/3, and of {1, 2} and {1} it is 1/2."""
    relation = relations.SharesLabel(0.5, encoding="ids")
    twice, once = [[1, 2, 1, 1], [3, 3, 1, -1], [1, 1, -1, 1]], [[1, 2], [1, 3], [1, -1]]
    queries, items = (keras.ops.convert_to_tensor(rows) for rows in (once, twice))
    for run in (backend.eager, backend.compiled):
        masks = run(relation.__call__)(queries, items)
        expected = [[True, False, True], [False, True, True], [True, True, True]]
        np.testing.assert_array_equal(masks[0], expected)
        assert not np.array(masks[1]).any()
    z = np.random.default_rng(0).normal(size=(3, 4))
    loss = losses.ContrastiveLoss(relation=relation, dtype="float64")
    values = [float(loss(labels, z)) for labels in (queries, items)]
    assert values[0] == pytest.approx(values[1])


GRAPH = {
    "a fraction as a tag": (TAG_IDS, [[1.5, 2.0], [2.0, -1.0]]),
    "a negative tag": (TAG_IDS, [[1, -2], [1, 2]]),
    "infinite vectors": (relations.Graded(0.5, 0.5), [[1.0, 0.0], [np.inf, 1.0]]),
    "vectors of zeros": (relations.Graded(0.5, 0.5), [[1.0, 0.0], [0.0, 0.0]]),
}


@pytest.mark.any_backend
@pytest.mark.parametrize(("relation", "labels"), GRAPH.values(), ids=GRAPH)
def test_a_graph_gives_nan_for_invalid_labels(relation, labels):
    if keras.backend.backend() == "torch":
        return  # PyTorch has no graphs
    loss, z = losses.ContrastiveLoss(relation=relation), np.eye(2, dtype="float32")
    run = backend.compiled(lambda labels: loss(labels, z))
    assert np.isnan(float(run(keras.ops.convert_to_tensor(labels))))


# JAX without jax_enable_x64 has 32 bits.
WIDE = "int64" in str(keras.ops.convert_to_tensor(np.zeros(1, "int64")).dtype)


@pytest.mark.any_backend
@pytest.mark.parametrize("relation", [TAG_IDS, relations.SharesLabel()], ids=["ids", "multi-hot"])
def test_tags_beyond_32_bits_share_no_tag_of_fewer_bits(relation):
    """With 32 bits, 2³² + 1 is 1, and 2³² − 1 is −1."""
    labels = np.array([[2**32 + 1, 0], [2**32 - 1, 0]])
    if relation is TAG_IDS and WIDE:
        labels[:, 1] = -1
        positive, negative = relation(labels, np.array([[1, 5], [2**32 + 1, -1]]))
        np.testing.assert_array_equal(positive, [[False, True], [False, False]])
        np.testing.assert_array_equal(negative, ~np.array(positive))
    else:
        with pytest.raises(ValueError, match="within int32|must be 0 or 1"):
            relation.checked_labels(labels)


@pytest.mark.any_backend
def test_labels_of_a_function_beyond_32_bits_raise_an_error_without_64_bits():
    near = relations.get(lambda a, b: (a[:, None] == b[None], a[:, None] != b[None]))
    if WIDE:
        assert not np.array(near([2**32 + 1], [1])[0]).any()
    else:
        with pytest.raises(ValueError, match="labels within int32"):
            near([2**32 + 1], [1])


DTYPES = {
    "ids": (TAG_IDS, np.array([[300, 2]]), np.array([[44, 2], [44, 3], [2, -1]], "int8")),
    "ids of floats": (
        TAG_IDS, np.array([[2**24 + 1, 2]]), np.array([[2**24 - 1, 2], [5, 3], [2, -1]], "float32"),
    ),
    "classes": (relations.SameClass(), np.array([300]), np.array([44, 300, 44], "int16")),
    "paths": (
        relations.Hierarchy(), np.array([[300, 1], [44, 1]], "int16"),
        np.array([[44, 1], [1, 1]], "int8"),
    ),
    "vectors": (relations.Graded(0.5, 0.2), np.array([[0.9, 0.4]]), np.array([[0, 1], [1, 0]])),
}  # fmt: skip


@pytest.mark.any_backend
@pytest.mark.parametrize(("relation", "queries", "items"), DTYPES.values(), ids=DTYPES)
def test_labels_of_two_dtypes_are_compared_without_loss(relation, queries, items):
    def loop(query, item):
        if isinstance(relation, relations.SharesLabel):
            return bool(({*query} & {*item}) - {-1})
        if isinstance(relation, relations.Graded):
            return query @ item / np.linalg.norm(query) > 0.5
        return np.array_equal(query, item)

    wide = queries.astype("float64").tolist(), items.astype("float64").tolist()
    expected = [[loop(np.array(a), np.array(b)) for b in wide[1]] for a in wide[0]]
    np.testing.assert_array_equal(relation(queries, items)[0], expected)
    np.testing.assert_array_equal(np.array(relation(items, queries)[0]).T, expected)
    rng = np.random.default_rng(0)
    z, gallery = rng.normal(size=(len(queries), 3)), rng.normal(size=(len(items), 3))
    found = metrics.recall_at_k(
        z, queries, [len(items)], gallery=gallery, gallery_labels=items, relation=relation
    )
    assert found[len(items)] == np.any(expected, axis=1).mean()
