"""The options of `experiments.index`."""

from __future__ import annotations

import dataclasses
import pathlib

from experiments.options import UsageError, check_together, option, registry_flags
from experiments.options.run_options import CodeOptions, ImageSizeOptions
from experiments.searching.addresses import FORMS
from experiments.searching.index_folder import EMBEDDINGS, INDEX, MODEL, SETTINGS, SKIPPED
from keras_dml._files.manifest import MANIFEST

_MODEL, _HOW = "Model, one of", "Search"
_TO = (
    f"Store: {FORMS}. #NAME after the address names a table other than `images`. The store's "
    "client reads the password from its usual place, such as PGPASSWORD or QDRANT_API_KEY."
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class IndexOptions(CodeOptions, ImageSizeOptions):
    """The images, the model, and the kind of index.

    Attributes:
        saved_model: SavedModel that embeds the images, for example RUN/saved_model. A SavedModel is
            code that runs with your rights. Use only models that you trust.
        backbone: Trained backbone, whose pooled features are the embedding: efficientnet_lite0, any
            keras.applications model, hub:PRESET, or FILE.keras, as in keras-dml run.
        weights: backbone: imagenet, packaged (efficientnet_lite0, no network), or a file of
            weights.
        pooling: backbone: pooling of its maps or tokens to one vector.
        images: Folder of the images. With --engine=ray also an address such as s3://BUCKET/FOLDER.
        output_dir: Output folder: the index.
        columns: CSV file with data about the images, one row per image. The column `path`, or else
            the first column, is the path from the images' folder. A column `class` replaces the
            folder as the class. The index keeps the data until you set another file.
        batch_size: Images per batch.
        engine: local: embed in this process. ray: embed with workers on the Ray cluster of
            RAY_ADDRESS, or on this machine. With ray, the images go to --to, and OUTPUT gets no
            index. All machines must be able to read model and images, and to write OUTPUT.
        workers: Number of workers of Ray. Default: one per GPU, or one per core without GPUs.
        metric: Similarity or distance.
        target_recall: Share of the true neighbors that a search finds. Below 1: search with ScaNN's
            tree (needs about 20,000 images). 1: search exactly. Default: 1, or 0.95 from 100,000
            images on.
        prefix: Compare the first N dimensions with all images, then all dimensions with the
            nearest. For models that were trained with --matryoshka.
    """

    command = "experiments.index"
    intro = f"""Embed all images of a folder and build an index, to find images by an image.

  keras-dml index --backbone=efficientnet_lite0 --weights=packaged \\
      --images=photos --output_dir=photo_index
  keras-dml index --saved_model=RUN/saved_model --images=photos --output_dir=photo_index
  keras-dml search --index=photo_index --query=photo.jpg      or --serve

--backbone needs no training. The command embeds all images in the folder and its subfolders.
INDEX/{SKIPPED} lists images that cannot be read or are too large: name, tab, reason. The same
command continues after a kill, embeds new and changed images, and removes deleted images.

INDEX contains {INDEX}/, {SETTINGS}, {SKIPPED}, {MODEL}/ (the backbone), {EMBEDDINGS} for numpy.load
(`embeddings` float32 [n, d], `paths` [n]), and {MANIFEST}, the SHA-256 of the files.
"""
    group = "Images and index"

    saved_model: pathlib.Path | None = option(None, _MODEL)
    backbone: str | None = option(None, _MODEL, common=True)
    weights: str = option("imagenet", _MODEL, common=True, needs="backbone")
    pooling: str = option(
        "average",
        _MODEL,
        choices=registry_flags.words("keras_dml.layers.pooling.POOLINGS"),
        needs="backbone",
    )
    images: str = option(None, required=True)
    output_dir: pathlib.Path = option(None, required=True)
    columns: pathlib.Path | None = option(None)
    to: str | None = option(None, text=_TO)
    batch_size: int = option(64, lower_bound=1)
    engine: str = option("local", choices=("local", "ray"))
    workers: int | None = option(None, lower_bound=1, needs="engine=ray")
    metric: str = option(
        "cosine", _HOW, choices=registry_flags.words("keras_dml._common.types.METRICS")
    )
    target_recall: float | None = option(
        None, _HOW, lower_bound=0, upper_bound=1, not_with=("engine=ray",)
    )
    prefix: int | None = option(None, _HOW, lower_bound=1, not_with=("target_recall", "engine=ray"))


def check_index(options: IndexOptions) -> None:
    """Check the flags that depend on each other."""
    check_together(options)
    if (options.saved_model is None) == (options.backbone is None):
        received = "both" if options.backbone else "neither"
        raise UsageError(f"Set either --saved_model or --backbone, but got {received}.")
    for name in ("image_size", "resize"):
        if options.backbone is None and name in options.on_command_line:
            raise UsageError(
                f"{name} must be unset without --backbone, but got {getattr(options, name)}."
            )
    if options.engine == "ray" and options.to is None:
        raise UsageError(
            "to must be set with --engine=ray, which makes no index, as in --to=parquet:FOLDER."
        )
    if options.engine == "local" and "://" in options.images:
        raise UsageError(
            f"images must be a folder, but got {options.images}. --engine=ray reads addresses."
        )
