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
# Options that have no effect without --backbone.
_OF_BACKBONE = ("weights", "pooling", "image_size", "resize", "import_modules", "trust_code")


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
INDEX/{SKIPPED} lists images that cannot be read or are too large: name, tab, reason. The same
command continues after a kill, embeds new and changed images, and removes deleted images.

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
    target_recall: float | None = option(
        None,
        _HOW,
        "Share of the true neighbors that a search finds. Below 1: search with ScaNN's tree (needs "
        "about 20,000 images). 1: search exactly. Default: 1, or 0.95 from 100,000 images on.",
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
    for name in _OF_BACKBONE:
        if options.backbone is None and name in options.on_command_line:
            raise UsageError(f"{name} needs --backbone.")
    if options.prefix is not None and options.target_recall is not None:
        raise UsageError("prefix must be set without --target_recall.")
    if options.engine == "ray":
        if options.to is None:
            raise UsageError(
                "--engine=ray makes no index: set --to=lancedb:FOLDER, parquet:FOLDER, or another "
                "store."
            )
        for name in ("prefix", "target_recall"):
            if getattr(options, name) is not None:
                raise UsageError(f"{name} must be unset: --engine=ray makes no index.")
    elif options.workers is not None:
        raise UsageError(f"workers must be unset without --engine=ray, but got {options.workers}.")
    elif "://" in options.images:
        raise UsageError(
            f"images must be a folder, but got {options.images}. --engine=ray reads addresses."
        )
