"""A trained ScaNN tree. Requires ScaNN."""

from __future__ import annotations

import dataclasses
import logging
import pathlib
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any, cast

import numpy as np

from keras_dml._common.checks import check_positive
from keras_dml._common.errors import ArgumentError, argument_error
from keras_dml._common.types import Float32Array, Int64Array, Metric
from keras_dml.retrieval.centering import CenteringTransform
from keras_dml.retrieval.items import Change, Removal
from keras_dml.retrieval.tree import RECALL_NEIGHBORS, TreeAH

# ScaNN's names of the metrics.
SCANN_MEASURES = {"cosine": "dot_product", "l2": "squared_l2"}
# Fraction of the items' variance that the principal components must keep, and the sample size.
_SHARE, _SHARE_ROWS = 0.95, 20_000
# `reorder` can grow by this factor to reach `target_recall`.
_MOST_REORDER = 16
# Number of items that ScaNN encodes at once. Inserting them one by one takes three times as long.
_INSERTED_AT_ONCE = 64
# A tree is retrained when it contains more than this multiple of the items it was trained on.
_MOST_GROWTH = 2
_ONLY_COSINE = "ScaNN supports it only for metric='cosine'."


@dataclasses.dataclass
class TreeSearcher:
    """A tree trained on an index's items, with the requested and the actual parameters.

    Attributes:
        searcher: ScaNN's searcher.
        count: Number of items.
        asked: `TreeAH` from the caller.
        tree: `TreeAH` with all numbers. `tune` can set the numbers of the search later.
        centering: `CenteringTransform` of the items at training time.
        metric: "cosine" or "l2".
        recall: Fraction of the exact nearest items that it finds. None before the measurement.
        trained_on: Number of items at training time. 0 is `count`.
    """

    searcher: Any
    count: int
    asked: TreeAH
    tree: TreeAH
    centering: CenteringTransform
    metric: Metric
    recall: float | None = None
    trained_on: int = 0

    def __post_init__(self) -> None:
        self.trained_on = self.trained_on or self.count

    @classmethod
    def trained(
        cls, scann: ModuleType, rows: Float32Array, metric: Metric, asked: TreeAH
    ) -> TreeSearcher | None:
        """Train on prepared rows float32 `[n, d]`. Returns None for brute force."""
        tree = asked.for_items(*rows.shape)
        if tree is None:
            return None
        centering = CenteringTransform.chosen(rows, metric)
        items = centering.trained_on(rows)
        dimensions = _projected(items, rows.shape[1], metric, tree)
        if tree.soar_lambda is not None and metric != "cosine":
            wanted = f"None for metric={metric!r}"
            raise argument_error("soar_lambda", wanted, tree.soar_lambda, advice=_ONLY_COSINE)
        blocks = min(tree.dimensions_per_block, dimensions)
        tree = dataclasses.replace(
            tree, projected_dimensions=dimensions, dimensions_per_block=blocks
        )
        builder = scann.builder(items, RECALL_NEIGHBORS, SCANN_MEASURES[metric])
        if dimensions < rows.shape[1]:
            # ScaNN requires None for the other two settings if the number of components is set.
            builder.pca(dimensions, None, None)
        builder.tree(
            tree.num_leaves,
            tree.leaves_to_search or tree.num_leaves,
            training_sample_size=tree.training_sample,
            soar_lambda=tree.soar_lambda,
        )
        builder.score_ah(
            blocks,
            anisotropic_quantization_threshold=tree.anisotropic_threshold,
            training_sample_size=tree.training_sample,
        )
        reorder_types = scann.scann_builder.ReorderType
        builder.reorder(tree.reorder, quantize=reorder_types[tree.reorder_dtype.upper()])
        return cls(builder.build(), len(items), asked, tree, centering, metric)

    @classmethod
    def loaded(
        cls, scann: ModuleType, folder: pathlib.Path, description: Mapping[str, Any]
    ) -> TreeSearcher:
        """Load the searcher from the output of `serialize`, and from `index.json`.

        Raises:
            ArgumentError: The center or the lift is invalid.
            RuntimeError: ScaNN's files have other dimensions than the items.
        """
        center, dimensions = description["center"], description["dimensions"]
        middle = np.zeros(dimensions) if center is None else np.array(center)
        if middle.shape != (dimensions,):
            raise argument_error("center", f"{dimensions} numbers", center)
        lift = description["lift"]
        if lift is not None:
            check_positive("lift", lift)
        loaded = cls(
            scann.load_searcher(str(folder), assets_backcompat_shim=False),
            description["items"],
            TreeAH(**description["asked"]),
            TreeAH(**description["tree"]),
            CenteringTransform(middle, lift),
            description["metric"],
            description["recall"],
            description["trained_on"],
        )
        loaded.search(np.zeros((1, dimensions), np.float32), 1)  # finds numbers of another tree
        return loaded

    def serialize(self, folder: pathlib.Path, rows: str | None = None) -> None:
        """Write ScaNN's files into `folder`, which can be moved.

        Args:
            folder: A `pathlib.Path`.
            rows: None, or the path from `folder` to an .npy file of the index's rows. If the tree
                was trained on exactly these rows, they are not written again.
        """
        self.searcher.serialize(str(folder), relative_path=True)
        whole = folder / "dataset.npy"
        if rows is not None and not self.centering.moves and whole.exists():
            assets = folder / "scann_assets.pbtxt"
            assets.write_text(assets.read_text().replace('"dataset.npy"', f'"{rows}"'))
            whole.unlink()

    def parameters(self) -> dict[str, object]:
        """Return the JSON values that `loaded` needs in addition to the folder."""
        asked, tree = dataclasses.asdict(self.asked), dataclasses.asdict(self.tree)
        said = {"asked": asked, "tree": tree, "recall": self.recall, "lift": self.centering.lift}
        # The mean of the items can have changed since training.
        center = self.centering.center.tolist() if self.centering.moves else None
        return said | {"center": center, "trained_on": self.trained_on}

    def update(self, change: Change) -> bool:
        """Apply a change of the index's rows to ScaNN's items, while no search runs.

        ScaNN's Python class requires "docids", stores them in a list and a dictionary, and pickles
        both when it saves. The inner searcher has plain row numbers, as this library does: a new
        item comes last, and the last item replaces a deleted one. ScaNN's `rebalance` is not used,
        because it retrains everything in place, with the previous number of leaves.

        Returns:
            Whether the change is applied. ScaNN 1.4.2 refuses to change some searchers (int8 for
            "l2"). It accepts changes of a searcher with SOAR, but then writes beyond its memory:
            the process crashes, at once or when the searcher is deleted. The leaves and codes do
            not fit many more items than those of the training.
        """
        fixed = self.tree.soar_lambda is not None or (
            self.tree.reorder_dtype == "int8" and self.metric == "l2"
        )
        if isinstance(change, Removal):
            count = self.count - len(change.rows)
        else:
            count = self.count + int((change.places < 0).sum())
        if fixed or not 0 < count <= _MOST_GROWTH * self.trained_on:
            return False
        searcher = self.searcher.searcher
        self.recall = None
        if isinstance(change, Removal):
            searcher.delete(change.rows.tolist())
        else:
            places = [None if place < 0 else place for place in change.places.tolist()]
            searcher.upsert(places, self.centering.trained_on(change.rows), _INSERTED_AT_ONCE)
        self.count = count
        return True

    def check_served(self) -> None:
        """Raise `ValueError` unless ScaNN's TensorFlow operations support this tree."""
        if self.tree.soar_lambda is not None or self.tree.reorder_dtype != "float32":
            raise ArgumentError(
                "tree must have no soar_lambda and reorder_dtype='float32' to be served by "
                f"TensorFlow, but got {self.asked}."
            )

    def search(self, queries: Float32Array, k: int) -> tuple[np.ndarray, np.ndarray]:
        """Return `(rows, raw scores)` `[q, k]` of prepared queries. A missing raw score is NaN."""
        leaves, queries = self.tree.leaves_to_search, self.centering.queries(queries)
        return self.searcher.search_batched_parallel(queries, k, self.reordered(k), leaves)

    def asked_for(self, k: int) -> int:
        """Return how many items to request to get the k best by exact scores.

        Rounded numbers change ScaNN's cut at k: "int8" loses 4 % of the nearest ten.
        """
        more = {"float32": 0, "bfloat16": 8, "int8": k + 8}[self.tree.reorder_dtype]
        return min(k + more, self.count)

    def reordered(self, k: int) -> int:
        """Return how many items to compare by their float32 rows to find k."""
        # The requested number can have exceeded the number of items at training time.
        most = max(cast(int, self.tree.reorder), self.asked.reorder or 0, 2 * k)
        return min(most, self.count)

    def tune(self, recall: Callable[[], float]) -> None:
        """Choose the parameters that `target_recall` determines, and measure the recall.

        Args:
            recall: Function without arguments that measures the recall of this searcher.
        """
        if self.tree.leaves_to_search is not None:
            self.recall = recall()
            return

        def measured(leaves: int, reorder: int) -> float:
            self.tree = dataclasses.replace(self.tree, leaves_to_search=leaves, reorder=reorder)
            self.recall = found = recall()
            return found

        # `for_items` guarantees that all three are numbers.
        target = cast(float, self.asked.target_recall)
        leaves, reorder = cast(int, self.tree.num_leaves), cast(int, self.tree.reorder)
        most = reorder if self.asked.reorder else min(_MOST_REORDER * reorder, self.count)
        while (reached := measured(leaves, reorder)) < target and reorder < most:
            reorder = min(2 * reorder, most)
        if reached < target:
            logging.getLogger("keras_dml").warning(
                "target_recall=%g is not reached: all %d leaves with reorder=%d find %.4f of the "
                "exact %d nearest. A larger reorder finds more.",
                target, leaves, reorder, reached, RECALL_NEIGHBORS,
            )  # fmt: skip
            return
        low, high = 0, 1
        while high < leaves and measured(high, reorder) < target:
            low, high = high, min(2 * high, leaves)
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if measured(middle, reorder) < target else (low, middle)
        measured(high, reorder)


