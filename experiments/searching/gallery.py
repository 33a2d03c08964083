"""The images that a search compares with a query: from an index folder or from a store."""

from __future__ import annotations

import os
import pathlib
import shlex
from typing import NamedTuple, cast

from experiments.options.errors import UsageError
from experiments.searching.addresses import is_address, parsed_address
from experiments.searching.columns import Columns, Mask, StoredColumns, Where, read_columns
from experiments.searching.index_folder import INDEX, has_mapped_rows, read_settings
from experiments.searching.index_map import read_map
from experiments.searching.store import CLASS, PATH, Description, Store, Vectors, open_store
from keras_dml._common.rows import prepared_rows
from keras_dml._common.types import Metric
from keras_dml._files.atomic import read_folder
from keras_dml.retrieval import ExactIndex, load_index
from keras_dml.retrieval.items import Items

# Additional candidates from a store, because the store rounds scores differently.
_AHEAD = 100


class Neighbors(NamedTuple):
    """Paths, scores, and embeddings `[n, d]`, nearest first."""

    paths: list[str]
    scores: list[float]
    embeddings: Vectors


def open_gallery(place: str | os.PathLike[str]) -> FolderGallery | StoreGallery:
    """Open an index folder or a store.

    Args:
        place: The folder of `experiments.index`, or a store address.

    Raises:
        UsageError: The index is missing, damaged, or not finished.
    """
    if isinstance(place, str) and is_address(place):
        return StoreGallery(cast("Store", open_store(parsed_address(place, "index"))))
    return FolderGallery(pathlib.Path(place))


class FolderGallery:
    """The images of a folder of `experiments.index`.

    Attributes:
        description: The `Description` of the images.
        paths: The paths of all images from their folder.
        columns: The columns of the images, in the same order.
        map: The map of an upgraded index, or None.
    """

    def __init__(self, folder: pathlib.Path) -> None:
        # In one state, while keras-dml upgrade replaces the folder.
        read_folder(folder, self._read)

    def _read(self, folder: pathlib.Path) -> None:
        settings = read_settings(folder)
        if settings.get("built") is None and settings.get("store"):  # written with --engine=ray
            raise UsageError(
                f"{folder} has no index. Its images are in the store {settings['store']}"
            )
        if settings.get("built") is None:
            raise UsageError(
                f"the index in {folder} is not finished: repeat its keras-dml index command, "
                "which continues where it stopped"
            )
        try:
            self.index = load_index(folder / INDEX)
        except ValueError as error:
            again = "Its keras-dml index command builds it again"
            if has_mapped_rows(settings):  # no such command has written it
                words = [f"--{name}={settings[name]}" for name in ("saved_model", "images")]
                words = [*words, f"--output_dir={folder}"]
                again = (
                    f"Delete {folder}, and embed its images again: keras-dml index "
                    + shlex.join(words)
                )
            raise UsageError(f"The index in {folder} cannot be loaded. {again}. {error}") from error
        self.description = Description(
            metric=self.index.metric,
            dimensions=self.index.dimensions,
            saved_model=str(folder / settings["saved_model"]),
            fingerprint=settings["fingerprint"],
            images=settings["images"],
        )
        self.paths = self.index.ids.tolist()
        if not all(isinstance(path, str) for path in self.paths):
            raise UsageError(
                f"The index in {folder} must have paths of images as ids, but got whole numbers. "
                "Its keras-dml index command builds it again."
            )
        self.columns = read_columns(folder, self.paths)
        self.map = read_map(folder, settings, len(self.paths))

    def nearest(self, embedding: Vectors, k: int, where: Where, mask: Mask) -> Neighbors:
        """Return the k nearest images of an embedding `[1, d]`, scored as in `keras_dml.retrieval`.

        Args:
            embedding: The model's embedding.
            k: At most the number of images that `where` allows.
            where: Conditions on columns. The search is exact among the images that meet them.
            mask: The result of `Columns.mask` for the conditions.
        """
        ids, scores = self.index.search(embedding, k, mask)
        paths = ids[0].tolist()
        return Neighbors(paths, scores[0].tolist(), self.index.embeddings_of(paths))

    def close(self) -> None:
        """Do nothing."""


class StoreGallery:
    """The images of a store of `experiments.index --to`, with the attributes of `FolderGallery`.

    The store finds candidates, and this class scores them as an exact index does. Paths and
    columns are read once. A search ignores images that are added later.
    """

    map = None

    def __init__(self, store: Store) -> None:
        description = store.description()
        if description is None or not store.is_finished():
            state = "is not finished" if description else "does not exist"
            raise UsageError(f"the index in {store} {state}: keras-dml index --to={store} makes it")
        self.store, self.description = store, description
        names = [CLASS, *description.columns]
        with store.asking():
            rows = [row for block in store.values([PATH, *names]) for row in block]
        self._known = {row[0]: list(row[1:]) for row in rows}
        if len(self._known) < len(rows) or not rows:
            raise UsageError(
                f"{store} holds {len(rows):,} images with {len(self._known):,} different paths: "
                f"keras-dml index --to={store} repairs the table"
            )
        self.paths = sorted(self._known)  # the order of the index
        self.columns = Columns(self.paths, StoredColumns(names, self._known))

    def nearest(self, embedding: Vectors, k: int, where: Where, mask: Mask) -> Neighbors:
        """Return the nearest images as `FolderGallery` does."""
        metric = cast("Metric", self.description.metric)
        query = prepared_rows(embedding, "embedding", metric)
        asked = {name: sorted(each) for name, each in self.columns.values_asked(where).items()}
        with self.store.asking():
            paths, vectors = self.store.nearest(query[0], k + _AHEAD, metric, asked)
        # Each path once, because another process can write at the same time.
        row_of = {path: row for row, path in enumerate(paths) if path in self._known}
        # `ExactIndex` orders equal scores as its items: by path.
        candidates = sorted(row_of)
        if not candidates:
            return Neighbors([], [], vectors[:0])
        items = Items(vectors[[row_of[path] for path in candidates]], candidates)
        ids, scores = ExactIndex(items, metric).search(query, min(k, len(candidates)))
        order = ids[0].tolist()
        return Neighbors(order, scores[0].tolist(), vectors[[row_of[path] for path in order]])

    def close(self) -> None:
        """Close the connection to the store."""
        self.store.close()
