"""Parameters of ScaNN's tree with asymmetric hashing, chosen by the number of items."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable

from keras_dml._common.checks import check_choice, check_number, check_positive, check_whole
from keras_dml._common.errors import ArgumentError, argument_error

# ScaNN's guide recommends brute force below this number of items.
SMALLEST = 20_000
# Codes with 16 values are trained on the items, which requires at least 16 items.
FEWEST = 16
# Number of exact neighbors for the recall, and number of items that serve as queries.
RECALL_NEIGHBORS = 10
RECALL_QUERIES = 1000
# Default number of items that a search visits.
_LOOKED_AT = 40_000
REORDER_DTYPES = ("float32", "bfloat16", "int8")
# Checks of the arguments that can be None.
_CHECKS: dict[str, Callable[..., float]] = {
    **dict.fromkeys(
        ("num_leaves", "leaves_to_search", "projected_dimensions", "reorder", "training_sample"),
        functools.partial(check_whole, least=1),
    ),
    "target_recall": functools.partial(check_number, above=0, most=1),
    "soar_lambda": check_positive,
}


@dataclasses.dataclass(frozen=True)
class TreeAH:
    """The parameters of ScaNN's tree, asymmetric hashing, and reordering (Guo et al., 2020).

    A k-means tree partitions the items into leaves. A search visits the leaves nearest to the
    query, compares the query with the codes of their items (4 bits for every `dimensions_per_block`
    numbers of their principal components), and compares the best items by their float32 rows. None
    selects a value by the number of items n, by the rules of thumb in ScaNN's guide
    (scann/docs/algorithms.md) if it has one.

    Examples:
        >>> tree = TreeAH(num_leaves=100, leaves_to_search=10)
        >>> tree.num_leaves
        100

    Args:
        num_leaves: Number of leaves of the tree. None is √n, or exact brute force without a tree
            below 20,000 items.
        leaves_to_search: Number of leaves to visit per query. None visits the leaves of 40,000
            items, or a tenth of the leaves if that is more. With `target_recall`, the recall
            determines it.
        projected_dimensions: Number of principal components for the tree and the codes. The number
            of dimensions disables the projection. None selects the number that loses at most 5 % of
            the variance of a sample of the items, if that halves the dimensions. "l2" has no
            projection.
        dimensions_per_block: Number of values that share a code.
        reorder: Minimum number of items to compare by their float32 rows, or 2k if that is more.
            None is 100, or n / 5,000 from 500,000 items. With `target_recall`, this default is
            doubled, at most to 16 times its value, while all leaves together are insufficient.
        training_sample: Number of items on which to train the tree and the codes. None is 100,000
            or 100 per leaf, whichever is more.
        anisotropic_threshold: Weight of an error along an item relative to an error across it, as
            the cosine at which items are expected to be found (Guo et al., 2020, theorem 3.2). Not
            used for "l2".
        target_recall: None, or a fraction in (0, 1]. Selects the smallest number of leaves that
            finds at least this fraction of the exact 10 nearest items. It is measured on a sample
            of 1,000 items as queries, each excluded from its results.
        soar_lambda: None, or how much a second leaf of each item must differ from its first (Sun et
            al., 2023; 1 to 1.5). Reaches the same recall with fewer leaves, but stores a second
            code per item. Not supported for "l2" or in a SavedModel, and every change of the items
            requires retraining.
        reorder_dtype: "float32", "bfloat16" or "int8": dtype of ScaNN's items for the comparison.
            The latter two need a half or a quarter of the memory. The scores of a search are exact
            with each dtype. The latter two are not supported in a SavedModel, and "int8" with "l2"
            requires retraining at every change.

    Raises:
        ValueError: A number is out of range, both `leaves_to_search` and `target_recall` are set,
            or `leaves_to_search` exceeds the number of leaves.
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
        # The checks convert NumPy scalars to Python numbers, which JSON supports.
        numbers = {
            name: check(name, getattr(self, name))
            for name, check in _CHECKS.items()
            if getattr(self, name) is not None
        }
        block, threshold = self.dimensions_per_block, self.anisotropic_threshold
        numbers["dimensions_per_block"] = check_whole("dimensions_per_block", block, least=1)
        numbers["anisotropic_threshold"] = check_number(
            "anisotropic_threshold", threshold, least=0, most=1
        )
        check_choice("reorder_dtype", self.reorder_dtype, REORDER_DTYPES)
        for name, number in numbers.items():
            object.__setattr__(self, name, number)
        if self.target_recall is not None and self.leaves_to_search is not None:
            wanted = "None with target_recall, which chooses it"
            raise argument_error("leaves_to_search", wanted, self.leaves_to_search)
        if self.num_leaves is not None and (self.leaves_to_search or 1) > self.num_leaves:
            wanted = f"at most num_leaves={self.num_leaves}"
            raise argument_error("leaves_to_search", wanted, self.leaves_to_search)

    def fits(self, count: int) -> bool:
        """Return whether `for_items` accepts this number of items."""
        return count >= max(FEWEST, self.num_leaves or 0)

    def for_items(self, count: int, dimensions: int) -> TreeAH | None:
        """Replace each None that the number of items determines with a number.

        `projected_dimensions` can stay None, because the items determine it. With `target_recall`,
        which is cleared, `leaves_to_search` stays None. Returns None for brute force.

        Raises:
            ValueError: There are fewer items than leaves or than 16, or fewer dimensions than
                projected dimensions.
        """
        if self.num_leaves is None and count < SMALLEST:
            return None
        leaves = self.num_leaves or math.isqrt(count)
        if leaves > count or count < FEWEST:
            raise ArgumentError(
                "num_leaves must be at most the number of items, which must be at least "
                f"{FEWEST}, but got {leaves} for {count} items."
            )
        if (self.projected_dimensions or 1) > dimensions:
            wanted = f"at most {dimensions}, the dimensions of the embeddings"
            raise argument_error("projected_dimensions", wanted, self.projected_dimensions)
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
