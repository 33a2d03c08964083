"""Embed the images of a folder on this machine, each image once."""

import concurrent.futures
import hashlib
import json
import pathlib
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple, TypeAlias

import numpy as np

from experiments.embedding.checked_json import checked_text, read_checked
from experiments.embedding.embedding_file import EmbeddingFile
from experiments.embedding.npz_file import UnreadableError, read_npz
from experiments.embedding.saved_model import ImageEmbedder
from experiments.options.errors import UsageError
from experiments.options.progress import progress_bar
from experiments.searching.image_batch import (
    NO_EMBEDDING,
    embed_batch,
    read_image,
    unusable_name,
)
from experiments.searching.image_files import ImageFile, check_not_gone, image_path
from experiments.searching.index_settings import EMBEDDINGS
from keras_dml._files.atomic import replacing
from pipelines.images.limits import MOST_PIXELS

UNFINISHED = ".unfinished"
_READERS = 8
# Files and their contents.
Batch: TypeAlias = tuple[Sequence[ImageFile], Iterable[bytes | str]]


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
    modification `times` of the images) and `.unfinished`, the state of a command that is running or
    was killed. A killed command continues with its list of images, and then embeds newer images.

    Args:
        output: an existing folder for the embeddings.
        images: the images' folder.
        model: a text that identifies the model, such as its `fingerprint`.
        max_pixels: the largest number of pixels of an image.
    """

    def __init__(
        self,
        output: pathlib.Path,
        images: pathlib.Path,
        model: str,
        max_pixels: int = MOST_PIXELS,
    ) -> None:
        self._max_pixels = max_pixels
        self._path = output / EMBEDDINGS
        self._unfinished = output / UNFINISHED
        self._images = images
        self._model = model

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
        saved = self._load()
        row_of: dict[ImageFile, int] = {}
        blocks: list[np.ndarray] = []
        if saved:
            row_of = {file: row for row, file in enumerate(saved.files)}
            blocks = [saved.embeddings]
        bad = {file.path: why for file in files if (why := unusable_name(file.path))}
        embedder = None
        while todo := [file for file in files if file not in row_of and file.path not in bad]:
            embedder = embedder or load_embedder()
            begun, rows = self._embed(self._begin(todo), embedder, batch_size, bad)
            # While a folder is deleted, its images disappear one by one.
            check_not_gone(self._images)
            first = sum(map(len, blocks))
            blocks.append(rows)
            row_of |= {file: first + row for row, file in enumerate(begun)}
            saved = self._keep(files, row_of, blocks, saved)
            shutil.rmtree(self._unfinished)
        # A process can be killed while it removes the folder.
        shutil.rmtree(self._unfinished, ignore_errors=True)
        embedded = self._keep(files, row_of, blocks, saved)
        if embedded is None:
            path, reason = next(iter(bad.items()))
            raise UsageError(
                f"none of the {len(files):,} images can be embedded. The first, {path}: {reason}"
            )
        return Update(embedded, bad)

    def _load(self) -> Embedded | None:
        if not self._path.is_file():
            return None
        try:
            saved, _ = read_npz(self._path)
            columns = [saved[name].tolist() for name in ("paths", "sizes", "times")]
            return Embedded(list(map(ImageFile, *columns)), saved["embeddings"])
        except PermissionError:  # another user's file is not damaged
            raise
        except (OSError, KeyError, UnreadableError) as error:
            raise UsageError(
                f"{self._path} is damaged ({error}): delete it, and the same command embeds the "
                "images again"
            ) from error

    def _keep(
        self,
        files: Sequence[ImageFile],
        row_of: Mapping[ImageFile, int],
        blocks: Sequence[np.ndarray],
        saved: Embedded | None,
    ) -> Embedded | None:
        """Write the embeddings in the order of `files`, unless they are unchanged.

        Returns:
            The embeddings. None if no image is good.
        """
        good = [file for file in files if file in row_of]
        if not good:
            return None
        if saved and good == saved.files:
            return saved
        embeddings = _gathered(blocks, np.array([row_of[file] for file in good]))
        paths, sizes, times = zip(*good)
        with replacing(self._path) as path, open(path, "wb") as stream:
            np.savez(stream, embeddings=embeddings, paths=paths, sizes=sizes, times=times)
        return Embedded(good, embeddings)

    def _begin(self, todo: list[ImageFile]) -> list[ImageFile]:
        """Return the list of images of a killed command with the same model, or else `todo`."""
        path = self._unfinished / "files.json"
        begun = read_checked(path)
        if begun is not None and "files" in begun and begun.get("model") == self._model:
            return [ImageFile(*file) for file in begun["files"]]
        if self._unfinished.exists():
            shutil.rmtree(self._unfinished)
        self._unfinished.mkdir(exist_ok=True)
        with replacing(path) as temporary:
            temporary.write_text(checked_text({"model": self._model, "files": todo}))
        return todo

    def _embed(
        self,
        files: Sequence[ImageFile],
        embedder: ImageEmbedder,
        batch_size: int,
        bad: dict[str, str],
    ) -> tuple[list[ImageFile], np.ndarray]:
        """Embed files, and add the reasons of bad files to `bad`.

        Returns:
            The good files and their embeddings. Bad files of a killed command are in neither.
        """
        done = EmbeddingFile(
            self._unfinished / "embeddings.npy", len(files), f"{self._model} {digest(files)}"
        )
        with done, progress_bar("embedding", len(files), done.done, leave=True) as bar:
            for batch, encoded in self._read_ahead(files[done.done :], batch_size):
                rows, reasons = embed_batch(embedder, encoded)
                bad |= {batch[place].path: reason for place, reason in reasons.items()}
                done.append(rows)
                bar.update(len(batch))
        rows = done.array()
        good = np.flatnonzero(rows[:, 0] != NO_EMBEDDING)
        return [files[row] for row in good.tolist()], rows[good]

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


def _gathered(blocks: Sequence[np.ndarray], rows: np.ndarray) -> np.ndarray:
    """Return rows by their numbers across all blocks, without joining the blocks."""
    gathered = np.empty((len(rows), blocks[0].shape[1]), np.float32)
    first = 0
    for block in blocks:
        inside = (rows >= first) & (rows < first + len(block))
        gathered[inside] = block[rows[inside] - first]
        first += len(block)
    return gathered
