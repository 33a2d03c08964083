import numpy as np
import pytest

from experiments.evaluation.query_order import choose_queries


def test_queries_are_spread_over_the_classes():
    labels = np.random.default_rng(1).permutation(np.repeat(np.arange(100), 3))
    rows = choose_queries(labels, num=10, seed=5)
    assert rows.dtype == np.int64
    assert sorted(labels[rows] // 10) == list(range(10))
    np.testing.assert_array_equal(rows, choose_queries(labels, num=10, seed=5))
    assert set(rows) != set(choose_queries(labels, num=10, seed=6))


def test_few_classes_have_several_queries():
    labels = np.array([7, 7, 7, 7, 3, 3, 5])
    rows = choose_queries(labels, num=4)
    assert sorted(labels[rows]) == [3, 3, 7, 7]
    everything = choose_queries(labels, num=50)
    assert sorted(everything) == [0, 1, 2, 3, 4, 5]  # no image matches query 6


def test_queries_without_a_match_are_the_last_resort():
    assert len(set(choose_queries([4, 2, 9], num=2))) == 2


def test_bad_queries():
    with pytest.raises(ValueError, match=r"num must be at least 1, .*0"):
        choose_queries([1, 1], num=0)
    with pytest.raises(ValueError, match=r"labels must be a vector .* shape \(0,\)"):
        choose_queries([])
