"""Bring a store up to date with the images of an index."""

from __future__ import annotations

import contextlib
import pathlib
from typing import NamedTuple, cast

from experiments.evaluation.held_folder import held_beside
from experiments.options.errors import UsageError
from experiments.options.progress import progress_bar
from experiments.searching.addresses import PARQUET, Address, open_store
from experiments.searching.columns import read_columns
from experiments.searching.folder_embeddings import Embedded
from experiments.searching.index_settings import Settings, how_to_search
from experiments.searching.store import (
    CLASS,
    DIGEST,
    FOLDER,
    ID,
    Description,
    Rows,
    Store,
    check_columns,
    made_rows,
)
from keras_dml._common.rows import prepared_rows
from keras_dml._common.types import Metric

__all__ = ["StoreChanges", "StoreTarget", "images_to_store", "update_store"]


class StoreChanges(NamedTuple):
    """The numbers of new, changed, and removed images."""

    added: int
    changed: int
    removed: int

    def __str__(self) -> str:
        return "added {:,}, changed {:,}, removed {:,}".format(*self)


def images_to_store(
    target: StoreTarget, output: pathlib.Path, settings: Settings, embedded: Embedded, metric: str
) -> str:
    """Bring a store up to date with the images of an index folder.

    Args:
        target: the store.
        output: the index folder, which has the columns.
        settings: the settings of the index folder.
        embedded: the images and their embeddings.
        metric: the metric.

    Returns:
        The text to print.

    Raises:
        UsageError: if a store cannot have one of the columns.
    """
    paths = [file.path for file in embedded.files]
    columns = read_columns(output, paths)
    check_columns(columns.own_names)
    names = [CLASS, FOLDER, *columns.own_names]
    vectors = prepared_rows(embedded.embeddings, "embeddings", cast("Metric", metric))
    rows = made_rows(paths, vectors, {name: columns.values_of(name) for name in names})
    described = Description(
        metric=metric,
        dimensions=rows.vectors.shape[1],
        saved_model=settings["saved_model"],
        fingerprint=settings["fingerprint"],
        images=settings["images"],
        columns=tuple(columns.own_names),
    )
    return target.write(described, rows)


class StoreTarget:
    """A store, or a folder of Parquet files, that receives images.

    Args:
        address: the store's address.

    Attributes:
        store: the store. None for Parquet.

    Raises:
        MissingExtraError: if the store's client is not installed.
        StoreError: if the store does not answer.
        UsageError: if a folder has other files.
    """

    def __init__(self, address: Address) -> None:
        self._folder = address.place
        self.store: Store | None = None
        if address.kind != PARQUET:
            self.store = open_store(address)
            return
        from experiments.searching.parquet_files import check_parquet

        check_parquet(address.place)

    def __str__(self) -> str:
        """Return the address."""
        return f"{PARQUET}:{self._folder}" if self.store is None else str(self.store)

    def held(self) -> contextlib.AbstractContextManager[object]:
        """Return a context that locks the store for this machine.

        Raises:
            UsageError: if another process has the lock.
        """
        if self.store is not None:
            return self.store.held()
        if "://" in self._folder:  # an object store has no locks
            return contextlib.nullcontext()
        return held_beside(pathlib.Path(self._folder), "to", str(self))

    def check(self, fingerprint: str, images: str, metric: str) -> None:
        """Check that a table can receive the images.

        Raises:
            UsageError: if the table belongs to another model, other images, or another metric.
        """
        before = None if self.store is None else self.store.description()
        if before is None:
            return
        elsewhere = "name another table with #NAME after the address, or delete the table"
        if before.fingerprint != fingerprint:
            raise UsageError(
                f"{self.store} holds embeddings of {before.dimensions} dimensions by another "
                f"model, which was in {before.saved_model}: they do not compare. "
                f"{elsewhere.capitalize()}"
            )
        for name, was, now in (
            ("images", before.images, images),
            ("metric", before.metric, metric),
        ):
            if was != now:
                raise UsageError(
                    f"{self.store} was written with {name}={was}: {elsewhere}. "
                    f"Received: {name}={now}"
                )

    def write(self, description: Description, rows: Rows) -> str:
        """Bring the store up to date, and return the text to print.

        Raises:
            StoreError: if the store does not answer.
        """
        if self.store is None:
            from experiments.searching.parquet_files import write_parquet

            written = write_parquet(self._folder, description, rows)
            how = "written" if written else "there already"
            return f"{PARQUET}:{self._folder}: {len(rows):,} images, {how}"
        changes = update_store(self.store, description, rows)
        self.store.close()
        hint = how_to_search(self.store, description.images)
        return f"{self.store}: {len(rows):,} images: {changes}\n{hint}"


def update_store(store: Store, description: Description, rows: Rows) -> StoreChanges:
    """Bring a table up to date. Continues after a kill.

    Args:
        store: the store.
        description: the description of the images.
        rows: all images of the table.

    Raises:
        StoreError: if the store does not answer.
    """
    before = store.description()
    if before is None or before.columns != description.columns:
        store.create(description)
    repeated = set(store.remove_repeated())
    held = {one: digest for block in store.values([ID, DIGEST]) for one, digest in block}
    wanted = dict(zip(rows.ids, rows.columns[DIGEST]))
    places = {one: place for place, one in enumerate(rows.ids)}
    new = [place for one, place in places.items() if one not in held]
    changed = [place for one, place in places.items() if held.get(one, wanted[one]) != wanted[one]]
    removed = [one for one in held if one not in wanted]
    todo = [*changed, *new]
    if todo:
        with progress_bar(f"to {store.kind}", len(todo), leave=True) as bar:
            for start in range(0, len(todo), store.batch):
                block = rows.taken(todo[start : start + store.batch])
                store.upsert(block)
                bar.update(len(block))
    for start in range(0, len(removed), store.batch):
        store.remove(removed[start : start + store.batch])
    if todo or removed or not store.is_finished():
        store.finish(len(rows))
    mended = len(repeated & wanted.keys())
    return StoreChanges(
        len(new) - mended, len(changed) + mended, len(removed) + len(repeated) - mended
    )
