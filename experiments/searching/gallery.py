"""The images that are searched: those of an index in a folder, or of a store."""

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

# A store that computes in float32 ranks by numbers that may be off by so much of them.
_ROUNDING = 1e-5
# Candidates beyond those that are asked for; and the most, where ever more are equally near.
_AHEAD, _MOST = 10, 20_000


class Neighbors(NamedTuple):
    """Paths, scores and embeddings (as an index holds them) `[n, d]`, nearest first."""

    paths: list[str]
    scores: list[float]
    embeddings: npt.NDArray[np.float32]


class Gallery(abc.ABC):
    """Images with their embeddings and what is known of them.

    Attributes:
        saved_model, fingerprint: where the model that embeds was, and of its files.
        images: where the images' folder was.
        metric: "cosine" or "l2".
        paths: of all images, from their folder.
        columns: what is known of them, in the same order.
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
        """The k nearest images of an embedding `[1, d]`, by the scores of `keras_dml.retrieval`.

        Args:
            embedding: the model's.
            k: at most as many as `where` lets in.
            where: conditions on columns, exactly among what fits them.
            mask: the same as `Columns.mask` of them.
        """

    def close(self) -> None:  # noqa: B027, a folder is not held
        """Let go what is held."""


def open_gallery(place: str | os.PathLike[str]) -> Gallery:
    """What `--index` names.

    Args:
        place: the folder of `experiments.index`, or a store's address as `--to` takes it.

    Raises:
        ValueError: there is none, it is damaged or not finished.
    """
    if isinstance(place, str) and is_address(place):
        return StoreGallery(open_store(parsed_address(place, "index")))
    return FolderGallery(pathlib.Path(place))


class FolderGallery(Gallery):
    """What `experiments.index` keeps in a folder."""

    def __init__(self, folder: pathlib.Path) -> None:
        settings = read_settings(folder)
        if settings["built"] is None and settings.get("store"):  # of --engine=ray
            raise UsageError(
                f"there is no index in {folder}: its images are in {settings['store']}"
            )
        if settings["built"] is None:
            raise UsageError(
                f"the index in {folder} is not finished: give its python -m experiments.index "
                "command again, which goes on where it stopped"
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
    """What `experiments.index --to` keeps in a store.

    The store finds candidates, whose scores are then computed as an index computes them: so the
    neighbors, their order and their scores are those of an exact index. Paths and columns are read
    once; images that come later are not found, those that are gone are left out.
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
        # The order that the index has of which the store is.
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
        """Candidates by their exact scores, of equal ones the first path first."""
        # Another process may write while this one searches: each path once.
        row_of = {path: place for place, path in enumerate(paths) if path in self._known}
        known = [row_of[path] for path in sorted(row_of)]
        if not known:
            return Neighbors([], [], vectors[:0])
        items = Items(vectors[known], [paths[place] for place in known])
        ids, scores = ExactIndex(items, self.metric).search(query, len(known))
        order = ids[0].tolist()
        return Neighbors(order, scores[0].tolist(), vectors[[row_of[path] for path in order]])


def _is_certain(scores: list[float], k: int) -> bool:
    """Whether nothing beyond these candidates can be among the k nearest."""
    if len(scores) <= k:
        return False
    least = _ROUNDING * max(1.0, abs(scores[k - 1]))
    return abs(scores[k - 1] - scores[-1]) > least
