"""An index of images with its model: images in, the most similar ones out. Needs TensorFlow."""

import contextlib
import dataclasses
import os
import pathlib
import threading
from collections.abc import Iterator

from experiments.embedding.saved_model import ImageEmbedder, fingerprint
from experiments.options.errors import UsageError
from experiments.photos.answer import Answer, SearchResult, folder_of
from experiments.photos.image_files import image_path
from experiments.photos.index_settings import INDEX, read_settings
from experiments.report.pictures import checked_picture
from keras_dml.retrieval import load_index
from pipelines.images.limits import MOST_PIXELS

# Searches at the same time. A PNG of 50 million pixels takes 1.4 GB while it is decoded.
_AT_ONCE = 2
# So long a search waits for others to end: two slow images must not hold all that come after.
_PATIENCE = 2.0  # seconds


class BusyError(Exception):
    """Other searches have not ended in time."""


class VisualSearch:
    """What `experiments.index` has made, ready to be searched, by several threads at once.

    Args:
        folder: `--output` of `experiments.index`.
        saved_model: where the model is now; None: where it was.
        images: where the images' folder is now; None: where it was.
        max_pixels: how many pixels an image may have that is shown or looked for.

    Attributes:
        images: the folder of the images.
        max_pixels: as given.
        saved_model: where the model is.
        num_items, metric: of the index.

    Raises:
        ValueError: no index, an index of another model, no model.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        saved_model: str | os.PathLike[str] | None = None,
        images: str | os.PathLike[str] | None = None,
        max_pixels: int = MOST_PIXELS,
    ) -> None:
        self.max_pixels = max_pixels
        folder = pathlib.Path(folder)
        settings = read_settings(folder)
        if settings["built"] is None:
            raise UsageError(
                f"the index in {folder} is not finished: give its python -m experiments.index "
                "command again, which goes on where it stopped"
            )
        self.images = pathlib.Path(images or settings["images"])
        self.saved_model = pathlib.Path(saved_model or settings["saved_model"])
        if fingerprint(self.saved_model) != settings["fingerprint"]:
            raise UsageError(
                f"saved_model is not the one that the index in {folder} was made with: its "
                f"embeddings do not compare. Received: saved_model={self.saved_model}"
            )
        # First the index: ScaNN's operations may be part of the model, too.
        try:
            self._index = load_index(folder / INDEX)
        except ValueError as error:
            raise UsageError(f"{error}. Its python -m experiments.index builds it again") from error
        self._embedder = ImageEmbedder(self.saved_model)
        self.num_items, self.metric = self._index.num_items, self._index.metric
        self._paths = self._index.ids.tolist()
        self._item_of = {path: item for item, path in enumerate(self._paths)}
        self._slots = threading.BoundedSemaphore(_AT_ONCE)

    def path(self, item: int) -> str:
        """An item's path, relative to the images' folder."""
        return self._paths[item]

    def file(self, item: int) -> pathlib.Path:
        """Where an item's image file should be: always inside the images' folder.

        Raises:
            ValueError: the index holds a name that leads out of it.
        """
        return image_path(self.images, self._paths[item])

    def search(self, encoded: bytes, k: int) -> Answer:
        """The neighbors of an image.

        Args:
            encoded: `bytes`, the contents of an image file.
            k: how many, from 1; no more come back than there are items.

        Raises:
            ValueError: `encoded` is no image that the model can read, or too large a one.
            BusyError: other threads' searches do not end.
        """
        with self._slot():
            embeddings, bad = self._embedder([checked_picture(encoded, self.max_pixels)])
            if bad:
                raise UsageError(bad[0])
            ids, scores = self._index.search(embeddings, min(k, self.num_items))
        return Answer(tuple(map(self._result, ids[0].tolist(), scores[0].tolist())))

    def _result(self, path: str, score: float) -> SearchResult:
        return SearchResult(self._item_of[path], path, score, folder_of(path))

    @contextlib.contextmanager
    def _slot(self) -> Iterator[None]:
        if not self._slots.acquire(timeout=_PATIENCE):
            raise BusyError
        try:
            yield
        finally:
            self._slots.release()

    def search_item(self, item: int, k: int) -> Answer:
        """The neighbors of an item of the index, itself left out; see `search`.

        Raises:
            OSError: its file cannot be read.
            ValueError, BusyError: as `search`.
        """
        answer = self.search(self.file(item).read_bytes(), k + 1)
        others = [result for result in answer.results if result.item != item]
        return dataclasses.replace(answer, results=tuple(others[:k]))
