"""Measurements, and their names in the files of a run.

A measurement is a record. Its names in JSON files, in tables, and in trackers are made here, and
`experiments.evaluation.result` reads them back.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterable
from typing import NamedTuple

#: The part that is a whole embedding, and the part of the scores that a paper prints.
EMBEDDING, PAPER = "embedding", "paper"
#: Names of the searches in a catalog, and among the photos with the catalog's pictures.
CATALOG, PHOTOS = "photo to catalog", "catalog to photo"
#: The baselines, parts too.
UNTRAINED, RAW_PIXELS = "untrained backbone", "raw pixels"
# The part of a baseline's measurements, with the size of the images if it is not the run's.
_PART = re.compile(rf"({UNTRAINED}|{RAW_PIXELS})( at \d+ px)?")
#: Side -> the name of its search in tables. The test images have the first one.
SEARCHES = {"test": "", "catalog": CATALOG, "photos": PHOTOS}


def untrained_at(size: int | None) -> str:
    """Return the part of the untrained backbone at another image size than the run's."""
    return f"{UNTRAINED} at {size} px"


def is_baseline(part: str, name: str | None = None) -> bool:
    """Return whether a part of measurements is a baseline, or the one of this name."""
    found = _PART.fullmatch(part)
    return found is not None and name in (None, found[1])


class Estimate(NamedTuple):
    """A value with its interval."""

    value: float
    low: float
    high: float


@dataclasses.dataclass(frozen=True)
class Measurement:
    """A number about embeddings, or about a training.

    Attributes:
        score: Name of the score, such as "recall".
        value: The number.
        k: K of a score at K.
        distance: "cosine" or "l2", for a score of a distance.
        part: What is measured: the embedding, its first numbers ("first 64"), a baseline, or a
            paper's scores.
        side: Which images: "test", "catalog" (test images search in the catalog), "photos" (the
            catalog's pictures search among the test images), or the name of a relation. In a log
            also "train" and "track", the batches of the training.
        low, high: The 95 % interval of the value, if it is known.
    """

    score: str
    value: float
    k: int | None = None
    distance: str | None = None
    part: str = EMBEDDING
    side: str = "test"
    low: float | None = None
    high: float | None = None

    @property
    def name(self) -> str:
        """The name in a row of a table: "recall@1"."""
        return self.score if self.k is None else f"{self.score}@{self.k}"

    @property
    def key(self) -> str:
        """The name among the scores of a result: "recall@1/cosine/first 64"."""
        part = None if self.part == EMBEDDING else self.part
        return "/".join(filter(None, [self.name, self.distance, part]))

    @property
    def log_key(self) -> str:
        """The name in a log and in trackers: "test/recall@1/cosine"."""
        return f"{self.side}/{self.key}"

    @property
    def search(self) -> str:
        """The name of a row among the rows of one part: "photo to catalog, cosine"."""
        name = SEARCHES.get(self.side, self.side)
        return ", ".join(filter(None, [name, self.distance]))

    @property
    def row(self) -> str:
        """The name of a row: "embedding, cosine", "photo to catalog, l2", "raw pixels, l2"."""
        hidden = self.part == EMBEDDING and self.side != "test"
        return ", ".join(filter(None, [None if hidden else self.part, self.search]))

    @property
    def place(self) -> tuple[object, ...]:
        """Everything but the value and its interval."""
        return self.score, self.k, self.distance, self.part, self.side


def log_key(
    score: str, k: int | None = None, distance: str | None = None, side: str = "test"
) -> str:
    """Return the name of a measurement of the embedding in a log."""
    return Measurement(score, 0, k, distance, side=side).log_key


def named(
    measurements: Iterable[Measurement], name: Callable[[Measurement], str]
) -> dict[str, float]:
    """Return the values by their names. An interval has the names "NAME_low" and "NAME_high"."""
    found = {}
    for each in measurements:
        found[name(each)] = each.value
        if each.low is not None and each.high is not None:
            found |= {f"{name(each)}_low": each.low, f"{name(each)}_high": each.high}
    return found


def log_row(measurements: Iterable[Measurement]) -> dict[str, float]:
    """Return the values by their names in a log."""
    return named(measurements, lambda each: each.log_key)


def find(
    measurements: Iterable[Measurement],
    score: str,
    k: int | None = None,
    distance: str | None = None,
    part: str = EMBEDDING,
    side: str = "test",
) -> Measurement | None:
    """Return the measurement of a score; None if there is none."""
    place = Measurement(score, 0, k, distance, part, side).place
    return next((each for each in measurements if each.place == place), None)
