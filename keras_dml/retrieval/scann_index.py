"""Search by ScaNN, exact or through a tree. Needs ScaNN (Linux) and its TensorFlow."""

from __future__ import annotations

import dataclasses
import logging
import pathlib
import tempfile
from collections.abc import Sequence
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from keras_dml.checks import shown
from keras_dml.errors import ArgumentTypeError
from keras_dml.extras import needing
from keras_dml.nearness import Metric
from keras_dml.retrieval.changes import Change
from keras_dml.retrieval.index import Index
from keras_dml.retrieval.items import EMBEDDINGS, Items
from keras_dml.retrieval.rows import center, centered, row_blocks
from keras_dml.retrieval.tree import RECALL_NEIGHBORS, SMALLEST, TreeAH
from keras_dml.retrieval.tree_searcher import (
    SCANN_MEASURES,
    TreeSearcher,
    recall_of_others,
    recall_sample,
)

if TYPE_CHECKING:
    from keras_dml.retrieval.serving import SearchModule

_logger = logging.getLogger("keras_dml")
_QUERIES = 4096
# Items asked for beyond k: enough that the k-th nearest is seldom within rounding of the last.
_SPARE = 8
# So many changed rows are brought into a new tree while searches wait: some ten milliseconds.
_FEW_ROWS = 500


def import_scann() -> ModuleType:
    """The module `scann.scann_ops_pybind`.

    Raises:
        MissingExtraError: ScaNN is not installed, or does not load with this TensorFlow.
    """
    with needing("search", "ScannIndex"):
        try:
            from scann import scann_ops_pybind
        except ImportError:
            raise
        # Its compiled operations fail with an error of TensorFlow's when the versions do not match.
        except Exception as error:
            raise ImportError(f"ScaNN does not load: {error}", name="scann") from error
    return scann_ops_pybind


