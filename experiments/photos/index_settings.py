"""What `experiments.index` leaves for `experiments.search`: names, and of what the index is."""

import json
import os
import pathlib
from typing import Any, TypeAlias

from experiments.options.errors import UsageError

Settings: TypeAlias = dict[str, Any]
INDEX = "index"
EMBEDDINGS = "embeddings.npz"
SKIPPED = "skipped.txt"
SETTINGS = "settings.json"


def open_folder(
    folder: str | os.PathLike[str],
    saved_model: pathlib.Path,
    fingerprint: str,
    images: pathlib.Path,
) -> Settings:
    """Make `folder`, or go on with one of the same model and images.

    Args:
        folder: path.
        saved_model: folder of the model.
        fingerprint: of the model's files.
        images: folder of the images.

    Returns:
        dict: `saved_model`, `fingerprint`, `images`, `built` (what the index in it was built from,
        None if there is none yet) and `search` (a line about that index).

    Raises:
        ValueError: `folder` holds an index of another model or of other images, or something else.
    """
    folder = pathlib.Path(folder)
    settings: Settings = {
        "saved_model": str(saved_model),
        "fingerprint": fingerprint,
        "images": str(images),
    }
    if (folder / SETTINGS).is_file():
        saved = read_settings(folder)
        if saved["images"] != settings["images"]:
            raise UsageError(
                f"output {folder} holds an index of other images, those in {saved['images']}: "
                f"give another --output. Received: images={images}"
            )
        if saved["fingerprint"] != fingerprint:
            raise UsageError(
                f"output {folder} holds an index made with another model than {saved_model} is "
                f"now: its embeddings do not compare. Give another --output, or delete that one"
            )
        settings = saved | settings
        if settings != saved:  # the same model, moved
            write_settings(folder, settings)
        return settings
    if folder.exists() and not (folder.is_dir() and all(map(_is_hidden, folder.iterdir()))):
        raise UsageError(
            "output must be a new or empty folder, or an index of the same images. "
            f"Received: output={folder}, which is something else"
        )
    folder.mkdir(parents=True, exist_ok=True)
    settings |= {"built": None, "search": ""}
    write_settings(folder, settings)
    return settings


def read_settings(folder: str | os.PathLike[str]) -> Settings:
    """What `write_settings` wrote.

    Raises:
        ValueError: `folder` is none of `experiments.index`, or damaged.
    """
    path = pathlib.Path(folder, SETTINGS)
    try:
        settings = json.loads(path.read_text())
        if settings.keys() >= {"saved_model", "fingerprint", "images", "built", "search"}:
            return settings
    except OSError as error:
        raise UsageError(
            f"there is no index in {folder}: {SETTINGS} cannot be read ({error.strerror}). "
            "python -m experiments.index makes one"
        ) from error
    except (ValueError, AttributeError):
        pass
    raise UsageError(f"{path} is damaged, or was not written by experiments.index")


def write_settings(folder: str | os.PathLike[str], settings: Settings) -> None:
    """Write what `open_folder` returned, with another `built` and `search`."""
    from keras_dml.atomic import replacing  # with Keras, which the names alone do not need

    with replacing(pathlib.Path(folder, SETTINGS)) as path:
        path.write_text(json.dumps(settings, indent=1) + "\n")


def _is_hidden(path: pathlib.Path) -> bool:
    return path.name.startswith(".")
