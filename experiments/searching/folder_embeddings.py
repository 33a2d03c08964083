"""Embed the images of a folder on this machine, each image once."""

from __future__ import annotations

import concurrent.futures
import contextlib
import pathlib
import shutil
import time
from collections.abc import Mapping, Sequence
from typing import NamedTuple, TypeAlias

import numpy as np

from experiments.evaluation.embedding_file import UnreadableError, read_npz
from experiments.options.errors import UsageError
from experiments.searching.images import ImageFile, ImageFolder, embed_batch
from experiments.searching.index_folder import EMBEDDINGS
from experiments.searching.index_options import IndexOptions
from keras_dml._common.progress import Bar
from keras_dml._files.atomic import replacing
from keras_dml._files.manifest import DamagedError, Manifest

UNFINISHED = ".unfinished"
_READERS = 8
_ADVICE = "Delete it, and the same command embeds the images again"
# Embeddings by image file.
Rows: TypeAlias = dict[ImageFile, np.ndarray]


class Embedded(NamedTuple):
    """Images, their embeddings `[n, d]`, and the reasons why other images are bad, by path."""

    files: list[ImageFile]
    embeddings: np.ndarray
    bad: dict[str, str]

    @property
    def paths(self) -> list[str]:
        """The paths of the images."""
        return [file.path for file in self.files]


def embedded_images(
    files: Sequence[ImageFile], rows: Mapping[ImageFile, np.ndarray], bad: dict[str, str]
) -> Embedded:
    """Select the images that have an embedding.

    Raises:
        UsageError: No image has one.
    """
    good = [file for file in files if file in rows]
    if not good:
        path, reason = next(iter(bad.items()))
        raise UsageError(
            f"none of the {len(files):,} images can be embedded. The first, {path}: {reason}"
        )
    return Embedded(good, np.stack([rows[file] for file in good]), bad)


def embed_folder(
    options: IndexOptions,
    saved_model: pathlib.Path,
    images: ImageFolder,
    files: Sequence[ImageFile],
) -> Embedded:
    """Embed the new images of a folder, and forget the deleted images.

    The index folder gets `embeddings.npz`: `embeddings` float32 `[n, d]`, and the `paths`, `sizes`,
    and modification `times` of the images. While the function runs, `.unfinished` has its
    embeddings so far in files of the same form, so that a killed command can continue.

    Args:
        options: The index folder, always with the same model, and the images of a batch.
        saved_model: The model's folder.
        images: The images' folder.
        files: The images in the folder.

    Returns:
        The good images in the order of `files`, and the bad images.

    Raises:
        UsageError: No image can be embedded, or `embeddings.npz` is damaged.
        RunError: The images' folder disappears.
    """
    from experiments.evaluation.saved_model import ImageEmbedder

    path, unfinished = options.output_dir / EMBEDDINGS, options.output_dir / UNFINISHED
    manifest = Manifest(options.output_dir)
    known: Rows = {}
    if path.is_file():
        try:
            known = _read(manifest.check(EMBEDDINGS, _ADVICE, earlier=True))
        except (DamagedError, PermissionError):  # another user's file is not damaged
            raise
        except (OSError, KeyError, UnreadableError) as error:
            raise UsageError(f"{path} is damaged ({error}). {_ADVICE}") from error
    saved = list(known)
    for part in unfinished.glob("*.npz"):
        with contextlib.suppress(OSError, KeyError, UnreadableError):
            known |= _read(part)
    todo = [file for file in files if file not in known]
    bad: dict[str, str] = {}

    def read(file: ImageFile) -> bytes | str:
        return images.read_checked(file.path, options.max_pixels)

    if todo:
        unfinished.mkdir(exist_ok=True)
        embedder = ImageEmbedder(saved_model)
        with (
            Bar("embedding", len(todo), leave=True) as bar,
            concurrent.futures.ThreadPoolExecutor(_READERS) as readers,
        ):
            for start in range(0, len(todo), options.batch_size):
                batch = todo[start : start + options.batch_size]
                rows, reasons = embed_batch(embedder, readers.map(read, batch))
                bad |= {batch[row].path: reason for row, reason in reasons.items()}
                good = {file: rows[row] for row, file in enumerate(batch) if row not in reasons}
                if good:
                    with replacing(unfinished / f"{time.time_ns()}.npz") as temporary:
                        _write(temporary, good)
                known |= good
                bar.update(len(batch))
        # While a folder is deleted, its images disappear one by one.
        images.check_not_gone()
    embedded = embedded_images(files, known, bad)
    if embedded.files != saved:
        with manifest.replacing(EMBEDDINGS) as temporary:
            _write(temporary, {file: known[file] for file in embedded.files})
    shutil.rmtree(unfinished, ignore_errors=True)
    return embedded


def _read(path: pathlib.Path) -> Rows:
    saved, _ = read_npz(path)
    columns = [saved[name].tolist() for name in ("paths", "sizes", "times")]
    return dict(zip(map(ImageFile, *columns), saved["embeddings"]))


def _write(path: pathlib.Path, rows: Rows) -> None:
    paths, sizes, times = zip(*rows)
    embeddings = np.stack(list(rows.values()))
    with open(path, "wb") as stream:  # NumPy would add an ending to a path
        np.savez(stream, embeddings=embeddings, paths=paths, sizes=sizes, times=times)
