"""Parameters of ScaNN's tree with asymmetric hashing, chosen from the number of items."""

from __future__ import annotations

import dataclasses
import math
import numbers
import sys

from keras_dml.checks import check_choice, shown
from keras_dml.errors import ArgumentError

# ScaNN's guide: brute force below this number of items.
SMALLEST = 20_000
# Codes of 16 values are trained on the items: as many are needed.
FEWEST = 16
# Of the exact neighbours, how many count for the recall, and of how many items.
RECALL_NEIGHBORS = 10
RECALL_QUERIES = 1000
# Items that a search looks at unless told otherwise.
_LOOKED_AT = 40_000
REORDER_DTYPES = ("float32", "bfloat16", "int8")
_COUNTS = ("num_leaves", "leaves_to_search", "projected_dimensions", "reorder", "training_sample")


def _check(name: str, value: object, kinds: type, low: float, high: float, allowed: str) -> None:
    right = isinstance(value, kinds) and not isinstance(value, bool)
    if not right or not low <= value <= high:  # type: ignore[operator]
        raise ArgumentError(f"{name} must be {allowed}. Received: {name}={shown(value)}")


@dataclasses.dataclass(frozen=True)
class TreeAH:
    """ScaNN's tree, asymmetric hashing and reordering (Guo et al., 2020).

    The items are parted into the leaves of a k-means tree. A search looks at the leaves nearest
    to the query, compares it with the codes of their items (4 bits for every
    `dimensions_per_block` numbers of their principal components), and compares the best of these
    with their float32 rows. None stands for what follows from the number of items n, by the rules
    of thumb in ScaNN's guide (scann/docs/algorithms.md) where it has one:

    Examples:
        >>> tree = TreeAH(num_leaves=100, leaves_to_search=10)
        >>> tree.num_leaves
        100

    Args:
        num_leaves: leaves of the tree. None: √n; below 20,000 items no tree but brute force, which
            is exact.
        leaves_to_search: leaves looked at for a query. None: so many as hold 40,000 items, a tenth
            if that is more; with `target_recall` what that needs.
        projected_dimensions: principal components that tree and codes see; the number of
            dimensions: no projection. None: as many as lose at most 5 % of the variance of a
            sample of the items, if that halves them. "l2" has no projection.
        dimensions_per_block: numbers that share a code.
        reorder: items compared again by their float32 rows, at least; 2k of them if that is more.
            None: 100, from 500,000 items on n / 5,000; with `target_recall` doubled up to 16
            times that while all leaves together are not enough.
        training_sample: items that the tree and the codes are trained on. None: 100,000 or 100
            a leaf, whichever is more.
        anisotropic_threshold: how much more an error along an item counts than one across it, as
            the cosine at which items are thought to be found (Guo et al., 2020, theorem 3.2).
            Not used for "l2".
        target_recall: None, or a share in (0, 1]: the fewest leaves are taken with which at least
            this share of the exact 10 nearest is found, of a sample of 1,000 items as queries,
            each left out of its own.
        soar_lambda: None, or how much a second leaf of each item must differ from its first
            (Sun et al., 2023; 1 to 1.5): the same recall from fewer leaves, for a second code of
            each item. Not for "l2", not inside a SavedModel, and every change of the items means
            training again.
        reorder_dtype: "float32", "bfloat16" or "int8": as what ScaNN holds the items that it
            compares again, a half or a quarter of the memory. The scores that a search returns
            are exact all the same. The latter two do not go into a SavedModel; "int8" for "l2"
            means training again at every change.

    Raises:
        ValueError: a number out of its range, `leaves_to_search` beside `target_recall`, or more
            leaves to search than there are.
    """

    num_leaves: int | None = None
    leaves_to_search: int | None = None
    projected_dimensions: int | None = None
    dimensions_per_block: int = 2
    reorder: int | None = None
    training_sample: int | None = None
    anisotropic_threshold: float = 0.2
    target_recall: float | None = None
    soar_lambda: float | None = None
    reorder_dtype: str = "float32"

    def __post_init__(self) -> None:
        for name in _COUNTS:
            if getattr(self, name) is not None:
                allowed = "None or a whole number from 1"
                _check(name, getattr(self, name), numbers.Integral, 1, math.inf, allowed)
        block, threshold = self.dimensions_per_block, self.anisotropic_threshold
        _check(
            "dimensions_per_block", block, numbers.Integral, 1, math.inf, "a whole number from 1"
        )
        _check("anisotropic_threshold", threshold, numbers.Real, 0, 1, "a number from 0 to 1")
        if self.target_recall is not None:
            allowed = "None or a share above 0, at most 1"
            _check("target_recall", self.target_recall, numbers.Real, 5e-324, 1, allowed)
            if self.leaves_to_search is not None:
                raise ArgumentError(
                    "target_recall chooses leaves_to_search: give one of them. Received: "
                    f"target_recall={self.target_recall!r}, "
                    f"leaves_to_search={self.leaves_to_search!r}"
                )
        if self.soar_lambda is not None:
            allowed = "None or a number above 0"
            _check(
                "soar_lambda", self.soar_lambda, numbers.Real, 5e-324, sys.float_info.max, allowed
            )
        check_choice("reorder_dtype", self.reorder_dtype, REORDER_DTYPES)
        if self.num_leaves is not None and (self.leaves_to_search or 1) > self.num_leaves:
            raise ArgumentError(
                f"leaves_to_search must be at most num_leaves, {self.num_leaves}. "
                f"Received: leaves_to_search={self.leaves_to_search!r}"
            )
        self._as_python_numbers()

    def _as_python_numbers(self) -> None:
        """NumPy's scalars as Python's, which JSON knows."""
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if value is not None and not isinstance(value, str):
                whole = isinstance(value, numbers.Integral)
                object.__setattr__(self, field.name, int(value) if whole else float(value))

    def fits(self, count: int) -> bool:
        """Whether `for_items` would not refuse this number of items."""
        return count >= max(FEWEST, self.num_leaves or 0)

    def for_items(self, count: int, dimensions: int) -> TreeAH | None:
        """The same with a number for each None that the number of items decides.

        Left are `projected_dimensions`, which the items decide, and with `target_recall`, which
        it leaves out, `leaves_to_search`. None instead of all: use brute force.

        Raises:
            ValueError: fewer items than leaves, or than 16; fewer dimensions than projected ones.
        """
        if self.num_leaves is None and count < SMALLEST:
            return None
        leaves = self.num_leaves or math.isqrt(count)
        if leaves > count or count < FEWEST:
            raise ArgumentError(
                f"num_leaves must be at most the number of items, and these at least {FEWEST}. "
                f"Received: num_leaves={leaves} for {count} items"
            )
        if (self.projected_dimensions or 1) > dimensions:
            raise ArgumentError(
                f"projected_dimensions must be at most the embeddings', {dimensions}. "
                f"Received: projected_dimensions={self.projected_dimensions}"
            )
        search = math.ceil(leaves * max(0.1, min(1, _LOOKED_AT / count)))
        search = min(self.leaves_to_search or search, leaves)
        return dataclasses.replace(
            self,
            num_leaves=leaves,
            leaves_to_search=search if self.target_recall is None else None,
            reorder=min(self.reorder or max(100, count // 5000), count),
            training_sample=min(self.training_sample or max(100_000, 100 * leaves), count),
            target_recall=None,
        )
