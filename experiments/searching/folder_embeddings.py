"""Embed the images of a folder on this machine, each image once."""

from __future__ import annotations

import concurrent.futures
import contextlib
import functools
import pathlib
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import numpy as np

from experiments.evaluation.embedding_file import UnreadableError, read_npz
from experiments.options.errors import UsageError
from experiments.searching.images import ImageFile, ImageFolder, embed_batch
from experiments.searching.index_folder import EMBEDDINGS
from keras_dml._common.progress import Bar
from keras_dml._files.atomic import replacing
from keras_dml._files.manifest import DamagedError, Manifest

if TYPE_CHECKING:
    from experiments.evaluation.saved_model import ImageEmbedder

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
    folder: pathlib.Path,
    saved_model: pathlib.Path,
    images: ImageFolder,
    files: Sequence[ImageFile],
    *,
    batch_size: int,
    max_pixels: int,
) -> Embedded:
    """Embed the new images of a folder, and forget the deleted images.

    `folder` gets `embeddings.npz`: `embeddings` float32 `[n, d]`, and the `paths`, `sizes`,
    and modification `times` of the images. While the function runs, `.unfinished` has its
    embeddings so far in files of the same form, so that a killed command can continue.

    Args:
        folder: The folder of the embeddings, always with the same model.
        saved_model: The model's folder.
        images: The images' folder.
        files: The images to embed.
        batch_size: Images per batch.
        max_pixels: The largest number of pixels of an image.

    Returns:
        The good images in the order of `files`, and the bad images.

    Raises:
        UsageError: No image can be embedded, or `embeddings.npz` is damaged.
        RunError: The images' folder disappears.
    """
    from experiments.evaluation.saved_model import ImageEmbedder

    known, load = read_rows(folder), functools.partial(ImageEmbedder, saved_model)
    rows, bad = embed_files(
        known, folder, load, images, files, batch_size=batch_size, max_pixels=max_pixels
    )
    embedded = embedded_images(files, rows, bad)
    if embedded.files != list(known):
        write_rows(folder, {file: rows[file] for file in embedded.files})
    shutil.rmtree(folder / UNFINISHED, ignore_errors=True)
    return embedded


def embed_files(
    known: Mapping[ImageFile, np.ndarray],
    folder: pathlib.Path,
    load: Callable[[], ImageEmbedder],
    images: ImageFolder,
    files: Sequence[ImageFile],
    *,
    batch_size: int,
    max_pixels: int,
) -> tuple[Rows, dict[str, str]]:
    """Embed the images that have no embedding yet.

    `folder / ".unfinished"` has the new embeddings, so that a killed command can continue.

    Args:
        known: Embeddings by image.
        load: Returns the model. It is called if there are images to embed.
        folder, images, files, batch_size, max_pixels: As in `embed_folder`.

    Returns:
        The embeddings, known ones included, and the reasons of bad images by path.

    Raises:
        RunError: The images' folder disappears.
    """
    unfinished, found = folder / UNFINISHED, dict(known)
    for part in unfinished.glob("*.npz"):
        with contextlib.suppress(OSError, KeyError, UnreadableError):
            found |= _read(part)
    todo = [file for file in files if file not in found]
    bad: dict[str, str] = {}

    def read(file: ImageFile) -> bytes | str:
        return images.read_checked(file.path, max_pixels)

    if todo:
        unfinished.mkdir(exist_ok=True)
        embedder = load()
        with (
            Bar("embedding", len(todo), leave=True) as bar,
            concurrent.futures.ThreadPoolExecutor(_READERS) as readers,
        ):
            for start in range(0, len(todo), batch_size):
                batch = todo[start : start + batch_size]
                rows, reasons = embed_batch(embedder, readers.map(read, batch))
                bad |= {batch[row].path: reason for row, reason in reasons.items()}
                good = {file: rows[row] for row, file in enumerate(batch) if row not in reasons}
                if good:
                    with replacing(unfinished / f"{time.time_ns()}.npz") as temporary:
                        _write(temporary, good)
                found |= good
                bar.update(len(batch))
        # While a folder is deleted, its images disappear one by one.
        images.check_not_gone()
    return found, bad


def read_rows(folder: pathlib.Path) -> Rows:
    """Return the embeddings in a folder by image; empty if the folder has none.

    Raises:
        UsageError: The file is damaged.
    """
    path = folder / EMBEDDINGS
    if not path.is_file():
        return {}
    try:
        return _read(Manifest(folder).check(EMBEDDINGS, _ADVICE, earlier=True))
    except (DamagedError, PermissionError):  # another user's file is not damaged
        raise
    except (OSError, KeyError, UnreadableError) as error:
        raise UsageError(f"{path} is damaged ({error}). {_ADVICE}") from error


def write_rows(folder: pathlib.Path, rows: Rows) -> None:
    """Write at least one embedding to `embeddings.npz` in a folder."""
    with Manifest(folder).replacing(EMBEDDINGS) as temporary:
        _write(temporary, rows)


def _read(path: pathlib.Path) -> Rows:
    saved, _ = read_npz(path)
    columns = [saved[name].tolist() for name in ("paths", "sizes", "times")]
    return dict(zip(map(ImageFile, *columns), saved["embeddings"]))


def _write(path: pathlib.Path, rows: Rows) -> None:
    paths, sizes, times = zip(*rows)
    embeddings = np.stack(list(rows.values()))
    with open(path, "wb") as stream:  # NumPy would add an ending to a path
        np.savez(stream, embeddings=embeddings, paths=paths, sizes=sizes, times=times)
