"""Embed the images of a folder with many workers of Ray Data."""

from __future__ import annotations

import concurrent.futures
import contextlib
import hashlib
import json
import logging
import pathlib
import sys
import time
import warnings
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from experiments.options.errors import RunError, one_line
from experiments.scale.connection import connected, where_logs_are
from experiments.searching.arrow import batch_table, read_batches, read_ids
from experiments.searching.folder_embeddings import Embedded, embedded_images
from experiments.searching.images import ImageFile, ImageFolder, embed_batch
from keras_dml._common.extras import needing

with needing("ray", "--engine=ray"):
    import ray
    import ray.data
    from ray.data.checkpoint import CheckpointConfig

_FOLDER, _ROWS, _CHECKPOINT = ".ray", "rows", "checkpoint"
_PENDING = ".pending.parquet"
_RETRIES = 4
# Ray Data starts a worker again without end, also if it is killed whenever it loads the model.
_RESTARTS = 8
_READERS = 8
# Images of one output file, which is the unit of a restart.
_LEAST, _MOST, _FILES = 64, 5_000, 64


class RayUpdate(NamedTuple):
    """The embeddings of all images, the number of new embeddings, and the seconds they took."""

    embedded: Embedded
    new: int
    seconds: float


def embed_on_ray(
    saved_model: pathlib.Path,
    images: str,
    files: Sequence[ImageFile],
    output: pathlib.Path,
    *,
    max_pixels: int,
    batch_size: int,
    workers: int | None = None,
) -> RayUpdate:
    """Embed the images that are new or have changed.

    Ray Data writes Parquet files and a checkpoint in `output/.ray`. A killed worker is restarted,
    and a killed command continues after the files that are complete.

    Args:
        saved_model: the model's folder, readable on all machines.
        images: the folder or URI of the images, readable on all machines.
        files: the images.
        output: a folder that all machines share.
        max_pixels: the largest number of pixels of an image.
        batch_size: the number of images that a worker embeds at once.
        workers: the number of workers. The default is one per GPU, or one per core without GPUs.

    Raises:
        RunError: if a worker fails repeatedly.
        UsageError: if the cluster or the model cannot be used, or no image can be embedded.
    """
    folder = output.absolute() / _FOLDER
    (folder / _ROWS).mkdir(parents=True, exist_ok=True)
    (folder / _CHECKPOINT).mkdir(exist_ok=True)
    _delete_unfinished(folder)
    file_of = {_key(file, max_pixels): file for file in files}
    done = read_ids(folder / _CHECKPOINT)
    todo = {key: file.path for key, file in file_of.items() if key not in done}
    began = time.monotonic()
    if todo:
        with connected({"TF_CPP_MIN_LOG_LEVEL": "3"}, log_to_driver=False):
            settings = _Settings(str(saved_model), images, max_pixels, batch_size)
            _embed(todo, folder, settings, workers)
    seconds = time.monotonic() - began
    keys, embeddings, reasons = read_batches(folder / _ROWS, file_of)
    if len(keys) != len(file_of):
        raise RunError(f"embeddings are missing in {folder}. Delete it and repeat the command.")
    rows = {file_of[key]: row for key, row, reason in zip(keys, embeddings, reasons) if not reason}
    bad = {file_of[key].path: reason for key, reason in zip(keys, reasons) if reason}
    return RayUpdate(embedded_images(files, rows, bad), len(todo), seconds)


class _Settings(NamedTuple):
    saved_model: str
    images: str
    max_pixels: int
    batch_size: int


def _key(file: ImageFile, max_pixels: int) -> str:
    """Return an id of an image file, which changes if the file changes."""
    return hashlib.blake2b(json.dumps([*file, max_pixels]).encode(), digest_size=16).hexdigest()


