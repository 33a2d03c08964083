"""Embed the images of a folder on this machine, each image once."""

import concurrent.futures
import contextlib
import hashlib
import json
import pathlib
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from experiments.evaluation.npz_file import UnreadableError, read_npz
from experiments.evaluation.saved_model import ImageEmbedder
from experiments.options.errors import UsageError
from experiments.options.progress import progress_bar
from experiments.searching.image_batch import embed_batch, read_image, unusable_name
from experiments.searching.image_files import ImageFile, check_not_gone, image_path
from experiments.searching.index_settings import EMBEDDINGS
from keras_dml._files.atomic import replacing
from pipelines.images.limits import MOST_PIXELS

UNFINISHED = ".unfinished"
_READERS = 8
_SECONDS_BETWEEN_FILES = 5.0
# Files and their contents.
Batch: TypeAlias = tuple[Sequence[ImageFile], Iterable[bytes | str]]
# Embeddings by image file.
Rows: TypeAlias = dict[ImageFile, np.ndarray]


class Embedded(NamedTuple):
    """Images and their embeddings, float32 `[n, d]`."""

    files: list[ImageFile]
    embeddings: np.ndarray


class Update(NamedTuple):
    """The embedded images, and the reasons why other images are bad."""

    embedded: Embedded
    bad: dict[str, str]


class FolderEmbeddings:
    """Embeds the images of a folder that are new or changed.

    The folder has `embeddings.npz` (`embeddings` float32 `[n, d]`, and the `paths`, `sizes`, and
    modification `times` of the images). While a command runs, `.unfinished` has its embeddings so
    far in files of the same form, so that a killed command can continue.

    Args:
        output: an existing folder for the embeddings.
        images: the images' folder.
        model: a text that identifies the model, such as its `fingerprint`.
        max_pixels: the largest number of pixels of an image.
    """

    def __init__(
        self, output: pathlib.Path, images: pathlib.Path, model: str, max_pixels: int = MOST_PIXELS
    ) -> None:
        self._path, self._unfinished = output / EMBEDDINGS, output / UNFINISHED
        self._images, self._model, self._max_pixels = images, model, max_pixels

    def update(
        self,
        files: Sequence[ImageFile],
        load_embedder: Callable[[], ImageEmbedder],
        batch_size: int,
    ) -> Update:
        """Embed new images and remove deleted images.

        Args:
            files: the images in the folder.
            load_embedder: a function that loads the model. It is called if there are new images.
            batch_size: the number of images in a batch.

        Returns:
            The good images in the order of `files`, and the bad images by path.

        Raises:
            UsageError: if no image can be embedded.
            RunError: if the images' folder disappears.
        """
        known = self._load()
        saved = list(known)
        known |= self._load_unfinished()
        bad = {file.path: why for file in files if (why := unusable_name(file.path))}
        todo = [file for file in files if file not in known and file.path not in bad]
        if todo:
            self._embed(todo, load_embedder(), batch_size, known, bad)
            # While a folder is deleted, its images disappear one by one.
            check_not_gone(self._images)
        good = [file for file in files if file in known]
        if not good:
            path, reason = next(iter(bad.items()))
            raise UsageError(
                f"none of the {len(files):,} images can be embedded. The first, {path}: {reason}"
            )
        embeddings = np.stack([known[file] for file in good])
        if good != saved:
            _write(self._path, good, embeddings)
        shutil.rmtree(self._unfinished, ignore_errors=True)
        return Update(Embedded(good, embeddings), bad)

    def _load(self) -> Rows:
        if not self._path.is_file():
            return {}
        try:
            return _read(self._path)[0]
        except PermissionError:  # another user's file is not damaged
            raise
        except (OSError, KeyError, UnreadableError) as error:
            raise UsageError(
                f"{self._path} is damaged ({error}): delete it, and the same command embeds the "
                "images again"
            ) from error

    def _load_unfinished(self) -> Rows:
        """Read the embeddings of a killed command with the same model."""
        known: Rows = {}
        for path in self._unfinished.glob("*.npz"):
            with contextlib.suppress(OSError, KeyError, UnreadableError):
                rows, model = _read(path)
                known |= rows if model == self._model else {}
        return known

    def _embed(
        self,
        files: Sequence[ImageFile],
        embedder: ImageEmbedder,
        batch_size: int,
        known: Rows,
        bad: dict[str, str],
    ) -> None:
        """Embed files. Add embeddings to `known`, and reasons of bad files to `bad`."""
        self._unfinished.mkdir(exist_ok=True)
        new: list[ImageFile] = []
        since = time.monotonic()
        try:
            with progress_bar("embedding", len(files), leave=True) as bar:
                for batch, encoded in self._read_ahead(files, batch_size):
                    rows, reasons = embed_batch(embedder, encoded)
                    for place, file in enumerate(batch):
                        if place in reasons:
                            bad[file.path] = reasons[place]
                        else:
                            known[file] = rows[place]
                            new.append(file)
                    bar.update(len(batch))
                    if time.monotonic() - since > _SECONDS_BETWEEN_FILES:
                        self._write_unfinished(new, known)
                        new, since = [], time.monotonic()
        finally:
            self._write_unfinished(new, known)

    def _write_unfinished(self, files: Sequence[ImageFile], known: Rows) -> None:
        if files:
            number = len(list(self._unfinished.glob("*.npz")))
            path = self._unfinished / f"{number:06d}.npz"
            _write(path, files, np.stack([known[file] for file in files]), model=self._model)

    def _read_ahead(self, files: Sequence[ImageFile], size: int) -> Iterator[Batch]:
        """Yield batches of files with their contents. Reads the next batch ahead."""
        with concurrent.futures.ThreadPoolExecutor(_READERS) as pool:
            ahead: list[Batch] = []
            for start in range(0, len(files), size):
                batch = files[start : start + size]
                ahead.append((batch, pool.map(self._read, batch)))
                if len(ahead) > 1:
                    yield ahead.pop(0)
            yield from ahead

    def _read(self, file: ImageFile) -> bytes | str:
        """Return the contents of a file, or the reason why it is bad."""
        read = image_path(self._images, file.path).read_bytes
        return read_image(read, self._max_pixels, lambda: check_not_gone(self._images))


def digest(files: Sequence[ImageFile]) -> str:
    """Return the SHA-256 of a list of files, in hexadecimal digits."""
    return hashlib.sha256(json.dumps(files).encode()).hexdigest()


def _read(path: pathlib.Path) -> tuple[Rows, str]:
    """Read embeddings by image file, and the model if the file has it."""
    saved, _ = read_npz(path)
    columns = [saved[name].tolist() for name in ("paths", "sizes", "times")]
    return dict(zip(map(ImageFile, *columns), saved["embeddings"])), str(saved.get("model", ""))


def _write(
    path: pathlib.Path, files: Sequence[ImageFile], embeddings: np.ndarray, **more: Any
) -> None:
    paths, sizes, times = zip(*files)
    with replacing(path) as temporary, open(temporary, "wb") as stream:
        np.savez(stream, embeddings=embeddings, paths=paths, sizes=sizes, times=times, **more)
