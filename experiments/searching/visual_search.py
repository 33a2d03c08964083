"""Search an index with its model: from an image to the most similar images. Needs TensorFlow."""

import contextlib
import dataclasses
import os
import pathlib
import threading
from collections.abc import Iterator
from typing import Any

from experiments.evaluation.calibration import calibration_path, read_calibration
from experiments.evaluation.saved_model import ImageEmbedder
from experiments.options.errors import UsageError
from experiments.pages.pictures import checked_picture
from experiments.searching.answer import ANYTHING, Answer, Conditions, SearchResult, grouped
from experiments.searching.columns import Mask
from experiments.searching.gallery import open_gallery
from experiments.searching.images import images_of_index
from experiments.searching.store import Description, Vectors
from keras_dml.export.load import fingerprint
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
        place: The folder of `experiments.index`, or a store address.
        saved_model: The model's folder. None means the folder in the index.
        images: The images' folder or address. None means the folder in the index, but an address in
            the index is not opened.
        max_pixels: The largest number of pixels of an image.
        query_model: The folder of the queries' model, if the index has the candidates of two
            encoders. None means the model of the index.

    Attributes:
        images: The `ImageFolder`.
        max_pixels: The largest number of pixels of an image.
        saved_model: The folder of the queries' model.
        num_items: The number of images.
        metric: The metric of the index.
        columns: The `Columns` of the images.
        map: The `IndexMap` of an upgraded index, or None.
        calibration: The threshold of a match in the model's folder, or None.
        not_calibrated: Why the threshold in the model's folder is not applied, or "".

    Raises:
        UsageError: The index, the model, or the images are missing, or do not fit each other.
    """

    def __init__(
        self,
        place: str | os.PathLike[str],
        saved_model: str | os.PathLike[str] | None = None,
        images: str | os.PathLike[str] | None = None,
        max_pixels: int = MOST_PIXELS,
        query_model: str | os.PathLike[str] | None = None,
    ) -> None:
        self.max_pixels = max_pixels
        # Load the index first, because the model can contain ScaNN's operations.
        self._gallery = open_gallery(place)
        found = self._gallery.description
        self.images = images_of_index(place, images, found.images)
        if not self.images.exists():
            raise UsageError(
                f"the folder of the index's images is gone: {self.images.place}. If it has moved, "
                "set --images=FOLDER."
            )
        self._paths, self.columns = self._gallery.paths, self._gallery.columns
        self.num_items, self.metric, self.map = len(self._paths), found.metric, self._gallery.map
        self.calibration, self.not_calibrated = None, ""
        dimensions = found.dimensions
        if query_model is not None:
            if self.map is not None:
                raise UsageError(
                    f"query_model must be unset for an index with a map, but got {query_model}."
                )
            self.saved_model = pathlib.Path(query_model)
        elif self.map is None:
            self.saved_model = _model_of_index(place, found, saved_model)
            self.calibration = read_calibration(self.saved_model, found.fingerprint, self.metric)
        else:
            new = dataclasses.replace(
                found, saved_model=self.map.new_model, fingerprint=self.map.fingerprint
            )
            self.saved_model = _model_of_index(place, new, saved_model)
            models = self.map.old_model, self.map.new_model
            if any(calibration_path(model).is_file() for model in models):
                self.not_calibrated = self.map.no_threshold(place)
            if self.map.of_queries is not None:
                dimensions = self.map.of_queries.source_dimensions
        self._embedder = ImageEmbedder(self.saved_model)
        if self._embedder.dimensions != dimensions:
            raise UsageError(
                f"query_model must give embeddings of length {dimensions}, as the index in "
                f"{place}, but got {self._embedder.dimensions} from {self.saved_model}."
            )
        self._item_of = {path: item for item, path in enumerate(self._paths)}
        self._slots = threading.BoundedSemaphore(_AT_ONCE)

    @property
    def facts(self) -> dict[str, Any]:
        """JSON values for every answer: the threshold of a match, and the map, if there are any."""
        found: dict[str, Any] = {}
        if self.calibration is not None:
            found["threshold"] = self.calibration.threshold
        if self.map is not None:
            found["map"] = self.map.as_json
        return found

    def close(self) -> None:
        """Close the connection to a store."""
        self._gallery.close()

    def path(self, item: int) -> str:
        """Return an image's path from the images' folder."""
        return self._paths[item]

    def read(self, item: int) -> bytes:
        """Read an image's file."""
        return self.images.read(self._paths[item], self.max_pixels)

    def search(
        self, encoded: bytes, k: int, conditions: Conditions = ANYTHING, but: int | None = None
    ) -> Answer:
        """Search the neighbors of an image.

        With conditions on columns, the search is exact among the images that meet them.

        Args:
            encoded: The contents of an image file.
            k: The number of neighbors, at least 1.
            conditions: Conditions that the neighbors must meet.
            but: An item to leave out, or None.

        Raises:
            UsageError: The image cannot be read or is too large, or as `check`.
            BusyError: Other searches take too long.
        """
        if self._embedder.takes_text:
            raise UsageError(
                f"query_model must take images, but got {self.saved_model}, which takes text. Set "
                "--query_text=WORDS."
            )
        with self._slot():
            mask = self._mask(conditions)
            embeddings, bad = self._embedder([checked_picture(encoded, self.max_pixels)])
            if bad:
                raise UsageError(bad[0])
            if self.map is not None and self.map.of_queries is not None:
                embeddings = self.map.of_queries(embeddings)
            return self._answer(embeddings, k, conditions, mask, but)

    def search_text(self, text: str, k: int, conditions: Conditions = ANYTHING) -> Answer:
        """Search the neighbors of words, if the model of the queries takes text.

        Raises:
            UsageError: The model does not take text, or as `check`.
            BusyError: Other searches take too long.
        """
        with self._slot():
            mask = self._mask(conditions)
            try:
                encoded = text.encode()
            except UnicodeEncodeError as error:  # words of a command line that are not UTF-8
                raise UsageError(f"query_text must be UTF-8, but got {text!r}.") from error
            embeddings, bad = self._embedder([encoded])
            if bad:
                raise UsageError(f"query_model must take text, but got {self.saved_model}.")
            return self._answer(embeddings, k, conditions, mask, None)

    def search_item(self, item: int, k: int, conditions: Conditions = ANYTHING) -> Answer:
        """Search the neighbors of an image of the index, without the image.

        Raises:
            OSError: Its file cannot be read.
            UsageError: As `search`.
            BusyError: As `search`.
        """
        return self.search(self.read(item), k, conditions, but=item)

    def check(self, conditions: Conditions) -> None:
        """Check the conditions.

        Raises:
            UsageError: A value does not exist, or the metric has no similarity.
            BusyError: Other searches take too long.
        """
        with self._slot():
            self._mask(conditions)

    def _mask(self, conditions: Conditions) -> Mask:
        """Return which images meet the conditions on columns, or None for all images."""
        if conditions.min_similarity is not None and self.metric != "cosine":
            raise UsageError(
                "min_similarity must be unset for an index of distances, but got "
                f"{conditions.min_similarity:g}."
            )
        return self.columns.mask(conditions.where)

    def _answer(
        self, embeddings: Vectors, k: int, conditions: Conditions, mask: Mask, but: int | None
    ) -> Answer:
        # The search finds the item to leave out, unless the mask excludes it.
        more = but is not None and (mask is None or bool(mask[but]))
        allowed = self.num_items if mask is None else int(mask.sum())
        asked = k + more + (_AHEAD + k if conditions.group_similarity else 0)
        if allowed == more:
            return Answer(())
        while True:
            asked = min(asked, allowed)
            found = self._gallery.nearest(embeddings, asked, conditions.where, mask)
            results = list(map(self._result, found.paths, found.scores))
            rows = [row for row, result in enumerate(results) if result.item != but]
            near = [row for row in rows if conditions.includes(results[row].score)]
            near_results, similarity = [results[row] for row in near], conditions.group_similarity
            groups = grouped(near_results, found.embeddings[near], similarity, k)
            if len(groups) == k or asked == allowed or len(near) < len(rows) or not rows:
                nearest = results[rows[0]].score if rows else None
                return Answer(tuple(groups), allowed - more, nearest, self.metric)
            asked *= 4

    def _result(self, path: str, score: float) -> SearchResult:
        item = self._item_of[path]
        match = None if self.calibration is None else self.calibration.matches(score)
        space = "" if self.map is None else self.map.space(item)
        class_name = self.columns.class_names[item]
        return SearchResult(item, path, score, class_name, match=match, space=space)

    @contextlib.contextmanager
    def _slot(self) -> Iterator[None]:
        if not self._slots.acquire(timeout=_PATIENCE):
            raise BusyError
        try:
            yield
        finally:
            self._slots.release()


def _model_of_index(
    place: str | os.PathLike[str], found: Description, moved: str | os.PathLike[str] | None
) -> pathlib.Path:
    """Return the folder of the model that embedded the index.

    Raises:
        UsageError: The model is missing, or `moved` is another model.
    """
    path = pathlib.Path(moved or found.saved_model)
    if moved is None and not path.is_dir():
        raise UsageError(
            f"the model of the index in {place} is gone: {path}. If it has moved, set "
            "--saved_model=FOLDER."
        )
    if fingerprint(path) != found.fingerprint:
        raise UsageError(
            f"saved_model must be the model of the index in {place}, but got {path}. If the model "
            "has moved, set --saved_model=FOLDER."
        )
    return path
