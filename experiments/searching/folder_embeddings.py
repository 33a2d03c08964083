"""The embeddings of a folder's images, kept on disk: each image is embedded once."""

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
# Files and what `FolderEmbeddings._read` gives for them.
Batch: TypeAlias = tuple[Sequence[ImageFile], Iterable[bytes | str]]


class Embedded(NamedTuple):
    """Images with their embeddings, float32 `[n, d]`."""

    files: list[ImageFile]
    embeddings: np.ndarray


class Update(NamedTuple):
    """What `update` ends with: the good images, and the bad ones with the reason."""

    embedded: Embedded
    bad: dict[str, str]


class FolderEmbeddings:
    """Embeds the images of a folder that are not embedded yet, or have changed since.

    What is there is in `embeddings.npz` (`embeddings` float32 `[n, d]`, `paths` relative to the
    images' folder, their `sizes` in bytes and modification `times` in ns); `.unfinished` holds what
    is under way. A process that was killed is continued with the list of images that it had begun
    with; what the folder holds beyond that by now comes after.

    Args:
        output: the folder to write to, which exists.
        images: the folder of the images.
        model: text that stands for the model, such as its `fingerprint`.
        max_pixels: how many pixels an image may have.
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
        """Embed what is new, and drop what is gone.

        Args:
            files: the folder's images, `ImageFile`s.
            load_embedder: function without arguments that returns an `ImageEmbedder`; called if
                there is anything to embed.
            batch_size: images embedded at once.

        Returns:
            `Update`: the good ones in the order of `files`, and the bad ones by path.

        Raises:
            ValueError: none of the images can be embedded, or another process embeds them.
            RunError: the folder of the images is gone.
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
            # A folder that is deleted loses its images one by one before it is gone.
            check_not_gone(self._images)
            first = sum(map(len, blocks))
            blocks.append(rows)
            row_of |= {file: first + row for row, file in enumerate(begun)}
            saved = self._keep(files, row_of, blocks, saved)
            shutil.rmtree(self._unfinished)
        # What a process left that was killed while it removed it.
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
        """The embeddings in the order of `files`, written unless they are what `saved` is.

        None where none of `files` has any.
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
        """The list of images that a killed process of the same model has begun, or else `todo`."""
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
        """The good ones of `files` and their embeddings; the others' reasons go into `bad`.

        A bad one that an earlier process has met is in neither.
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
        """Batches of files and what `_read` gives for them, the next ones read meanwhile."""
        with concurrent.futures.ThreadPoolExecutor(_READERS) as pool:
            ahead: list[Batch] = []
            for start in range(0, len(files), size):
                batch = files[start : start + size]
                ahead.append((batch, pool.map(self._read, batch)))
                if len(ahead) > 1:
                    yield ahead.pop(0)
            yield from ahead

    def _read(self, file: ImageFile) -> bytes | str:
        """The file's bytes, or as text the reason why there are none."""
        read = image_path(self._images, file.path).read_bytes
        return read_image(read, self._max_pixels, lambda: check_not_gone(self._images))


def digest(files: Sequence[ImageFile]) -> str:
    """SHA-256 of a list of `ImageFile`, as hexadecimal digits."""
    return hashlib.sha256(json.dumps(files).encode()).hexdigest()


def _gathered(blocks: Sequence[np.ndarray], rows: np.ndarray) -> np.ndarray:
    """The rows of these numbers, counted through all blocks; no copy of all blocks is made."""
    gathered = np.empty((len(rows), blocks[0].shape[1]), np.float32)
    first = 0
    for block in blocks:
        inside = (rows >= first) & (rows < first + len(block))
        gathered[inside] = block[rows[inside] - first]
        first += len(block)
    return gathered
