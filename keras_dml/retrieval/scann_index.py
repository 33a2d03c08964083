"""Search by ScaNN, exact or with a tree. Requires ScaNN (Linux) and its TensorFlow."""

from __future__ import annotations

import dataclasses
import functools
import logging
import os
import pathlib
import tempfile
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from keras_dml._common.errors import ArgumentTypeError, argument_error
from keras_dml._common.extras import needing
from keras_dml._common.rows import center, centered, row_blocks
from keras_dml._common.types import Metric
from keras_dml.retrieval.changes import Change
from keras_dml.retrieval.files import SEARCHER, SavedIndex, damaged
from keras_dml.retrieval.index import Index
from keras_dml.retrieval.items import EMBEDDINGS, Items
from keras_dml.retrieval.tree import SMALLEST, TreeAH
from keras_dml.retrieval.tree_searcher import SCANN_MEASURES, TreeSearcher

if TYPE_CHECKING:
    from keras_dml.retrieval.serving import SearchModule

_logger = logging.getLogger("keras_dml")
_QUERIES = 4096
# Number of items beyond k to request, so that the k-th is rarely within rounding of the last.
_SPARE = 8


def import_scann() -> ModuleType:
    """Import `scann.scann_ops_pybind`.

    Raises:
        MissingExtraError: ScaNN is not installed, or does not load with this TensorFlow.
    """
    with needing("search", "ScannIndex"):
        try:
            from scann import scann_ops_pybind
        except ImportError:
            raise
        # If the versions do not match, its compiled operations fail with a TensorFlow error.
        except Exception as error:
            raise ImportError(f"ScaNN does not load: {error}", name="scann") from error
    return scann_ops_pybind