def _delete_unfinished(folder: pathlib.Path) -> None:
    """Delete output files that a killed command has not finished.

    Ray writes a pending checkpoint, then the output file with the same prefix, and then renames the
    checkpoint.
    """
    for pending in (folder / _CHECKPOINT).glob(f"*{_PENDING}"):
        for output in (folder / _ROWS).glob(f"{pending.name.removesuffix(_PENDING)}*"):
            output.unlink()
        pending.unlink()


def _embed(
    todo: dict[str, str], folder: pathlib.Path, settings: _Settings, workers: int | None
) -> None:
    """Run the Ray Data pipeline: image paths, embeddings, Parquet files."""
    context = ray.data.DataContext.get_current()
    context.checkpoint_config = CheckpointConfig(
        id_column="id",
        checkpoint_path=str(folder / _CHECKPOINT),
        delete_checkpoint_on_success=False,
    )
    context.enable_progress_bars = sys.stderr.isatty()
    for handler in logging.getLogger("ray.data").handlers:
        if isinstance(handler, logging.StreamHandler):  # the terminal, not Ray's file
            handler.setLevel(logging.CRITICAL + 1)
    resources = ray.cluster_resources()
    gpus, cores = (int(resources.get(name, 0)) for name in ("GPU", "CPU"))
    size = min(_MOST, max(_LEAST, -(-len(todo) // _FILES)))
    blocks = -(-len(todo) // size)
    count = min(workers or gpus or max(1, cores), blocks)
    items = [{"id": key, "path": path} for key, path in sorted(todo.items())]
    # Ray 2.64 replaces this argument, which setup.cfg excludes.
    warnings.filterwarnings("ignore", "`ray_remote_args_fn` is deprecated")
    pipeline = ray.data.from_items(items, override_num_blocks=blocks).map_batches(
        _Embedder,
        fn_constructor_kwargs={"settings": settings, "threads": max(1, cores // count)},
        batch_size=settings.batch_size,
        compute=ray.data.ActorPoolStrategy(size=count),
        # Leave a core for Ray's writing tasks.
        num_cpus=0 if gpus else min(1, max(cores - 1, 0) / count),
        num_gpus=min(1, gpus / count),
        ray_remote_args_fn=lambda: {"max_task_retries": _RETRIES, "max_restarts": _RESTARTS},
    )
    images = ImageFolder(settings.images)
    try:
        pipeline.write_parquet(str(folder / _ROWS))
    except ray.exceptions.RayTaskError:
        # Ray Data only keeps the text of a worker's exception, so look for the cause here.
        images.check_not_gone()
        raise
    except ray.exceptions.RayError as error:
        text = f"a worker failed repeatedly: {one_line(error)[:300]}"
        raise RunError(
            f"{text}. The same command continues after the finished images. {where_logs_are()}"
        ) from error


class _Embedder:
    """A worker's model: from image paths to embeddings.

    Args:
        settings: model, images, and limits.
        threads: the number of threads of TensorFlow.
    """

    def __init__(self, settings: _Settings, threads: int) -> None:
        import tensorflow as tf

        with contextlib.suppress(RuntimeError):  # TensorFlow is already initialized
            tf.config.threading.set_intra_op_parallelism_threads(threads)
            for device in tf.config.list_physical_devices("GPU"):
                tf.config.experimental.set_memory_growth(device, True)
        from experiments.evaluation.saved_model import ImageEmbedder

        self._embedder = ImageEmbedder(pathlib.Path(settings.saved_model))
        self._images = ImageFolder(settings.images)
        self._max_pixels = settings.max_pixels

    def __call__(self, batch: dict[str, np.ndarray]) -> Any:
        """Return an Arrow table of a batch with `id` and `path`."""
        paths = batch["path"].tolist()
        with concurrent.futures.ThreadPoolExecutor(_READERS) as pool:
            read = pool.map(lambda path: self._images.read_checked(path, self._max_pixels), paths)
            embeddings, reasons = embed_batch(self._embedder, read)
        texts = [reasons.get(row, "") for row in range(len(paths))]
        return batch_table(batch["id"].tolist(), embeddings, texts)
