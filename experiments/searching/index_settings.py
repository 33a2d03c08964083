"""The files of an index folder: their names, and the settings."""

import contextlib
import os
import pathlib
import shlex
from collections.abc import Iterator, Mapping
from typing import Any, TypeAlias

from experiments.evaluation.checked_json import checked_text, read_checked
from experiments.evaluation.held_folder import held
from experiments.options.errors import UsageError

Settings: TypeAlias = dict[str, Any]
INDEX = "index"
EMBEDDINGS = "embeddings.npz"
SKIPPED = "skipped.txt"
SETTINGS = "settings.json"
# A search of this many images takes some ten milliseconds without a tree.
EXACT_ITEMS = 100_000
# The share of the true neighbors that a tree finds by default.
TARGET_RECALL = 0.95
_NAMES = {"saved_model", "fingerprint", "images", "built", "search"}


@contextlib.contextmanager
def open_folder(
    folder: str | os.PathLike[str],
    saved_model: pathlib.Path,
    fingerprint: str,
    images: str | pathlib.Path,
) -> Iterator[Settings]:
    """Create or open an index folder, and lock it.

    Args:
        folder: the index folder.
        saved_model: the model's folder.
        fingerprint: the fingerprint of the model's files.
        images: the folder or address of the images.

    Yields:
        The settings: `saved_model`, `fingerprint`, `images`, `built` (how the index was built, or
        None) and `search` (a line about the search).

    Raises:
        UsageError: if the folder has an index of another model or other images, or other files, or
            if another process uses it.
    """
    folder = pathlib.Path(folder)
    _check_free(folder)
    folder.mkdir(parents=True, exist_ok=True)
    with held(folder, "output_dir"):
        # Check again, because another process could have written before the lock.
        if (folder / SETTINGS).is_file():
            yield _continued(folder, saved_model, fingerprint, images)
            return
        _check_free(folder)
        settings: Settings = {
            "saved_model": str(saved_model),
            "fingerprint": fingerprint,
            "images": str(images),
            "built": None,
            "search": "",
        }
        write_settings(folder, settings)
        yield settings


def _check_free(folder: pathlib.Path) -> None:
    if (folder / SETTINGS).is_file():
        return
    if folder.exists() and not (folder.is_dir() and all(map(_is_hidden, folder.iterdir()))):
        raise UsageError(
            "output_dir must be a new or empty folder, or an index of the same images. "
            f"Received: output_dir={folder}, which is something else"
        )


def _continued(
    folder: pathlib.Path, saved_model: pathlib.Path, fingerprint: str, images: str | pathlib.Path
) -> Settings:
    saved = read_settings(folder)
    if saved["images"] != str(images):
        raise UsageError(
            f"output_dir {folder} holds an index of other images, those in {saved['images']}: "
            f"give another --output_dir. Received: images={images}"
        )
    if saved["fingerprint"] != fingerprint:
        raise UsageError(
            f"output_dir {folder} holds an index made with another model than {saved_model} is "
            f"now: its embeddings do not compare. Give another --output_dir, or delete that one"
        )
    settings = saved | {"saved_model": str(saved_model)}
    if settings != saved:  # the same model, moved
        write_settings(folder, settings)
    return settings


def read_settings(folder: str | os.PathLike[str]) -> Settings:
    """Read the settings of an index folder.

    Raises:
        UsageError: if the folder has no settings, or they are damaged.
    """
    path = pathlib.Path(folder, SETTINGS)
    if not path.is_file():
        raise UsageError(
            f"{folder} has no {SETTINGS}, so it is not an index. python -m experiments.index "
            "makes one"
        )
    settings = read_checked(path)
    # Settings of earlier versions have no checksum.
    if settings is None or not settings.keys() >= _NAMES:
        raise UsageError(
            f"{path} is damaged, or was not written by experiments.index: delete {folder}, and its "
            "python -m experiments.index command makes it again"
        )
    return settings


def write_settings(folder: str | os.PathLike[str], settings: Settings) -> None:
    """Write the settings of an index folder."""
    from keras_dml._files.atomic import replacing  # imports Keras

    with replacing(pathlib.Path(folder, SETTINGS)) as path:
        path.write_text(checked_text(settings))


def write_skipped(path: pathlib.Path, bad: Mapping[str, str]) -> None:
    """List the bad images and the reasons in a file, or delete the file if all images are good."""
    if not bad:
        path.unlink(missing_ok=True)
        return
    from experiments.options.data import bad_image_line
    from keras_dml._files.atomic import replacing

    with replacing(path) as temporary:
        lines = [f"{bad_image_line(name, reason)}\n" for name, reason in sorted(bad.items())]
        temporary.write_text("".join(lines), encoding="utf-8")


def how_to_search(index: object, images: str = "") -> str:
    """Return a line with the command that searches an index.

    Args:
        index: the folder or the store.
        images: the images' folder. A search opens an address only if the command line sets it.
    """
    words = [f"--index={index}", *([f"--images={images}"] if "://" in images else [])]
    return f"search it: python -m experiments.search {shlex.join(words)} --query=IMAGE (or --serve)"


def _is_hidden(path: pathlib.Path) -> bool:
    return path.name.startswith(".")
