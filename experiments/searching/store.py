"""The interface of all stores: write images by id, and find the nearest images of an embedding."""

from __future__ import annotations

import abc
import contextlib
import dataclasses
import hashlib
import importlib
import itertools
import json
import pathlib
import uuid
from collections.abc import Iterator, Mapping, Sequence
from typing import ClassVar, NamedTuple, TypeAlias, TypeVar, cast

import numpy as np
import numpy.typing as npt

from experiments.options.errors import UsageError, one_line
from experiments.searching.addresses import STORES, TABLE, Address
from experiments.searching.columns import read_columns
from experiments.searching.folder_embeddings import Embedded
from experiments.searching.index_folder import Changes, Settings, how_to_search, stored_place
from keras_dml._common.errors import without_passwords
from keras_dml._common.progress import Bar
from keras_dml._common.rows import prepared_rows
from keras_dml._common.types import Metric
from keras_dml._files.json_files import parsed_json

ID, PATH, CLASS, FOLDER, VECTOR, DIGEST = "id", "path", "class", "folder", "vector", "digest"
_OURS = (ID, PATH, CLASS, FOLDER, VECTOR, DIGEST)
#: Embeddings, `[n, d]` or `[d]`.
Vectors: TypeAlias = npt.NDArray[np.float32]
#: Paths and embeddings of the nearest images.
Found: TypeAlias = tuple[list[str], Vectors]
# The allowed values of each column.
Where: TypeAlias = Mapping[str, Sequence[str]]
T = TypeVar("T")
_FORM = {
    "metric": str,
    "dimensions": int,
    "saved_model": str,
    "fingerprint": str,
    "images": str,
    "columns": list[str],
}


class StoreError(UsageError):
    """A store does not answer, or refuses a request. The message names the store."""


@dataclasses.dataclass(frozen=True)
class Description:
    """The description of a store's images. The store contains it, so a search needs no index.

    Attributes:
        metric: "cosine" (embeddings have length 1) or "l2".
        dimensions: The length of an embedding.
        saved_model: The model's folder.
        fingerprint: The fingerprint of the model's files.
        images: The images' folder.
        columns: The names of the columns other than path, class, and folder.
    """

    metric: str
    dimensions: int
    saved_model: str
    fingerprint: str
    images: str
    columns: tuple[str, ...] = ()

    def text(self) -> str:
        """Return the description as JSON."""
        return json.dumps(dataclasses.asdict(self))

    @classmethod
    def of_text(cls, text: str, store: Store) -> Description:
        """Read a description from JSON.

        Raises:
            UsageError: The text is something else.
        """
        try:
            found = cls(**parsed_json(text, _FORM, str(store)))
            return dataclasses.replace(found, columns=tuple(found.columns))
        except (ValueError, TypeError) as error:
            raise UsageError(
                f"{store} holds something else than what keras-dml index --to writes: name "
                "another table with #NAME after the address"
            ) from error


class Rows(NamedTuple):
    """Images: ids, embeddings float32 `[n, d]`, and text columns by name.

    The columns are `path`, `class`, `folder`, `digest`, and the user's columns.
    """

    ids: list[str]
    vectors: Vectors
    columns: dict[str, list[str]]

    def __len__(self) -> int:
        return len(self.ids)

    def taken(self, places: Sequence[int]) -> Rows:
        """Return the rows with these numbers."""
        columns = {name: [each[place] for place in places] for name, each in self.columns.items()}
        return Rows([self.ids[place] for place in places], self.vectors[list(places)], columns)


def item_id(path: str) -> str:
    """Return the id of an image in every store: a UUID of its path."""
    return str(uuid.uuid5(uuid.NAMESPACE_URL, path))


def made_rows(paths: Sequence[str], vectors: Vectors, columns: Mapping[str, Sequence[str]]) -> Rows:
    """Build `Rows`. A digest changes with the embedding and with the columns.

    Args:
        paths: The paths of the images from their folder.
        vectors: Embeddings that are prepared for the metric, `[n, d]`.
        columns: `class`, `folder`, and the user's columns.
    """
    vectors = np.ascontiguousarray(vectors, np.float32)
    digests = []
    for place, row in enumerate(vectors):
        known = json.dumps([[name, each[place]] for name, each in columns.items()])
        digests.append(hashlib.blake2b(row.tobytes() + known.encode(), digest_size=16).hexdigest())
    text = {PATH: list(paths), **{name: list(each) for name, each in columns.items()}}
    return Rows([item_id(path) for path in paths], vectors, {**text, DIGEST: digests})


