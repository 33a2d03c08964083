"""Search an index with its model: from an image to the most similar images. Needs TensorFlow."""

import contextlib
import os
import pathlib
import threading
from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

from experiments.evaluation.calibration import read_calibration
from experiments.evaluation.pictures import checked_picture
from experiments.evaluation.saved_model import ImageEmbedder, fingerprint
from experiments.options.errors import UsageError
from experiments.searching.answer import ANYTHING, Answer, Conditions, SearchResult
from experiments.searching.gallery import open_gallery
from experiments.searching.grouping import grouped
from experiments.searching.image_folder import ImageFolder, check_stored
from pipelines.images.limits import MOST_PIXELS

# Concurrent searches. Decoding a PNG of 50 million pixels takes 1.4 GB.
_AT_ONCE = 2
# The time that a search waits for other searches.
_PATIENCE = 2.0  # seconds
# Additional results, so that copies can be counted.
_AHEAD = 10


class BusyError(Exception):
    """Other searches take too long."""


class VisualSearch:
    """An index with its model. Several threads can search at the same time.

    Args:
        place: the folder of `experiments.index`, or a store address.
        saved_model: the model's folder. None means the folder in the index.
        images: the images' folder or address. None means the folder in the index, but an address in
            the index is not opened.
        max_pixels: the largest number of pixels of an image.

    Attributes:
        images: the `ImageFolder`.
        max_pixels: the largest number of pixels of an image.
        saved_model: the model's folder.
        num_items: the number of images.
        metric: the metric of the index.
        columns: the `Columns` of the images.
        calibration: the threshold of a match in the model's folder, or None.

    Raises:
        UsageError: if the index, the model, or the images are missing, or do not fit each other.
    """

    def __init__(
        self,
        place: str | os.PathLike[str],
        saved_model: str | os.PathLike[str] | None = None,
        images: str | os.PathLike[str] | None = None,
        max_pixels: int = MOST_PIXELS,
    ) -> None:
        self.max_pixels = max_pixels
        # Load the index first, because the model can contain ScaNN's operations.
        self._gallery = gallery = open_gallery(place)
        if images is None:
            check_stored(gallery.images, place)
        self.images = ImageFolder(images or gallery.images)
        self.saved_model = pathlib.Path(saved_model or gallery.saved_model)
        if saved_model is None and not self.saved_model.is_dir():
            raise UsageError(
                f"the model that the index in {place} was made with is gone: {self.saved_model}. "
                "Give --saved_model=FOLDER, where it is now"
            )
        if fingerprint(self.saved_model) != gallery.fingerprint:
            raise UsageError(
                f"saved_model is not the one that the index in {place} was made with: its "
                "embeddings do not compare. Give --saved_model=FOLDER, where that one is now. "
                f"Received: saved_model={self.saved_model}"
            )
        self.num_items, self.metric = len(gallery.paths), gallery.metric
        self.calibration = read_calibration(self.saved_model, gallery.fingerprint, self.metric)
        self._embedder = ImageEmbedder(self.saved_model)
        self._paths, self.columns = gallery.paths, gallery.columns
        self._item_of = {path: item for item, path in enumerate(self._paths)}
        self._slots = threading.BoundedSemaphore(_AT_ONCE)

    def close(self) -> None:
        """Close the connection to a store."""
        self._gallery.close()

    def path(self, item: int) -> str:
        """Return an image's path from the images' folder."""
        return self._paths[item]

    def read(self, item: int) -> bytes:
        """Read an image's file."""
        return self.images.read(self._paths[item])

    def search(
        self, encoded: bytes, k: int, conditions: Conditions = ANYTHING, but: int | None = None
    ) -> Answer:
        """Search the neighbors of an image.

        With conditions on columns, the search is exact among the images that meet them.

        Args:
            encoded: the contents of an image file.
            k: the number of neighbors, at least 1.
            conditions: conditions that the neighbors must meet.
            but: an item to leave out, or None.

        Raises:
            UsageError: if the image cannot be read or is too large, or as `check`.
            BusyError: if other searches take too long.
        """
        mask = self.check(conditions)
        with self._slot():
            embeddings, bad = self._embedder([checked_picture(encoded, self.max_pixels)])
            if bad:
                raise UsageError(bad[0])
            return self._answer(embeddings, k, conditions, mask, but)

    def check(self, conditions: Conditions) -> npt.NDArray[np.bool_] | None:
        """Return which images meet the conditions on columns, or None for all images.

        Raises:
            UsageError: if a column or value does not exist, or the metric has no similarity.
        """
        if conditions.min_similarity is not None and self.metric != "cosine":
            raise UsageError(
                "min_similarity is for an index of cosine similarities: this one has distances. "
                f"Received: min_similarity={conditions.min_similarity:g}"
            )
        return self.columns.mask(conditions.where)

    def _answer(
        self,
        embeddings: npt.NDArray[np.float32],
        k: int,
        conditions: Conditions,
        mask: npt.NDArray[np.bool_] | None,
        but: int | None,
    ) -> Answer:
        # The search finds the item to leave out, unless the mask excludes it.
        more = but is not None and (mask is None or bool(mask[but]))
        allowed = self.num_items if mask is None else int(mask.sum())
        asked = k + more + (_AHEAD + k if conditions.group_similarity else 0)
        while allowed > more:
            asked = min(asked, allowed)
            found = self._gallery.nearest(embeddings, asked, conditions.where, mask)
            near = list(map(self._result, found.paths, found.scores))
            others = [place for place, result in enumerate(near) if result.item != but]
            every = [near[place] for place in others]
            results = _together(every, found.embeddings[others], conditions, k)
            is_end = asked == allowed or not every or not _is_near(every[-1], conditions)
            if len(results) == k or is_end:
                nearest = every[0].score if every else None
                return Answer(tuple(results), allowed - more, nearest)
            asked *= 4
        return Answer((), 0)

    def _result(self, path: str, score: float) -> SearchResult:
        item = self._item_of[path]
        match = None if self.calibration is None else self.calibration.matches(score)
        return SearchResult(item, path, score, self.columns.class_names[item], match=match)

    @contextlib.contextmanager
    def _slot(self) -> Iterator[None]:
        if not self._slots.acquire(timeout=_PATIENCE):
            raise BusyError
        try:
            yield
        finally:
            self._slots.release()

    def search_item(self, item: int, k: int, conditions: Conditions = ANYTHING) -> Answer:
        """Search the neighbors of an image of the index, without the image.

        Raises:
            OSError: if its file cannot be read.
            UsageError: as `search`.
            BusyError: as `search`.
        """
        return self.search(self.read(item), k, conditions, but=item)


def _together(
    results: Sequence[SearchResult],
    embeddings: npt.NDArray[np.float32],
    conditions: Conditions,
    k: int,
) -> list[SearchResult]:
    """Return the first k results that are near enough, with copies joined."""
    near = [result for result in results if _is_near(result, conditions)]
    if not conditions.group_similarity:
        return near[:k]
    return grouped(near, embeddings[: len(near)], conditions.group_similarity, k)


def _is_near(result: SearchResult, conditions: Conditions) -> bool:
    least = conditions.min_similarity
    # Rounding can make the similarity of equal images less than 1.
    return least is None or result.score >= least - 1e-6
