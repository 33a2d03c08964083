"""Write the images of an index folder to a store."""

from __future__ import annotations

import pathlib
from typing import cast

from experiments.options.errors import UsageError
from experiments.searching.columns import read_columns
from experiments.searching.folder_embeddings import Embedded
from experiments.searching.index_folder import Settings, how_to_search
from experiments.searching.store import (
    CLASS,
    FOLDER,
    Description,
    Store,
    Target,
    check_columns,
    made_rows,
)
from keras_dml._common.rows import prepared_rows
from keras_dml._common.types import Metric


def check_store(store: Target, fingerprint: str, images: str, metric: str) -> None:
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
