"""Labels as objects, with which the loops over class ids of `oracles` become a relation's loops."""

import dataclasses
from collections.abc import Callable

import numpy as np


@dataclasses.dataclass(frozen=True, eq=False)
class Label:
    """The label of a candidate, "equal" to its anchors and "unequal" to anchors of others.

    The oracles compare `label of candidate == label of anchor`. In two sets, only queries are
    anchors, and only the other set's rows are candidates.
    """

    value: object
    is_positive: Callable
    is_negative: Callable
    of_set: str | None = None

    def __eq__(self, other):
        return self._may_pair(other) and bool(self.is_positive(self.value, other.value))

    def __ne__(self, other):
        return self._may_pair(other) and bool(self.is_negative(self.value, other.value))

    def _may_pair(self, anchor):
        return (self.of_set, anchor.of_set) in ((None, None), ("candidates", "queries"))


def label_objects(rows, is_positive, is_negative, of_set=None):
    """Return an object array of labels, which can be indexed as class ids."""
    labels = np.empty(len(rows), object)
    for i, row in enumerate(rows):
        labels[i] = Label(row, is_positive, is_negative, of_set)
    return labels
