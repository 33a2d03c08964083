"""The images that a search compares with a query: from an index folder or from a store."""

from __future__ import annotations

import abc
import os
import pathlib
from typing import NamedTuple, cast

import numpy as np
import numpy.typing as npt

from experiments.options.errors import UsageError
from experiments.searching.addresses import is_address, open_store, parsed_address
from experiments.searching.columns import Columns, StoredColumns, Where, read_columns
from experiments.searching.index_settings import INDEX, read_settings
from experiments.searching.store import CLASS, PATH, Store, StoreError
from keras_dml._common.rows import prepared_rows
from keras_dml._common.types import Metric
from keras_dml.retrieval import ExactIndex, load_index
from keras_dml.retrieval.items import Items

__all__ = ["FolderGallery", "Gallery", "Neighbors", "StoreGallery", "open_gallery"]

# The relative error of float32 scores in a store.
_ROUNDING = 1e-5
# Additional candidates, and the most candidates with equal scores.
_AHEAD, _MOST = 10, 20_000


class Neighbors(NamedTuple):
    """Paths, scores, and embeddings `[n, d]`, nearest first."""

    paths: list[str]
    scores: list[float]
    embeddings: npt.NDArray[np.float32]


class Gallery(abc.ABC):
    """Images with embeddings and columns.

    Attributes:
        saved_model: the folder of the model when the index was made.
        fingerprint: the fingerprint of the model's files.
        images: the images' folder when the index was made.
        metric: "cosine" or "l2".
        paths: the paths of all images from their folder.
        columns: the columns of the images, in the same order.
    """

    saved_model: str
    fingerprint: str
    images: str
    metric: Metric
    paths: list[str]
    columns: Columns

    @abc.abstractmethod
    def nearest(
        self,
        embedding: npt.NDArray[np.float32],
        k: int,
        where: Where,
        mask: npt.NDArray[np.bool_] | None,
    ) -> Neighbors:
        """Return the k nearest images of an embedding `[1, d]`, scored as in `keras_dml.retrieval`.

        Args:
            embedding: the model's embedding.
            k: at most the number of images that `where` allows.
            where: conditions on columns. The search is exact among the images that meet them.
            mask: the result of `Columns.mask` for the conditions.
        """

    def close(self) -> None:  # noqa: B027
        """Close the connection to a store."""


def open_gallery(place: str | os.PathLike[str]) -> Gallery:
    """Open an index folder or a store.

    Args:
        place: the folder of `experiments.index`, or a store address.

    Raises:
        UsageError: if the index is missing, damaged, or not finished.
    """
    if isinstance(place, str) and is_address(place):
        return StoreGallery(open_store(parsed_address(place, "index")))
    return FolderGallery(pathlib.Path(place))


class FolderGallery(Gallery):
    """A gallery from the folder of `experiments.index`."""

    def __init__(self, folder: pathlib.Path) -> None:
        settings = read_settings(folder)
        if settings["built"] is None and settings.get("store"):  # written with --engine=ray
            raise UsageError(
                f"{folder} has no index. Its images are in the store {settings['store']}"
            )
        if settings["built"] is None:
            raise UsageError(
                f"the index in {folder} is not finished: give its python -m experiments.index "
                "command again, which continues where it stopped"
            )
        self.saved_model, self.images = settings["saved_model"], settings["images"]
        self.fingerprint = settings["fingerprint"]
        try:
            self.index = load_index(folder / INDEX)
        except ValueError as error:
            raise UsageError(f"{error}. Its python -m experiments.index builds it again") from error
        self.metric = self.index.metric
        self.paths = self.index.ids.tolist()
        self.columns = read_columns(folder, self.paths)

    def nearest(  # noqa: D102, as in Gallery
        self,
        embedding: npt.NDArray[np.float32],
        k: int,
        where: Where,
        mask: npt.NDArray[np.bool_] | None,
    ) -> Neighbors:
        ids, scores = self.index.search(embedding, k, mask)
        paths = ids[0].tolist()
        return Neighbors(paths, scores[0].tolist(), self.index.embeddings_of(paths))


class StoreGallery(Gallery):
    """A gallery from a store of `experiments.index --to`.

    The store finds candidates, and this class scores them as an exact index does. Paths and
    columns are read once. A search ignores images that are added later.
    """

    def __init__(self, store: Store) -> None:
        self.store = store
        description = store.description()
        if description is None or not store.is_finished():
            there = "is not finished" if description else "is not there"
            raise UsageError(
                f"the index in {store} {there}: python -m experiments.index --to={store} makes it"
            )
        self.saved_model, self.images = description.saved_model, description.images
        self.fingerprint = description.fingerprint
        self.metric = cast("Metric", description.metric)
        names = [CLASS, *description.columns]
        rows = [row for block in store.values([PATH, *names]) for row in block]
        # The order of the index.
        rows.sort()
        self.paths = [row[0] for row in rows]
        if repeated := len(rows) - len(set(self.paths)):
            raise StoreError(
                f"{store} holds {repeated:,} images too many, which repeat others: python -m "
                f"experiments.index --to={store} repairs the table"
            )
        known = {row[0]: list(row[1:]) for row in rows}
        self.columns = Columns(self.paths, StoredColumns(names, None, known))
        if not self.paths:
            raise UsageError(f"the index in {store} holds no images")
        self._known = known.keys()

    def nearest(  # noqa: D102, as in Gallery
        self,
        embedding: npt.NDArray[np.float32],
        k: int,
        where: Where,
        mask: npt.NDArray[np.bool_] | None,
    ) -> Neighbors:
        query = prepared_rows(embedding, "embedding", self.metric)
        asked = self.columns.values_asked(where)
        number = k + _AHEAD
        while True:
            paths, vectors = self.store.nearest(query[0], number, self.metric, asked)
            found = self._ranked(query, paths, vectors)
            is_all = len(paths) < number or number >= _MOST
            if is_all or _is_certain(found.scores, k):
                return Neighbors(found.paths[:k], found.scores[:k], found.embeddings[:k])
            number = min(4 * number, _MOST)

    def close(self) -> None:  # noqa: D102
        self.store.close()

    def _ranked(
        self, query: npt.NDArray[np.float32], paths: list[str], vectors: npt.NDArray[np.float32]
    ) -> Neighbors:
        """Rank candidates by their exact scores, and equal scores by path."""
        # Keep each path once, because another process can write at the same time.
        row_of = {path: place for place, path in enumerate(paths) if path in self._known}
        known = [row_of[path] for path in sorted(row_of)]
        if not known:
            return Neighbors([], [], vectors[:0])
        items = Items(vectors[known], [paths[place] for place in known])
        ids, scores = ExactIndex(items, self.metric).search(query, len(known))
        order = ids[0].tolist()
        return Neighbors(order, scores[0].tolist(), vectors[[row_of[path] for path in order]])


def _is_certain(scores: list[float], k: int) -> bool:
    """Return whether images beyond the candidates cannot be among the k nearest."""
    if len(scores) <= k:
        return False
    least = _ROUNDING * max(1.0, abs(scores[k - 1]))
    return abs(scores[k - 1] - scores[-1]) > least