class ScannIndex(Index):
    """Search by ScaNN (Guo et al., 2020): exact, or approximate with a tree.

    Without `tree`, ScaNN compares each query with all items in float32. Its scores are rounded
    differently in each call, so equal rows can get different scores, and items of almost equal
    score can swap at the cut at k. The index therefore requests a few more items than k from ScaNN
    and re-scores them as `Index` defines. If the k-th item is not nearer than the last item by more
    than the error of float32 products, the query is searched again with float64 products.

    With a tree, the index re-scores ScaNN's k items as `Index` defines. Scores are therefore exact,
    but items can be missing. If the leaves contain fewer than k items for a query, the query is
    searched exactly. ScaNN rounds codes differently for one query and for many, so the missing
    items can vary with the batch of a query.

    Added, replaced, or removed items are inserted into or deleted from the trained tree. The tree
    is retrained at the next search when it contains more than twice the items that it was trained
    on. It is retrained at every change with `TreeAH.soar_lambda`, or with "int8" for "l2", because
    ScaNN cannot change such a tree. `rebalance` retrains it in parallel with searches, for example
    if `measured_recall` is too low.

    Memory contains the items in float32, ScaNN's copy of them, and with a tree a 4-bit code per
    `dimensions_per_block` projected dimensions. The build needs one more copy for "l2", or for
    "cosine" with a tree and a mean so long that it is subtracted (see `CenteringTransform`).
    With that mean, rows of zeros can displace as many other items from a result whose last items
    are less similar to the query than most items.

    See `Index` for the other arguments, order, and errors.

    Examples:
        >>> items = [[1.0, 0.0], [0.8, 0.6], [0.0, 1.0]]
        >>> index = ScannIndex(items)
        >>> index.search([[1.0, 0.1]], k=1)[0]
        array([[0]])

    Args:
        tree: None, or `TreeAH`.

    Raises:
        MissingExtraError: ScaNN is not installed, or does not load with this TensorFlow.
        TypeError: `tree` has another type.
    """

    kind = "scann"
    _block = _QUERIES

    def __init__(
        self,
        embeddings: npt.ArrayLike | Items,
        metric: Metric = "cosine",
        ids: npt.ArrayLike | None = None,
        tree: TreeAH | TreeSearcher | None = None,
    ) -> None:
        # `load_index` passes a trained searcher.
        if not isinstance(tree, (TreeAH, TreeSearcher, type(None))):
            raise argument_error("tree", "None or a TreeAH", tree, ArgumentTypeError)
        self._scann = import_scann()
        self._asked: TreeAH | None
        self._tree: TreeSearcher | None
        if isinstance(tree, TreeSearcher):
            self._asked, self._tree = tree.asked, tree
        else:
            self._asked, self._tree = tree, None
        super().__init__(embeddings, metric, ids)
        if isinstance(tree, TreeAH) and not isinstance(embeddings, Items):
            tree.for_items(self.num_items, self.dimensions)  # raises the error for too few items

    @classmethod
    def loaded(cls, saved: SavedIndex) -> ScannIndex:
        """Load an index that `save` wrote.

        Raises:
            ValueError: The tree is damaged.
        """
        description = saved.description
        tree: TreeAH | TreeSearcher | None = None
        try:
            if "tree" in description:
                tree = TreeSearcher.loaded(
                    import_scann(), saved.folder / SEARCHER, description, saved.items.rows,
                    saved.metric,
                )  # fmt: skip
            elif "asked" in description:
                tree = TreeAH(**description["asked"])
        except (TypeError, ValueError) as error:
            said = str(error).replace(str(saved.folder), os.fspath(saved.path))
            raise damaged(saved.path, said) from error
        return cls(saved.items, saved.metric, tree=tree)

    @property
    def tree(self) -> TreeAH | None:
        """The `TreeAH` in use, with all numbers resolved. None for brute force."""
        with self._ready():
            return None if self._tree is None else self._tree.tree

    @property
    def measured_recall(self) -> float | None:
        """Fraction of the exact 10 nearest other items that the tree finds. None for brute force.

        It is measured when the tree is built and, after changes, on access. The queries are 1,000
        of the items (or all, if fewer).
        """
        with self._ready():
            if self._tree is not None and self._tree.recall is None:
                self._measure_recall(self._tree)
            return None if self._tree is None else self._tree.recall

    def parameters(self) -> dict[str, object]:  # noqa: D102, as in Index
        if self._tree is not None:
            return self._tree.parameters()
        return {} if self._asked is None else {"asked": dataclasses.asdict(self._asked)}

    def write_searcher(self, folder: pathlib.Path) -> None:  # noqa: D102, as in Index
        if self._tree is not None:
            folder.mkdir()
            self._tree.serialize(folder, f"../{EMBEDDINGS}")

    def serving_module(self) -> SearchModule:
        """Return the index as in `Index`, with ScaNN's TensorFlow operations.

        The operations exist only after `import scann`, also in the process that loads the
        SavedModel. The SavedModel contains the items twice, in a variable and in ScaNN's memory.
        The first call in a process copies them.

        Raises:
            ValueError: The operations do not support the tree: it uses SOAR, or reorders by numbers
                other than float32.
        """
        from keras_dml.retrieval.serving import ScannSearchModule

        with (
            self._ready(),
            tempfile.TemporaryDirectory(prefix="keras_dml_scann_") as name,
        ):
            folder = pathlib.Path(name)
            self._check_any_items()
            if self._tree is None:
                middle, lift = self._center, None
                self._brute_force.serialize(name, relative_path=True)
                how: dict[str, Any] = {"spare": _SPARE, "reorder": None, "leaves": None}
            else:
                self._tree.check_served()
                self._tree.serialize(folder)
                middle, lift = self._tree.centering.center, self._tree.centering.lift
                if lift is not None:
                    # The module scores by ScaNN's items, so rows of zeros must not be at the mean.
                    np.save(folder / "dataset.npy", self._tree.centering.items(self._rows))
                leaves = self._tree.tree.leaves_to_search
                how = {"spare": 0, "reorder": self._tree.reordered, "leaves": leaves}
            ids = self._items.ids
            return ScannSearchModule(folder, ids, self._metric, middle, lift=lift, **how)

    def _build(self) -> None:
        if self._tree is not None:  # loaded
            return
        # An index that has shrunk can be too small for the requested tree.
        if self._asked is not None and self._asked.fits(self.num_items):
            self._tree = TreeSearcher.trained(self._scann, self._rows, self._metric, self._asked)
            if self._tree is not None:
                self._measure_recall(self._tree)
                return
            _logger.info("%d items: brute force, no tree below %d", self.num_items, SMALLEST)
        self._center = center(self._rows, self._metric)
        items = centered(self._rows, self._center)
        squares = (
            np.einsum("nd,nd->n", items[block], items[block], dtype=np.float64).max()
            for block in row_blocks(items)
        )
        self._longest = np.sqrt(max(squares))
        spare, measure = min(_SPARE, self.num_items), SCANN_MEASURES[self._metric]
        self._brute_force = self._scann.builder(items, spare, measure).score_brute_force().build()

    def _update(self, change: Change) -> bool:
        tree, self._tree = self._tree, None  # an error can leave the change half done
        if tree is None or not tree.takes(change):
            return False
        tree.update(change)
        self._tree = tree
        return True

    def _rebalance(self) -> None:
        with self._lock:
            asked = self._asked
            if asked is None or not self.num_items or not asked.fits(self.num_items):
                return
            # A copy, because items can be replaced in place during the training.
            rows, self._changes = self._items.rows.copy(), []
        try:
            trained = ScannIndex(Items(rows), self._metric, tree=asked)._tree
            with self._lock:
                if trained is not None and trained.update_all(self._changes):
                    self._tree, self._stale = trained, False
        finally:
            self._changes = None

    def _measure_recall(self, searcher: TreeSearcher) -> None:
        recall = self._recall_measure()
        searcher.tune(lambda: recall(functools.partial(self._through_tree, searcher)))
        tree = searcher.tree
        _logger.info(
            "tree of %d leaves, %d searched, %d reordered: finds %.2f %% of the exact nearest",
            tree.num_leaves, tree.leaves_to_search, tree.reorder, 100 * (searcher.recall or 0),
        )  # fmt: skip

    def _nearest(self, queries: npt.NDArray[np.float32], k: int) -> tuple[np.ndarray, np.ndarray]:
        if self._tree is None:
            return self._by_brute_force(queries, k)
        return self._through_tree(self._tree, queries, k)

    def _through_tree(
        self, searcher: TreeSearcher, queries: npt.NDArray[np.float32], k: int
    ) -> tuple[np.ndarray, np.ndarray]:
        candidates, raw = searcher.search(queries, searcher.asked_for(k))
        # NaN if the leaves contain too few items, and infinity beyond the range of float32.
        short = ~np.isfinite(raw).all(axis=1)
        rows, scores = self._ranked(queries, candidates, k)
        if short.any():
            rows[short], scores[short] = self._exactly(queries[short], k)
        return rows, scores

    def _by_brute_force(
        self, queries: npt.NDArray[np.float32], k: int
    ) -> tuple[np.ndarray, np.ndarray]:
        asked = min(k + _SPARE, self.num_items)
        moved = centered(queries, self._center)
        candidates, raw = self._brute_force.search_batched_parallel(moved, asked)
        rows, scores = self._ranked(queries, candidates, k)
        # Beyond the range of float32, ScaNN returns infinity, or NaN and the same item repeatedly.
        unsure = ~np.isfinite(raw).all(axis=1)
        if asked < self.num_items:
            unsure |= ~self._is_clear(moved, scores[:, -1], raw[:, -1])
        if unsure.any():
            rows[unsure], scores[unsure] = self._exactly(queries[unsure], k)
        return rows, scores

    def _is_clear(self, moved: np.ndarray, kth: np.ndarray, last: np.ndarray) -> np.ndarray:
        """Return whether every item that ScaNN left out is farther than the k-th item, `[q]`.

        Args:
            moved: Queries as passed to ScaNN, `[q, d]`.
            kth: The k-th best score, as `Index` defines it, `[q]`.
            last: ScaNN's score of its last returned item: similarity or squared distance.
        """
        # A float32 sum of d products has an error of at most d·2⁻²⁴ times the vectors' lengths. The
        # 4 more cover the rounding of scores and of centered numbers. The comparisons are False for
        # NaN (lengths beyond the range of float32), so NaN is not clear.
        error = (self.dimensions + 4) * 2.0**-24
        kth, last = kth.astype(np.float64), last.astype(np.float64)
        if self._metric == "cosine":
            return kth > last + error
        lengths = np.sqrt(np.einsum("qd,qd->q", moved, moved, dtype=np.float64))
        farthest = (lengths + self._longest) ** 2
        # Near the limit of float32, a sum can be infinite although its difference is not. Squares
        # of short lengths lose digits.
        in_range = (farthest < np.finfo(np.float32).max / 2) & (farthest > 1e-30)
        return in_range & (kth**2 < last - error * farthest)