def check_columns(names: Sequence[str]) -> None:
    """Check the names of the user's columns.

    Raises:
        UsageError: A store cannot have a column of this name.
    """
    taken = sorted({*names} & {*_OURS})
    if taken:
        raise UsageError(
            f"A column of a store must have a name other than {', '.join(_OURS)}, but got the "
            f"column {taken[0]}. Rename it."
        )


class Target(abc.ABC):
    """A place to write the images of an index."""

    @abc.abstractmethod
    def description(self) -> Description | None:
        """Return the description of the images, or None if the table does not exist.

        Raises:
            UsageError: The table was not written by `experiments.index`.
        """

    @abc.abstractmethod
    def write(self, description: Description, rows: Rows) -> str:
        """Bring the place up to date. Continues after a kill.

        Args:
            description: The description of the images.
            rows: All images.

        Returns:
            The changes, for the terminal.

        Raises:
            StoreError: The store does not answer.
        """

    def close(self) -> None:  # noqa: B027
        """Close the connection."""


class Store(Target):
    """A table of images in a store that can be searched.

    `description`, `is_finished`, and `write` raise `StoreError` if the store does not answer. Call
    the other methods within `asking`.

    Args:
        place: The folder or address of the store.
        table: The name of the table.

    Raises:
        StoreError: The store does not answer.
    """

    kind: ClassVar[str]
    batch: ClassVar[int]
    """Images written at once."""
    errors: ClassVar[tuple[type[Exception], ...]]
    """The client's exception types."""

    def __init__(self, place: str, table: str = TABLE) -> None:
        self.place = place
        self.table = table

    def __str__(self) -> str:
        """Return the address without secrets."""
        shown = f"{self.kind}:{self._shown_place()}"
        return shown if self.table == TABLE else f"{shown}#{self.table}"

    def _shown_place(self) -> str:
        return without_passwords(self.place)

    @contextlib.contextmanager
    def asking(self) -> Iterator[None]:
        """Convert the client's exceptions in the block to `StoreError`."""
        try:
            yield
        except UsageError:
            raise
        except self.errors as error:
            raise StoreError(f"{self} cannot be used: {self._reason(error)}") from error

    def _reason(self, error: Exception) -> str:
        return (one_line(error) or type(error).__name__)[:500]

    def _check_count(self, found: int, images: int) -> None:
        if found != images:
            raise StoreError(
                f"{self} holds {found:,} images instead of {images:,}: another process wrote into "
                "it at the same time. Repeat the command"
            )

    def description(self) -> Description | None:  # noqa: D102, as in Target
        with self.asking():
            stored = self._stored()
        return None if stored is None else Description.of_text(stored[0], self)

    def is_finished(self) -> bool:
        """Return whether the table has been complete."""
        with self.asking():
            stored = self._stored()
        return stored is not None and stored[1]

    @abc.abstractmethod
    def _stored(self) -> tuple[str, bool] | None:
        """Return the text of the description, and whether the table has been complete.

        None if the table does not exist.
        """

    def write(self, description: Description, rows: Rows) -> str:  # noqa: D102, as in Target
        with self.asking():
            return str(self._update(description, rows))

    def _update(self, description: Description, rows: Rows) -> Changes:
        before = self.description()
        if before is None or before.columns != description.columns:
            self.create(description)
        stored: dict[str, str] = {}
        for image, digest in itertools.chain(*self.values([ID, DIGEST])):
            # Two commands at the same time can add an image twice to LanceDB. Write it again.
            stored[image] = "" if image in stored else digest
        digests = list(enumerate(rows.columns[DIGEST]))
        new = [place for place, _ in digests if rows.ids[place] not in stored]
        changed = [place for place, now in digests if stored.get(rows.ids[place], now) != now]
        removed = stored.keys() - set(rows.ids)
        outdated = [image for image, digest in stored.items() if image in removed or not digest]
        for gone in _batches(outdated, self.batch):
            self.remove(gone)
        todo = [*changed, *new]
        if todo:
            with Bar(f"to {self.kind}", len(todo), leave=True) as bar:
                for places in _batches(todo, self.batch):
                    self.upsert(rows.taken(places))
                    bar.update(len(places))
        if todo or removed or not self.is_finished():
            self.finish(len(rows))
        return Changes(len(new), len(changed), len(removed))

    @abc.abstractmethod
    def create(self, description: Description) -> None:
        """Create an empty table. Replaces an existing table of `experiments.index`."""

    @abc.abstractmethod
    def finish(self, images: int) -> None:
        """Mark the table as complete.

        Args:
            images: The number of images in the table.

        Raises:
            StoreError: The table has a different number, because another process wrote into it.
        """

    @abc.abstractmethod
    def values(self, names: Sequence[str]) -> Iterator[list[tuple[str, ...]]]:
        """Yield blocks with the values of columns (also `id`) of all images."""

    @abc.abstractmethod
    def upsert(self, rows: Rows) -> None:
        """Write images. Replaces images with the same ids."""

    @abc.abstractmethod
    def remove(self, ids: Sequence[str]) -> None:
        """Delete the images with these ids."""

    @abc.abstractmethod
    def nearest(self, query: Vectors, k: int, metric: str, where: Where) -> Found:
        """Return paths and embeddings of the k nearest images that meet the conditions.

        The search is exact in the store's arithmetic. The order of equal scores is undefined.

        Args:
            query: An embedding that is prepared for the metric, `[d]`.
            k: The largest number of images.
            metric: The metric of the description.
            where: The allowed values of each column.
        """


