"""The options of `experiments.index`."""

from __future__ import annotations

import dataclasses
import pathlib

from experiments.options import UsageError, option, registries
from experiments.options.run_options import CodeOptions, ImageSizeOptions
from experiments.searching.addresses import FORMS
from experiments.searching.index_folder import EMBEDDINGS, INDEX, MODEL, SETTINGS, SKIPPED

__all__ = ["IndexOptions", "check_index"]

_MODEL, _WHAT, _HOW = "Model, one of", "Images and index", "Search"
# Options that have no effect without another option.
_NEEDED = {
    "backbone": ("weights", "pooling", "image_size", "resize", "import_modules", "trust_code"),
    "columns": ("class_column",),
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class IndexOptions(CodeOptions, ImageSizeOptions):
    """The images, the model, and the kind of index."""

    command = "experiments.index"
    intro = f"""Embed all images of a folder and build an index, to find images by an image.

  python -m experiments.index --backbone=efficientnet_lite0 --weights=packaged \\
      --images=photos --output_dir=photo_index
  python -m experiments.index --saved_model=RUN/saved_model --images=photos --output_dir=photo_index
  python -m experiments.search --index=photo_index --query=photo.jpg      or --serve

--backbone needs no training. The command embeds all images in the folder and its subfolders.
INDEX/{SKIPPED} lists images that cannot be read or are too large: name, tab, reason. A killed
command continues when you repeat it. Later runs embed new and changed images (by size or time of
change) and remove deleted images.

Up to 100,000 images, a search compares the query with all images. With more images, ScaNN finds
almost the same neighbors in less time.

A search can be limited to a class (the image's folder), to a folder, and to the values of
--columns: python -m experiments.search --where=class=Milk.

--to also writes the images to a store: id, path, class, folder, columns, and embedding. The same
command updates the store. experiments.search --index=lancedb:FOLDER searches it.

INDEX contains {INDEX}/, {SETTINGS}, {SKIPPED}, {MODEL}/ (the backbone), and {EMBEDDINGS} for
numpy.load (`embeddings` float32 [n, d], `paths` [n]).
"""

    saved_model: pathlib.Path | None = option(
        None,
        _MODEL,
        "SavedModel that embeds the images, for example RUN/saved_model.\n"
        "A SavedModel is code that runs with your rights. Use only models that you trust.",
    )
    backbone: str | None = option(
        None,
        _MODEL,
        "Trained backbone, whose pooled features are the embedding: efficientnet_lite0, any "
        "keras.applications model, hub:PRESET, or FILE.keras, as in experiments.run.",
        common=True,
    )
    weights: str = option(
        "imagenet",
        _MODEL,
        "backbone: imagenet, packaged (efficientnet_lite0, no network), or a file of weights.",
        common=True,
    )
    pooling: str = option(
        "average",
        _MODEL,
        "backbone: pooling of its maps or tokens to one vector.",
        choices=registries.words("keras_dml.models.pooling.POOLINGS"),
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
        "The column `path`, or else the first column, is the path from the images' folder. The "
        "index keeps the data until you set another file.",
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
    metric: str = option(
        "cosine",
        _HOW,
        "Similarity or distance.",
        choices=registries.words("keras_dml._common.types.METRICS"),
    )
    approximate: bool | None = option(
        None,
        _HOW,
        "Search with ScaNN's tree and hashing (needs about 20,000 images). --noapproximate: search "
        "exactly. Default: exact up to 100,000 images.",
    )
    target_recall: float | None = option(
        None,
        _HOW,
        "Search with ScaNN, and find this share of the true neighbors. Default: 0.95.",
        lower_bound=0,
        upper_bound=1,
    )
    prefix: int | None = option(
        None,
        _HOW,
        "Compare the first N dimensions with all images, then all dimensions with the nearest.\n"
        "For models that were trained with --matryoshka.",
        lower_bound=1,
    )


def check_index(options: IndexOptions) -> None:
    """Check the flags that depend on each other."""
    if (options.saved_model is None) == (options.backbone is None):
        received = "both" if options.backbone else "neither"
        raise UsageError(f"Set either --saved_model or --backbone, but got {received}.")
    for name, others in _NEEDED.items():
        for other in others:
            if getattr(options, name) is None and other in options.on_command_line:
                raise UsageError(f"{other} needs --{name}.")
    tree = options.approximate or options.target_recall is not None
    if options.approximate is False and options.target_recall is not None:
        raise UsageError("target_recall must be set without --noapproximate.")
    if options.prefix is not None and tree:
        raise UsageError("prefix must be set without --approximate and --target_recall.")
    if options.engine == "ray":
        if options.to is None:
            raise UsageError(
                "--engine=ray makes no index: set --to=lancedb:FOLDER, parquet:FOLDER, or another "
                "store."
            )
        if tree or options.prefix is not None:
            name = "prefix" if options.prefix is not None else "approximate"
            raise UsageError(f"leave out --{name}: --engine=ray makes no index")
        return
    if options.workers is not None:
        raise UsageError(f"leave out --workers={options.workers}, which is for --engine=ray")
    if "://" in options.images:
        raise UsageError(
            f"images must be a folder, but got {options.images}. --engine=ray reads addresses."
        )