class ScannIndex(Index):
    """Search by ScaNN (Guo et al., 2020): the answers of `ExactIndex`, or with a tree most of them.

    Without `tree` ScaNN compares each query with all items in float32. Its own scores are rounded
    differently from call to call: two equal rows may get unequal ones, and an item on either side
    of the cut at k may swap with one as near. So ScaNN is asked for a few items more than k, these
    are scored again as `Index` defines, and a query whose k-th item is not nearer than the last
    one by more than float32 products can be wrong is searched again with float64 products.

    With a tree, ScaNN's k items are scored again as `Index` defines, so scores are exact where
    items may be missing. A query for which the leaves hold fewer than k items is searched exactly.
    ScaNN rounds codes otherwise for one query than for many, so what is missing may change with
    the batch that a query is in.

    Items that are added, replaced or removed are inserted into or deleted from the trained tree.
    It is trained again at the next search when it has come to hold more than twice the items that
    it was trained on, and at every change with `TreeAH.soar_lambda`, or "int8" for "l2", which
    ScaNN cannot change; `rebalance` trains it beside the searches, when `measured_recall` has
    become too low for instance.

    In memory: the items in float32, ScaNN's copy of them, and with a tree a code of 4 bits for
    every `dimensions_per_block` projected dimensions. While it is built for "l2", or with a tree
    for "cosine" and a mean so long that it is taken off (see `retrieval.frame.Frame`), one copy
    more. With that mean rows of zeros, if there are any, may keep as many others out of an answer
    whose last items are less similar to the query than most are.

    See `Index` for the other arguments, order and errors.

    Examples:
        >>> items = [[1.0, 0.0], [0.8, 0.6], [0.0, 1.0]]
        >>> index = ScannIndex(items)
        >>> index.search([[1.0, 0.1]], k=1)[0]
        array([[0]])

    Args:
        tree: None, or `TreeAH`.

    Raises:
        MissingExtraError: ScaNN is not installed, or does not load with this TensorFlow.
        TypeError: `tree` is something else.
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
        # A trained searcher comes from `load_index`.
        if not isinstance(tree, (TreeAH, TreeSearcher, type(None))):
            raise ArgumentTypeError(f"tree must be None or a TreeAH. Received: tree={shown(tree)}")
        self._scann = import_scann()
        self._asked: TreeAH | None
        self._tree: TreeSearcher | None
        if isinstance(tree, TreeSearcher):
            self._asked, self._tree = tree.asked, tree
        else:
            self._asked, self._tree = tree, None
        super().__init__(embeddings, metric, ids)

    @property
    def tree(self) -> TreeAH | None:
        """The `TreeAH` in use, each of its numbers given; None: brute force."""
        with self._ready():
            return None if self._tree is None else self._tree.tree

    @property
    def measured_recall(self) -> float | None:
        """Share of the exact 10 nearest other items that the tree finds; None: brute force.

        Measured when the tree is built and, after changes, when it is asked for; with 1,000 of the
        items (all, if fewer) as queries.
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
        """As in `Index`, of ScaNN's own TensorFlow operations.

        They are there where `import scann` has run: in the process that loads the SavedModel too.
        It holds the items twice, in a variable and in ScaNN's own memory. The first call in a
        process copies them.

        Raises:
            ValueError: a tree that these operations do not know: with SOAR, or reordering by other
                numbers than float32.
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
                middle, lift = self._tree.frame.center, self._tree.frame.lift
                if lift is not None:
                    # It scores by ScaNN's items, so those of zeros must not lie at the mean.
                    np.save(folder / "dataset.npy", self._tree.frame.items(self._rows))
                leaves = self._tree.tree.leaves_to_search
                how = {"spare": 0, "reorder": self._tree.reordered, "leaves": leaves}
            ids = self._items.first(self._built).ids
            return ScannSearchModule(folder, ids, self._metric, middle, lift=lift, **how)

    def _build(self, first: bool) -> None:
        if first and self._tree is not None:
            return
        self._tree = None
        # An index that has shrunk may be too small for the tree that was asked for.
        if self._asked is not None and (first or self._asked.fits(self._built)):
            self._tree = TreeSearcher.trained(self._scann, self._rows, self._metric, self._asked)
            if self._tree is not None:
                self._measure_recall(self._tree)
                return
            _logger.info("%d items: brute force, no tree below %d", self._built, SMALLEST)
        self._center = center(self._rows, self._metric)
        items = centered(self._rows, self._center)
        squares = (
            np.einsum("nd,nd->n", items[block], items[block], dtype=np.float64).max()
            for block in row_blocks(items)
        )
        self._longest = np.sqrt(max(squares))
        spare, measure = min(_SPARE, self._built), SCANN_MEASURES[self._metric]
        self._brute_force = self._scann.builder(items, spare, measure).score_brute_force().build()

    def _update(self, change: Change) -> bool:
        if self._tree is None or not self._tree.takes(change):
            self._tree = None
            return False
        self._tree.update(change)
        return True

    def _rebalance(self) -> None:
        with self._changing():
            asked = self._asked
            if asked is None or not self.num_items or not asked.fits(self.num_items):
                return
            rows, self._changes = self._items.lent_rows(), []
        try:
            trained = ScannIndex(Items(rows), self._metric, tree=asked)._tree
            while trained is not None:
                with self._changing():
                    changes, self._changes = self._changes, []
                    if sum(len(change.rows) for change in changes) <= _FEW_ROWS:
                        self._adopt(trained, changes)
                        return
                # Many are done beside the searches.
                if not trained.update_all(changes):
                    return
        finally:
            self._changes = None

    def _adopt(self, trained: TreeSearcher, changes: Sequence[Change]) -> None:
        """Search by `trained` from now on, once `changes` are done to it."""
        if trained.update_all(changes):
            self._tree, self._stale = trained, False

    def _measure_recall(self, searcher: TreeSearcher) -> None:
        sample = recall_sample(self._built)
        queries, k = self._rows[sample], min(RECALL_NEIGHBORS, self._built - 1)
        _, scores = self._exactly(queries, k + 1)
        exact = self._nearness(scores)

        def recall() -> float:
            rows, scores = self._through_tree(searcher, queries, k + 1)
            return recall_of_others(sample, exact, rows, self._nearness(scores))

        searcher.tune(recall)
        tree = searcher.tree
        _logger.info(
            "tree of %d leaves, %d searched, %d reordered: finds %.2f %% of the exact %d nearest",
            tree.num_leaves, tree.leaves_to_search, tree.reorder, 100 * (searcher.recall or 0), k,
        )  # fmt: skip

    def _nearest(self, queries: npt.NDArray[np.float32], k: int) -> tuple[np.ndarray, np.ndarray]:
        if self._tree is None:
            return self._by_brute_force(queries, k)
        return self._through_tree(self._tree, queries, k)

    def _through_tree(
        self, searcher: TreeSearcher, queries: npt.NDArray[np.float32], k: int
    ) -> tuple[np.ndarray, np.ndarray]:
        candidates, raw = searcher.search(queries, searcher.asked_for(k))
        # NaN of leaves that hold too few items, infinity beyond float32's range.
        short = ~np.isfinite(raw).all(axis=1)
        rows, scores = self._ranked(queries, candidates, k)
        if short.any():
            rows[short], scores[short] = self._exactly(queries[short], k)
        return rows, scores

    def _by_brute_force(
        self, queries: npt.NDArray[np.float32], k: int
    ) -> tuple[np.ndarray, np.ndarray]:
        asked = min(k + _SPARE, self._built)
        moved = centered(queries, self._center)
        candidates, raw = self._brute_force.search_batched_parallel(moved, asked)
        rows, scores = self._ranked(queries, candidates, k)
        # Beyond float32's range ScaNN gives infinity, or NaN and one item again and again.
        unsure = ~np.isfinite(raw).all(axis=1)
        if asked < self._built:
            unsure |= ~self._is_clear(moved, scores[:, -1], raw[:, -1])
        if unsure.any():
            rows[unsure], scores[unsure] = self._exactly(queries[unsure], k)
        return rows, scores

    def _is_clear(self, moved: np.ndarray, kth: np.ndarray, last: np.ndarray) -> np.ndarray:
        """Whether no item that ScaNN left out can be as near as the k-th found, `[q]`.

        Args:
            moved: the queries as ScaNN saw them, `[q, d]`.
            kth: the k-th best score, as `Index` defines it, `[q]`.
            last: ScaNN's score of the last item that it returned: similarity or squared distance.
        """
        # A float32 sum of d products is wrong by at most d·2⁻²⁴ times the vectors' lengths; the
        # 4 more cover the rounding of scores and of centred numbers. Written so that NaN (lengths
        # beyond float32's range) is not clear.
        error = (self.dimensions + 4) * 2.0**-24
        kth, last = kth.astype(np.float64), last.astype(np.float64)
        if self._metric == "cosine":
            return kth > last + error
        lengths = np.sqrt(np.einsum("qd,qd->q", moved, moved, dtype=np.float64))
        farthest = (lengths + self._longest) ** 2
        # Near the end of float32's range a sum may be infinite while its difference would not be.
        in_range = farthest < np.finfo(np.float32).max / 2
        return in_range & (kth**2 < last - error * farthest)