def _batches(items: list[T], size: int) -> Iterator[list[T]]:
    for start in range(0, len(items), size):
        yield items[start : start + size]


def check_store(store: Target, fingerprint: str, images: str, metric: str) -> None:
    """Check that a store can receive the images.

    Raises:
        UsageError: The table belongs to another model, other images, or another metric.
    """
    before = store.description()
    given = {"fingerprint": fingerprint, "images": stored_place(images), "metric": metric}
    for name, value in given.items():
        found = None if before is None else stored_place(getattr(before, name))
        if found not in (None, value):
            raise UsageError(
                f"to must be a new table or a table with {name}={value}, but got {store} with "
                f"{name}={found}. Name another table with #NAME after the address, "
                "or delete the table."
            )


def open_store(address: Address) -> Target:
    """Open the store of an address. Does not create a table.

    Raises:
        MissingExtraError: The store's client is not installed.
        StoreError: The store does not answer.
        UsageError: The folder has other files.
    """
    module, name, _ = STORES[address.kind]
    of_kind = getattr(importlib.import_module(f"experiments.searching.{module}"), name)
    return of_kind(address.place, address.table)


def images_to_store(
    store: Target, output: pathlib.Path, settings: Settings, embedded: Embedded, metric: str
) -> str:
    """Bring a store up to date with the images of an index folder.

    Args:
        store: The store.
        output: The index folder, which has the columns.
        settings: The settings of the index folder.
        embedded: The images and their embeddings.
        metric: The metric.

    Returns:
        The text to print.

    Raises:
        StoreError: The store does not answer.
        UsageError: A store cannot have one of the columns.
    """
    columns = read_columns(output, embedded.paths)
    check_columns(columns.own_names)
    names = [CLASS, FOLDER, *columns.own_names]
    vectors = prepared_rows(embedded.embeddings, "embeddings", cast("Metric", metric))
    rows = made_rows(embedded.paths, vectors, {name: columns.values_of(name) for name in names})
    described = Description(
        metric=metric,
        dimensions=rows.vectors.shape[1],
        saved_model=str(output / settings["saved_model"]),
        fingerprint=settings["fingerprint"],
        images=settings["images"],
        columns=tuple(columns.own_names),
    )
    text = f"{store}: {len(rows):,} images: {store.write(described, rows)}"
    searched = isinstance(store, Store)
    return f"{text}\n{how_to_search(store, described.images)}" if searched else text
