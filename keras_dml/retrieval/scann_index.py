"""Search by ScaNN, exact or with a tree. Requires ScaNN (Linux), on any backend."""

from __future__ import annotations

import dataclasses
import functools
import pathlib
import tempfile
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from keras_dml._common.errors import ArgumentTypeError, argument_error
from keras_dml._common.rows import centered
from keras_dml._common.types import Float32Array, Metric
from keras_dml.retrieval.index import Index, in_blocks
from keras_dml.retrieval.items import EMBEDDINGS, Change, Items
from keras_dml.retrieval.scann_import import import_scann
from keras_dml.retrieval.tree import TreeAH
from keras_dml.retrieval.tree_searcher import SCANN_MEASURES, TreeSearcher

if TYPE_CHECKING:
    from keras_dml.retrieval.serving import SearchModule

_QUERIES = 4096
# Number of items beyond k to request, so that the k-th is rarely within rounding of the last.
_SPARE = 8


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
    ScaNN cannot change such a tree. `rebalance` retrains it, for example if `measured_recall` is
    too low.

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
        MissingExtraError: ScaNN is not installed, or does not load.
        TypeError: `tree` has another type.
    """

    kind = "scann"

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
        self._tree = tree if isinstance(tree, TreeSearcher) else None
        self._asked = tree.asked if isinstance(tree, TreeSearcher) else tree
        super().__init__(embeddings, metric, ids)
        if isinstance(tree, TreeAH) and not isinstance(embeddings, Items):
            tree.for_items(self.num_items, self.dimensions)  # raises the error for too few items

    @classmethod
    def loaded(
        cls, items: Items, description: Mapping[str, Any], folder: pathlib.Path
    ) -> ScannIndex:
        """Create an index from its items, the JSON values that `save` wrote, and ScaNN's files.

        Raises:
            OSError, RuntimeError, ValueError: ScaNN cannot read the tree, for example a tree of
                another version.
        """
        tree: TreeAH | TreeSearcher | None = None
        if "tree" in description:
            tree = TreeSearcher.loaded(import_scann(), folder, description)
        elif "asked" in description:
            tree = TreeAH(**description["asked"])
        return cls(items, description["metric"], tree=tree)

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
        """Return the index as in `Index`, with a tree by ScaNN's TensorFlow operations.

        The operations need TensorFlow 2.20, and exist only after `import scann`, also in the
        process that loads the SavedModel. The SavedModel contains the items twice, in a variable
        and in ScaNN's memory. The first call in a process copies them. Without a tree, no operation
        of ScaNN is needed.

        Raises:
            ValueError: The index is empty, or the operations do not support the tree: it uses SOAR,
                or reorders by numbers other than float32.
            MissingExtraError: The index has a tree, and TensorFlow is not 2.20.
        """
        from keras_dml.retrieval.serving import ScannSearchModule

        with (
            self._ready(),
            tempfile.TemporaryDirectory(prefix="keras_dml_scann_") as name,
        ):
            tree, folder = self._tree, pathlib.Path(name)
            if tree is None:
                return super().serving_module()
            tree.check_served()
            tree.serialize(folder)
            middle, lift = tree.centering.center, tree.centering.lift
            if lift is not None:
                # The module scores by ScaNN's items, so rows of zeros must not be at the mean.
                np.save(folder / "dataset.npy", tree.centering.items(self._rows))
            return ScannSearchModule(
                folder,
                self._items.ids,
                self._metric,
                middle,
                lift,
                reorder=tree.reordered,
                leaves=tree.tree.leaves_to_search,
            )

    def rebalance(self) -> None:  # noqa: D102, as in Index
        with self._lock:
            trained = self._trained()
            if trained is not None:
                self._tree, self._stale = trained, False

    def _build(self) -> None:
        if self._tree is None:  # else it is loaded
            self._tree = self._trained()
        if self._tree is None:
            items = centered(self._rows, self._products.center)
            spare, measure = min(_SPARE, self.num_items), SCANN_MEASURES[self._metric]
            builder = self._scann.builder(items, spare, measure)
            self._brute_force = builder.score_brute_force().build()

    def _trained(self) -> TreeSearcher | None:
        """Train a tree on the items. Returns None for brute force."""
        # An index that has shrunk can be too small for the requested tree.
        if self._asked is None or not self._asked.fits(self.num_items):
            return None
        tree = TreeSearcher.trained(self._scann, self._rows, self._metric, self._asked)
        if tree is not None:
            self._measure_recall(tree)
        return tree

    def _update(self, change: Change) -> bool:
        tree, self._tree = self._tree, None  # an error can leave the change half done
        if tree is None or not tree.update(change):
            return False
        self._tree = tree
        return True

    def _measure_recall(self, searcher: TreeSearcher) -> None:
        recall = self._recall_measure()
        searcher.tune(lambda: recall(functools.partial(self._through_tree, searcher)))

    def _nearest(self, queries: Float32Array, k: int) -> tuple[np.ndarray, np.ndarray]:
        search = self._by_brute_force
        if self._tree is not None:
            search = functools.partial(self._through_tree, self._tree)
        return in_blocks(search, queries, k, _QUERIES)

    def _through_tree(
        self, searcher: TreeSearcher, queries: Float32Array, k: int
    ) -> tuple[np.ndarray, np.ndarray]:
        candidates, raw = searcher.search(queries, searcher.asked_for(k))
        # NaN if the leaves contain too few items, and infinity beyond the range of float32.
        short = ~np.isfinite(raw).all(axis=1)
        rows, scores = self._ranked(queries, candidates, k)
        if short.any():
            rows[short], scores[short] = self._exactly(queries[short], k)
        return rows, scores

    def _by_brute_force(self, queries: Float32Array, k: int) -> tuple[np.ndarray, np.ndarray]:
        asked = min(k + _SPARE, self.num_items)
        moved = centered(queries, self._products.center)
        candidates, raw = self._brute_force.search_batched_parallel(moved, asked)
        rows, scores = self._ranked(queries, candidates, k)
        # Beyond the range of float32, ScaNN returns infinity, or NaN and the same item repeatedly.
        unsure = ~np.isfinite(raw).all(axis=1)
        if asked < self.num_items:
            last = raw[:, -1]
            if self._metric == "l2":  # ScaNN's scores are squares
                last = -np.sqrt(np.maximum(last, 0))
            unsure |= ~self._products.are_clear(queries, self._nearness(scores[:, -1]), last)
        if unsure.any():
            rows[unsure], scores[unsure] = self._exactly(queries[unsure], k)
        return rows, scores
