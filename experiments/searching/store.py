"""What every store can do: keep images by their ids, and find the nearest of an embedding."""

from __future__ import annotations

import abc
import contextlib
import dataclasses
import hashlib
import json
import uuid
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from experiments.options.errors import UsageError, one_line
from experiments.searching.addresses import TABLE

__all__ = [
    "CLASS",
    "DIGEST",
    "FOLDER",
    "ID",
    "PATH",
    "VECTOR",
    "Description",
    "Rows",
    "Store",
    "StoreError",
    "Where",
    "check_columns",
    "item_id",
    "made_rows",
]

ID, PATH, CLASS, FOLDER, VECTOR, DIGEST = "id", "path", "class", "folder", "vector", "digest"
_OURS = (ID, PATH, CLASS, FOLDER, VECTOR, DIGEST)
_FORMAT = 1
# What PostgreSQL takes for a name, in bytes; and signs that a store's own language has a use for.
_MOST_BYTES = 63
_OF_LANGUAGES = frozenset("\"'`.[]\\")
# For each column the values of which an image must have one.
Where: TypeAlias = Mapping[str, Sequence[str]]


class StoreError(UsageError):
    """A store does not answer, or refuses what it is asked; the message names it."""


@dataclasses.dataclass(frozen=True)
class Description:
    """Of what a store's images are, kept in the store itself, so that a search needs no more.

    Attributes:
        metric: "cosine" (the embeddings have length 1 then) or "l2".
        dimensions: of an embedding.
        saved_model: the folder of the model that embeds.
        fingerprint: of its files.
        images: the folder of the images.
        columns: the names of those beside path, class and folder.
    """

    metric: str
    dimensions: int
    saved_model: str
    fingerprint: str
    images: str
    columns: tuple[str, ...] = ()

    def text(self) -> str:
        """As JSON."""
        return json.dumps({"format": _FORMAT, **dataclasses.asdict(self)})

    @classmethod
    def of_text(cls, text: str | None, store: Store) -> Description:
        """What `text` wrote.

        Raises:
            UsageError: it is something else, or of a newer library.
        """
        try:
            found: dict[str, Any] = json.loads(text or "")
            if found.pop("format") > _FORMAT:
                raise UsageError(f"{store} was written by a newer library")
            return cls(**found | {"columns": tuple(found["columns"])})
        except UsageError:
            raise
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise UsageError(
                f"{store} holds something else than what experiments.index --to writes: name "
                "another with #NAME behind the address"
            ) from error


class Rows(NamedTuple):
    """Images: their ids, their embeddings float32 `[n, d]`, and columns of text by name, `path`,
    `class`, `folder`, `digest` and one's own."""

    ids: list[str]
    vectors: npt.NDArray[np.float32]
    columns: dict[str, list[str]]

    def __len__(self) -> int:
        return len(self.ids)

    def taken(self, places: Sequence[int]) -> Rows:
        """Those of these numbers."""
        columns = {name: [each[place] for place in places] for name, each in self.columns.items()}
        return Rows([self.ids[place] for place in places], self.vectors[list(places)], columns)


def item_id(path: str) -> str:
    """The id of an image in every store: a UUID of its path, so that none can be there twice."""
    return str(uuid.uuid5(uuid.NAMESPACE_URL, path))


def made_rows(
    paths: Sequence[str],
    vectors: npt.NDArray[np.float32],
    columns: Mapping[str, Sequence[str]],
) -> Rows:
    """`Rows` with their ids and digests: another embedding or another value, another digest.

    Args:
        paths: of the images, from their folder.
        vectors: prepared for the metric, `[n, d]`.
        columns: `class`, `folder` and one's own.
    """
    vectors = np.ascontiguousarray(vectors, np.float32)
    digests = []
    for place, row in enumerate(vectors):
        known = json.dumps([[name, each[place]] for name, each in columns.items()])
        digests.append(hashlib.blake2b(row.tobytes() + known.encode(), digest_size=16).hexdigest())
    said = {name: list(each) for name, each in columns.items()}
    return Rows(
        [item_id(path) for path in paths], vectors, {PATH: list(paths), **said, DIGEST: digests}
    )


