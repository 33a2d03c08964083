"""An index of images with its model: images in, the most similar ones out. Needs TensorFlow."""

import contextlib
import os
import pathlib
import threading
from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

from experiments.embedding.calibration import read_calibration
from experiments.embedding.saved_model import ImageEmbedder, fingerprint
from experiments.options.errors import UsageError
from experiments.report.pictures import checked_picture
from experiments.searching.answer import ANYTHING, Answer, Conditions, SearchResult
from experiments.searching.gallery import open_gallery
from experiments.searching.grouping import grouped
from experiments.searching.image_folder import ImageFolder, check_stored
from pipelines.images.limits import MOST_PIXELS

# Searches at the same time. A PNG of 50 million pixels takes 1.4 GB while it is decoded.
_AT_ONCE = 2
# So long a search waits for others to end: two slow images must not hold all that come after.
_PATIENCE = 2.0  # seconds
# Results looked at beyond twice as many as are asked for, so that copies are counted.
_AHEAD = 10


class BusyError(Exception):
    """Other searches have not ended in time."""


class VisualSearch:
    """What `experiments.index` has made, ready to be searched, by several threads at once.

    Args:
        place: `--output` of `experiments.index`, or a store as `--to` takes it.
        saved_model: where the model is now; None: where it was.
        images: where the images' folder is now, a path or a URI; None: the path in the index. A URI
            in the index is refused.
        max_pixels: how many pixels an image may have that is shown or looked for.

    Attributes:
        images: `ImageFolder`.
        max_pixels: as given.
        saved_model: where the model is.
        num_items, metric: of the index.
        columns: what is known of the images, `Columns`.
        calibration: the threshold of a match that lies beside the model; None where there is none.

    Raises:
        ValueError: no index, an index of another model, no model; a calibration of another model
            or of another metric; no folder of images.
    """

    def __init__(
        self,
        place: str | os.PathLike[str],
        saved_model: str | os.PathLike[str] | None = None,
        images: str | os.PathLike[str] | None = None,
        max_pixels: int = MOST_PIXELS,
    ) -> None:
        self.max_pixels = max_pixels
        # First the index: ScaNN's operations may be part of the model, too.
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
        """Let go the store that is searched, if it is one."""
        self._gallery.close()

    def path(self, item: int) -> str:
        """An item's path, relative to the images' folder."""
        return self._paths[item]

    def read(self, item: int) -> bytes:
        """The contents of an item's image file, as of `ImageFolder.read`."""
        return self.images.read(self._paths[item])

    def search(
        self, encoded: bytes, k: int, conditions: Conditions = ANYTHING, but: int | None = None
    ) -> Answer:
        """The neighbors of an image.

        With conditions on columns the search is exact among the images that have what they ask.

        Args:
            encoded: `bytes`, the contents of an image file.
            k: how many, from 1; no more come back than there are.
            conditions: what they must be.
            but: an item that is left out, or None.

        Raises:
            ValueError: `encoded` is no image that the model can read, or too large a one; what
                `check` raises.
            BusyError: other threads' searches do not end.
        """
        mask = self.check(conditions)
        with self._slot():
            embeddings, bad = self._embedder([checked_picture(encoded, self.max_pixels)])
            if bad:
                raise UsageError(bad[0])
            return self._answer(embeddings, k, conditions, mask, but)

    def check(self, conditions: Conditions) -> npt.NDArray[np.bool_] | None:
        """Which items are what the conditions on columns ask for; None: all.

        Raises:
            ValueError: no such column, no such value, a similarity where the index has distances.
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
        # The item that is left out is one of those that are found, unless it must not be.
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
        """The neighbors of an item of the index, itself left out; see `search`.

        Raises:
            OSError: its file cannot be read.
            ValueError, BusyError: as `search`.
        """
        return self.search(self.read(item), k, conditions, but=item)


def _together(
    results: Sequence[SearchResult],
    embeddings: npt.NDArray[np.float32],
    conditions: Conditions,
    k: int,
) -> list[SearchResult]:
    """The first k that are near enough, near-identical ones as one."""
    near = [result for result in results if _is_near(result, conditions)]
    if not conditions.group_similarity:
        return near[:k]
    # Nearest first: those that are not near enough are the last ones.
    return grouped(near, embeddings[: len(near)], conditions.group_similarity, k)


def _is_near(result: SearchResult, conditions: Conditions) -> bool:
    least = conditions.min_similarity
    # That of an image with itself may be less than 1 by rounding.
    return least is None or result.score >= least - 1e-6
