"""The options of `experiments.index`."""

from __future__ import annotations

import dataclasses
import pathlib
from typing import Any

from experiments.options import UsageError, option, registries
from experiments.options.run_options import ImageLimitOptions
from experiments.searching.addresses import FORMS
from experiments.searching.index_settings import (
    EMBEDDINGS,
    EXACT_ITEMS,
    INDEX,
    SETTINGS,
    SKIPPED,
    TARGET_RECALL,
)

__all__ = ["IndexOptions", "tree_arguments"]

_WHAT, _HOW = "Images and index", "Search"
_METRICS = registries.words("keras_dml._common.types.METRICS")
_REORDER_DTYPES = registries.words("keras_dml.retrieval.tree.REORDER_DTYPES")


@dataclasses.dataclass(frozen=True, kw_only=True)
class IndexOptions(ImageLimitOptions):
    """The images, the model, and the kind of index."""

    command = "experiments.index"
    intro = f"""Embed all images of a folder and build an index, to find images by an image.

  python -m experiments.index --saved_model=RUN/saved_model --images=FOLDER --output_dir=INDEX
  python -m experiments.search --index=INDEX --query=photo.jpg      or --serve

The command embeds all images in FOLDER and its subfolders. INDEX/{SKIPPED} lists images that cannot
be read or are too large: name, tab, reason. A killed command continues when you repeat it. Later
runs embed new and changed images (by size or time of change) and remove deleted images.

Up to {EXACT_ITEMS:,} images, a search compares the query with all images. With more images, ScaNN
finds almost the same neighbors in less time.

A search can be limited to a class (the image's folder), to a folder, and to the values of
--columns: python -m experiments.search --where=class=Milk.

--to also writes the images to a store: id, path, class, folder, columns, and embedding. The same
command updates the store. experiments.search --index=lancedb:FOLDER searches it.

INDEX contains {INDEX}/, {SETTINGS}, {SKIPPED}, and {EMBEDDINGS} for numpy.load (`embeddings`
float32 [n, d], `paths` [n]).
"""

    saved_model: pathlib.Path = option(
        None,
        _WHAT,
        "SavedModel that embeds the images, for example RUN/saved_model.\n"
        "A SavedModel is code that runs with your rights. Use only models that you trust.",
        required=True,
    )
    images: str = option(
        None,
        _WHAT,
        "Folder of the images. With --engine=ray also an address such as s3://BUCKET/FOLDER.",
        required=True,
    )
    output_dir: pathlib.Path = option(
        None, _WHAT, "Output folder: the index.", former="output", required=True
    )
    columns: pathlib.Path | None = option(
        None,
        _WHAT,
        "CSV file with data about the images, one row per image.\n"
        "The column `path`, or else the first column, is the path from FOLDER. OUTPUT keeps the "
        "data until you set another file.",
    )
    class_column: str | None = option(
        None,
        _WHAT,
        "Column of --columns that is the class. Default: `class`. Without a value, the class is "
        "the image's folder.",
    )
    to: str | None = option(
        None,
        _WHAT,
        f"Store: {FORMS}, or parquet:FOLDER.\n"
        "#NAME after the address names a table other than `images`. The store's client reads the "
        "password from its usual place, such as PGPASSWORD or QDRANT_API_KEY.",
    )
    batch_size: int = option(64, _WHAT, "Images per batch.", lower_bound=1)
    engine: str = option(
        "local",
        _WHAT,
        "local: embed in this process. ray: embed with workers on the Ray cluster of RAY_ADDRESS, "
        "or on this machine.\nWith ray, the images go to --to, and OUTPUT gets no index. All "
        "machines must be able to read model and images, and to write OUTPUT.",
        choices=("local", "ray"),
    )
    workers: int | None = option(
        None,
        _WHAT,
        "Number of workers for --engine=ray. Default: one per GPU, or one per core without GPUs.",
        lower_bound=1,
    )
    metric: str = option("cosine", _HOW, "Similarity or distance.", choices=_METRICS)
    approximate: bool | None = option(
        None,
        _HOW,
        "Search with ScaNN's tree and hashing (needs about 20,000 images). --noapproximate: search "
        "exactly. Default: exact up to 100,000 images.\nSetting any of the next six flags also "
        "turns on approximate search.",
    )
    target_recall: float | None = option(
        None, _HOW, f"Share of the true neighbors to find. Default: {TARGET_RECALL}."
    )
    num_leaves: int | None = option(None, _HOW, "Leaves of the tree.")
    leaves_to_search: int | None = option(
        None, _HOW, "Leaves that a query searches. Default: as many as --target_recall needs."
    )
    reorder: int | None = option(
        None, _HOW, "Number of approximate neighbors to rank again by exact scores."
    )
    soar_lambda: float | None = option(
        None,
        _HOW,
        "Assign each image to two leaves (SOAR), for example 1.5. Only for cosine.\nA search needs "
        "fewer leaves and more memory. New images retrain the tree.",
    )
    reorder_dtype: str | None = option(
        None,
        _HOW,
        "Type of the exact embeddings. bfloat16 halves the memory, int8 quarters it. Default: "
        "float32.",
        choices=_REORDER_DTYPES,
    )
    prefix: int | None = option(
        None,
        _HOW,
        "Compare the first N dimensions with all images, then all dimensions with the nearest.\n"
        "For models that were trained with --matryoshka.",
        lower_bound=1,
    )
    candidates: int = option(
        200, _HOW, "Number of images that --prefix compares in all dimensions.", lower_bound=1
    )


_TREE_FLAGS = (
    "target_recall", "num_leaves", "leaves_to_search", "reorder", "soar_lambda", "reorder_dtype",
)  # fmt: skip


def tree_arguments(options: IndexOptions) -> dict[str, Any]:
    """Check the flags that depend on each other, and return the arguments of the tree."""
    if options.class_column is not None and options.columns is None:
        raise UsageError(
            f"class_column needs --columns=FILE.csv, but got class_column={options.class_column}."
        )
    given = {name: getattr(options, name) for name in _TREE_FLAGS}
    given = {name: value for name, value in given.items() if value is not None}
    kind = next(iter(given), None if options.approximate is None else "approximate")
    if options.prefix is None and "candidates" in options.on_command_line:
        raise UsageError(f"candidates needs --prefix, but got candidates={options.candidates}.")
    if options.prefix is not None and kind:
        raise UsageError(
            f"prefix must be set without --{kind}, because it needs no tree, but got "
            f"prefix={options.prefix}."
        )
    if options.engine == "local" and options.workers is not None:
        raise UsageError(f"leave out --workers={options.workers}, which is for --engine=ray")
    if options.engine == "local" and "://" in options.images:
        raise UsageError(
            f"images must be a folder, but got {options.images}. --engine=ray reads addresses."
        )
    if options.engine == "ray" and options.to is None:
        raise UsageError(
            "--engine=ray makes no index: give --to=lancedb:FOLDER or parquet:FOLDER (or another)"
        )
    if options.engine == "ray" and (kind or options.prefix is not None):
        raise UsageError(f"leave out --{kind or 'prefix'}: --engine=ray makes no index")
    if given and options.approximate is False:
        raise UsageError(f"--noapproximate has no tree: leave out --{next(iter(given))}")
    return given
