"""Search among a subset of the items."""

import numpy as np
import pytest
from retrieval_sets import awkward_set, naive_search, needs_scann

from keras_dml.retrieval import METRICS, ExactIndex, PrefixIndex, ScannIndex, TreeAH


def tree(items, metric, ids=None):
    return ScannIndex(items, metric, ids, TreeAH(num_leaves=4, leaves_to_search=1))


def prefix(items, metric, ids=None):
    return PrefixIndex(items, metric, ids, length=2, candidates=3)


KINDS = [
    ExactIndex,
    prefix,
    pytest.param(ScannIndex, marks=needs_scann),
    pytest.param(tree, marks=needs_scann),
]


@pytest.mark.parametrize("build", KINDS)
@pytest.mark.parametrize("metric", METRICS)
def test_allowed_items_agree_with_a_naive_loop(build, metric):
    """Includes copies and zeros, and subsets of one row, a few, or most, by mask and by ids."""
    items, _ = awkward_set()
    index = build(items, metric)
    queries = np.concatenate([items[:12], np.random.default_rng(1).normal(size=(5, 6))])
    for rows in ([50], [79, 30, 31, 2, 5], range(40, 80), range(1, 80)):
        mask = np.isin(np.arange(80), list(rows))
        naive = naive_search(items, queries, metric, rows)
        expected = [[row for row, _ in order[:4]] for order in naive]
        found, scores = index.search(queries, 4, allowed=mask)
        assert found.tolist() == expected
        again, same = index.search(queries, 4, allowed=[*rows, *rows])
        np.testing.assert_array_equal(again, found)
        np.testing.assert_array_equal(same, scores)
        # The same pairs have the same scores as without `allowed`.
        every, every_score = ExactIndex(items, metric).search(queries, 80)
        place = [row.tolist().index(one) for row, one in zip(every, found[:, 0])]
        np.testing.assert_array_equal(every_score[np.arange(len(queries)), place], scores[:, 0])


@pytest.mark.parametrize("build", KINDS)
def test_no_item_and_all_items_allowed(build):
    items, _ = awkward_set()
    index = build(items, "cosine")
    for nobody in ([], np.array([], np.int64), np.zeros(80, bool)):
        found, scores = index.search(items[:3], 5, allowed=nobody)
        assert found.shape == scores.shape == (3, 0)
        assert found.dtype == np.int64 and scores.dtype == np.float32
    for one, other in zip(index.search(items, 5, np.ones(80, bool)), index.search(items, 5)):
        np.testing.assert_array_equal(one, other)
    assert index.search(np.empty((0, 6)), 5, [1])[0].shape == (0, 1)


@pytest.mark.parametrize("ids", [np.arange(80) + 2**40, [f"ü{row}" for row in range(80)]])
def test_custom_ids(ids):
    items, _ = awkward_set()
    index = ExactIndex(items, ids=ids)
    found, _ = index.search(items[60:62], 3, allowed=[ids[61], ids[60]])
    assert found.tolist() == [[ids[60], ids[61]], [ids[61], ids[60]]]
    more = [2**41] if ids[0] == 2**40 else ["more"]
    index.add(items[:1], more)
    assert index.search(items[:1], 2, allowed=more)[0].tolist() == [more]
    with pytest.raises(ValueError, match="ids must be different .*more than once"):
        index.add(items[:1], more)
    assert index.search(items[:1], 2, allowed=np.arange(81) == 80)[0].tolist() == [more]
    np.testing.assert_array_equal(
        index.embeddings_of([*more, ids[0], ids[0]]), index.embeddings_of([ids[0]] * 3)
    )


@pytest.mark.parametrize(
    ("allowed", "message"),
    [
        (np.ones(79, bool), r"one bool for each of the 80 items, but got .*\(79,\)"),
        ([3, 80, -1], "allowed must be ids of items, whole numbers, but got 2 .*: 80, -1"),
        ([2**70], "but got 1 that no item has"),
        (["3"], "allowed must be ids of items, whole numbers, but got "),
        ([1.0], "whole numbers, but got "),
        ([[1]], "whole numbers, but got "),
        ([[1], [1, 2]], "allowed must be an array"),
        (3, "whole numbers, but got 3"),
        ([None], "whole numbers"),
        ([True, 3], "whole numbers"),
    ],
)
def test_bad_arguments(allowed, message):
    items, _ = awkward_set()
    with pytest.raises(ValueError, match=message):
        ExactIndex(items).search(items, 3, allowed=allowed)
    with pytest.raises(ValueError):
        ExactIndex(items).embeddings_of(allowed)


def test_numbers_do_not_match_text_ids():
    index = ExactIndex(np.eye(3), ids=["1", "2", "3"])
    for allowed in ([1], ["1", 2], ["4"], [b"1"]):
        with pytest.raises(ValueError, match="allowed must be ids of items, strings"):
            index.search(np.eye(3), 1, allowed=allowed)