def check_columns(names: Sequence[str]) -> None:
    """Refuse one's own columns that a store could not take.

    Raises:
        UsageError: names the column.
    """
    for name in names:
        if name in _OURS:
            raise UsageError(
                f"columns has a column {name!r}, which every store has of itself: call it otherwise"
            )
        fits = 0 < len(name.encode()) <= _MOST_BYTES
        if not fits or not name.isprintable() or _OF_LANGUAGES & set(name):
            raise UsageError(
                f"a column of a store has a name of at most {_MOST_BYTES} bytes without quotes, "
                f"dots, brackets and backslashes. Received: the column {name!r} of columns"
            )


class Store(abc.ABC):
    """A table of images in a store.

    Args:
        place: the folder or address, as behind the colon of `--to`.
        table: its name there.

    Raises:
        StoreError: the store does not answer.
    """

    kind: ClassVar[str]
    batch: ClassVar[int]
    """Images written at once."""

    def __init__(self, place: str, table: str = TABLE) -> None:
        self.place = place
        self.table = table

    def __str__(self) -> str:
        """As one gives it, without what is secret."""
        shown = f"{self.kind}:{self._shown_place()}"
        return shown if self.table == TABLE else f"{shown}#{self.table}"

    def _shown_place(self) -> str:
        return self.place

    @contextlib.contextmanager
    def _asking(self) -> Iterator[None]:
        """Within it the client's own exceptions become a `StoreError`."""
        try:
            yield
        except UsageError:
            raise
        except self._errors() as error:
            raise StoreError(f"{self} cannot be used: {self._said(error)}") from error

    def _said(self, error: Exception) -> str:
        return (one_line(error) or type(error).__name__)[:500]

    @abc.abstractmethod
    def _errors(self) -> tuple[type[Exception], ...]:
        """What the client raises."""

    @abc.abstractmethod
    def description(self) -> Description | None:
        """Of what the images are; None where there is no such table.

        Raises:
            UsageError: the table is none of ours.
        """

    @abc.abstractmethod
    def is_finished(self) -> bool:
        """Whether all images have been there once."""

    @abc.abstractmethod
    def create(self, description: Description) -> None:
        """Make the table, empty; one of ours that is there is dropped."""

    @abc.abstractmethod
    def finish(self, images: int) -> None:
        """Mark the table as finished.

        Args:
            images: how many images the table must hold.

        Raises:
            StoreError: the table holds more or fewer, because another process wrote into it.
        """

    def _check_count(self, found: int, images: int) -> None:
        if found != images:
            raise StoreError(
                f"{self} holds {found:,} images instead of {images:,}: another process wrote into "
                "it at the same time. Repeat the command"
            )

    def held(self) -> contextlib.AbstractContextManager[object]:
        """Return a context in which no other process on this machine writes into the table.

        Raises:
            UsageError: another process does.
        """
        return contextlib.nullcontext()

    def remove_repeated(self) -> list[str]:
        """Delete the images whose ids the table holds more than once, and return these ids.

        In most stores the id is a key, so that none is there twice.
        """
        return []

    @abc.abstractmethod
    def values(self, names: Sequence[str]) -> Iterator[list[tuple[str, ...]]]:
        """The values of some columns (`id`, too) of all images, in blocks."""

    @abc.abstractmethod
    def upsert(self, rows: Rows) -> None:
        """Write images; those of the same ids are replaced."""

    def append(self, rows: Rows) -> None:
        """Write images none of which is there."""
        self.upsert(rows)

    @abc.abstractmethod
    def remove(self, ids: Sequence[str]) -> None:
        """Delete the images of these ids."""

    @abc.abstractmethod
    def nearest(
        self, query: npt.NDArray[np.float32], k: int, metric: str, where: Where
    ) -> tuple[list[str], npt.NDArray[np.float32]]:
        """Paths and embeddings of the k nearest, by comparing with all that `where` lets in.

        In the store's own arithmetic: two that are equally near may come in any order.

        Args:
            query: prepared for the metric, `[d]`.
            k: at most so many.
            metric: that of the description.
            where: for each column the values of which an image must have one.
        """

    def close(self) -> None:  # noqa: B027, most have nothing to close
        """Let the store go."""
