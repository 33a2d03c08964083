"""Selection of pairs from a large dataset."""

import numpy as np

from experiments.evaluation.pairs import rows_of_some_classes


def test_a_large_set_is_reduced_by_whole_classes():
    labels = np.repeat(np.arange(1000), 9)
    rows = rows_of_some_classes(labels)
    _, sizes = np.unique(labels[rows], return_counts=True)
    assert set(sizes) == {9} and 3900 < len(rows) <= 4000
    two = np.repeat([0, 1], 5000)
    assert len(rows_of_some_classes(two)) == 10000
