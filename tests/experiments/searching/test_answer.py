"""The answer of a search, and copies in it."""

import numpy as np

from experiments.searching.answer import Answer, SearchResult, answer_line, grouped


def test_the_text_of_an_answer_by_class():
    names = ["juice", "milk", "juice", "", "juice"]
    results = [SearchResult(row, f"{row}.jpg", 1.0, name) for row, name in enumerate(names)]
    assert answer_line(Answer(tuple(results))) == "juice, 3 of 5; milk, 1"
    assert answer_line(Answer(tuple(results[3:4]))) == ""
    assert answer_line(Answer(())) == "no image of the index meets all conditions"


RESULTS = [SearchResult(row, f"{row}.jpg", 1 - row / 10) for row in range(5)]


def unit(*degrees):
    return np.stack([np.cos(np.deg2rad(degrees)), np.sin(np.deg2rad(degrees))], axis=1)


def shown(found):
    return {result.path: list(result.alike) for result in found}


def test_a_result_joins_the_first_similar_group():
    """The cosine of 10 degrees is 0.985, and the cosine of 20 degrees is 0.940."""
    rows = unit(0, 10, 20, 90, 91) * np.array([[1], [7], [1], [0.1], [1]])
    found = grouped(RESULTS, rows, 0.98, 5)
    assert shown(found) == {"0.jpg": ["1.jpg"], "2.jpg": [], "3.jpg": ["4.jpg"]}
    assert [one.score for one in found] == [1, 0.8, 0.7]
    # After k groups, a result can only join a group.
    assert shown(grouped(RESULTS, rows, 0.98, 2)) == {"0.jpg": ["1.jpg"], "2.jpg": []}


def test_copies_zeros_one_result_and_no_results():
    rows = np.full((5, 3), 1 / 3, np.float32)
    assert shown(grouped(RESULTS, rows, 1, 5)) == {"0.jpg": ["1.jpg", "2.jpg", "3.jpg", "4.jpg"]}
    assert len(grouped(RESULTS, np.zeros((5, 3)), 0.995, 5)) == 5
    assert grouped([], np.empty((0, 3)), 0.995, 5) == []
    assert grouped(RESULTS[:1], rows[:1], 0.995, 1) == RESULTS[:1]
