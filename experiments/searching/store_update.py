"""Bring a store up to date with the images of an index."""

from __future__ import annotations

import collections
import contextlib
import pathlib
from typing import TYPE_CHECKING, NamedTuple, cast

from experiments.evaluation.held_folder import held_beside
from experiments.options.errors import UsageError
from experiments.options.progress import progress_bar
from experiments.searching.addresses import PARQUET, Address, open_store
from experiments.searching.columns import read_columns
from experiments.searching.folder_embeddings import Embedded
from experiments.searching.index_folder import Settings, how_to_search
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

if TYPE_CHECKING:
    from experiments.searching.parquet_files import ParquetFiles

__all__ = [
    "StoreChanges",
    "check_store",
    "images_to_store",
    "locked_store",
    "opened_store",
    "update_store",
]


class StoreChanges(NamedTuple):
    """The numbers of new, changed, and removed images."""

    added: int
    changed: int
    removed: int

    def __str__(self) -> str:
        return "added {:,}, changed {:,}, removed {:,}".format(*self)


def opened_store(address: Address) -> Store | ParquetFiles:
    """Open a store, or a folder of Parquet files.

    Raises:
        MissingExtraError: The store's client is not installed.
        StoreError: The store does not answer.
        UsageError: The folder has other files.
    """
    if address.kind != PARQUET:
        return open_store(address)
    from experiments.searching.parquet_files import ParquetFiles

    return ParquetFiles(address.place)


def locked_store(address: Address) -> contextlib.AbstractContextManager[object]:
    """Return a context that locks a store in a local folder. Servers have their transactions.

    Raises:
        UsageError: Another process has the lock.
    """
    if address.kind not in ("lancedb", PARQUET) or "://" in address.place:
        return contextlib.nullcontext()
    pathlib.Path(address.place).parent.mkdir(parents=True, exist_ok=True)
    return held_beside(pathlib.Path(address.place), "to", f"{address.kind}:{address.place}")


def check_store(store: Store | ParquetFiles, fingerprint: str, images: str, metric: str) -> None:
    """Check that a store can receive the images.

    Raises:
        UsageError: The table belongs to another model, other images, or another metric.
    """
    before = store.description()
    given = {"fingerprint": fingerprint, "images": images, "metric": metric}
    for name, value in given.items():
        if before is not None and getattr(before, name) != value:
            raise UsageError(
                f"to must be a new table or a table with {name}={value}, but got {store} with "
                f"{name}={getattr(before, name)}. Name another table with #NAME after the address, "
                "or delete the table."
            )


def images_to_store(
    store: Store | ParquetFiles,
    output: pathlib.Path,
    settings: Settings,
    embedded: Embedded,
    metric: str,
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
    if not isinstance(store, Store):
        written = "written" if store.write(described, rows) else "there already"
        return f"{store}: {len(rows):,} images, {written}"
    changes = update_store(store, described, rows)
    return f"{store}: {len(rows):,} images: {changes}\n{how_to_search(store, described.images)}"


def update_store(store: Store, description: Description, rows: Rows) -> StoreChanges:
    """Bring a table up to date. Continues after a kill.

    Args:
        store: The store.
        description: The description of the images.
        rows: All images of the table.

    Raises:
        StoreError: The store does not answer.
    """
    before = store.description()
    if before is None or before.columns != description.columns:
        store.create(description)
    found = [row for block in store.values([ID, DIGEST]) for row in block]
    # Two commands at the same time can add an image twice to LanceDB. Write such images again.
    counts = collections.Counter(image for image, _ in found)
    stored = {image: digest if counts[image] == 1 else "" for image, digest in found}
    wanted = dict(zip(rows.ids, rows.columns[DIGEST]))
    repeated = [image for image, count in counts.items() if count > 1]
    removed = [image for image in stored if image not in wanted]
    places = {image: place for place, image in enumerate(rows.ids)}
    new = [place for image, place in places.items() if image not in stored]
    changed = [
        place
        for image, place in places.items()
        if stored.get(image, wanted[image]) != wanted[image]
    ]
    gone = [*removed, *(image for image in repeated if image in wanted)]
    for start in range(0, len(gone), store.batch):
        store.remove(gone[start : start + store.batch])
    todo = [*changed, *new]
    if todo:
        with progress_bar(f"to {store.kind}", len(todo), leave=True) as bar:
            for start in range(0, len(todo), store.batch):
                block = rows.taken(todo[start : start + store.batch])
                store.upsert(block)
                bar.update(len(block))
    if todo or removed or not store.is_finished():
        store.finish(len(rows))
    return StoreChanges(len(new), len(changed), len(removed))