def _projected(items: Float32Array, dimensions: int, metric: Metric, tree: TreeAH) -> int:
    """Return the number of principal components, or `dimensions` for no projection."""
    given = tree.projected_dimensions
    if metric != "cosine":
        # ScaNN projects only for inner products.
        if (given or dimensions) < dimensions:
            wanted = f"None for metric={metric!r}"
            raise argument_error("projected_dimensions", wanted, given, advice=_ONLY_COSINE)
        return dimensions
    if given:
        return given
    sample = items[sample_of(len(items), _SHARE_ROWS)].astype(np.float64)
    # ScaNN's components are computed from uncentered rows. Only the difference from the mean
    # distinguishes items, however long the mean is.
    lengths = np.linalg.eigvalsh(sample.T @ sample / len(sample))
    lost = np.concatenate([[0.0], np.cumsum(lengths)])[-2::-1]  # by 1, 2, … components
    enough = int(np.argmax(lost <= (1 - _SHARE) * sample.var(axis=0).sum())) + 1
    return enough if 2 * enough <= dimensions else dimensions


def sample_of(count: int, size: int) -> Int64Array:
    """Return `size` of the row numbers below `count`, or all of them, ascending."""
    return np.sort(np.random.default_rng(0).choice(count, min(size, count), replace=False))
