"""Near-identical results as one."""

import numpy as np

from experiments.searching.answer import SearchResult
from experiments.searching.grouping import grouped

RESULTS = [SearchResult(row, f"{row}.jpg", 1 - row / 10) for row in range(5)]


def unit(*degrees):
    return np.stack([np.cos(np.deg2rad(degrees)), np.sin(np.deg2rad(degrees))], axis=1)


def shown(found):
    return {result.path: list(result.alike) for result in found}


def test_each_joins_the_first_that_it_is_near_enough_to():
    """The cosine of 10 degrees is 0.985, that of 20 is 0.940."""
    rows = unit(0, 10, 20, 90, 91) * np.array([[1], [7], [1], [0.1], [1]])
    found = grouped(RESULTS, rows, 0.98, 5)
    assert shown(found) == {"0.jpg": ["1.jpg"], "2.jpg": [], "3.jpg": ["4.jpg"]}
    assert [one.score for one in found] == [1, 0.8, 0.7]
    # What comes behind the k-th joins, and makes no more.
    assert shown(grouped(RESULTS, rows, 0.98, 2)) == {"0.jpg": ["1.jpg"], "2.jpg": []}


def test_copies_zeros_one_and_none():
    rows = np.full((5, 3), 1 / 3, np.float32)
    assert shown(grouped(RESULTS, rows, 1, 5)) == {"0.jpg": ["1.jpg", "2.jpg", "3.jpg", "4.jpg"]}
    assert len(grouped(RESULTS, np.zeros((5, 3)), 0.995, 5)) == 5
    assert grouped([], np.empty((0, 3)), 0.995, 5) == []
    assert grouped(RESULTS[:1], rows[:1], 0.995, 1) == RESULTS[:1]
