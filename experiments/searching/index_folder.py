"""The folder of an index: its files and its settings."""

from __future__ import annotations

import contextlib
import json
import pathlib
import shlex
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple, TypeAlias

from experiments import typed
from experiments.options.errors import UsageError
from experiments.options.held_folder import held
from keras_dml._common.errors import ArgumentError, without_passwords
from keras_dml._files.atomic import make_folder, replacing
from keras_dml._files.checksums import read_sealed_json
from keras_dml._files.json_files import read_json
from keras_dml._files.manifest import MANIFEST, Manifest

Settings: TypeAlias = dict[str, Any]
INDEX = "index"
MODEL = "model"
EMBEDDINGS = "embeddings.npz"
SKIPPED = "skipped.txt"
SETTINGS = "settings.json"
# What the map of an upgraded index changes: its rows, or the queries.
ROWS, QUERIES = "rows", "queries"
MAP_FORM = {
    "kind": str,
    "of": str,
    "old_model": str,
    "new_model": str,
    "fingerprint": str,
    "bad": dict[str, str],
}
_FORM = {
    "saved_model": str,
    "fingerprint": str,
    "images": str,
    "built": (dict[str, Any], None),
    "search": str,
    "store": str | None,
    "map": (MAP_FORM, None),
}


class Changes(NamedTuple):
    """The numbers of new, changed, and removed images."""

    added: int
    changed: int
    removed: int

    def __str__(self) -> str:
        return "added {:,}, changed {:,}, removed {:,}".format(*self)


@contextlib.contextmanager
def locked_folder(folder: pathlib.Path, argument: str = "output_dir") -> Iterator[None]:
    """Lock the folder of an index within a with statement. Create the folder if it is missing.

    Args:
        folder: The folder.
        argument: Name of the argument, for the message.

    Raises:
        UsageError: The folder is not an index, or new, or only has the model of an index. Or
            another process uses it.
    """
    if folder.is_dir():
        names = {path.name for path in folder.iterdir() if not path.name.startswith(".")}
        is_free = SETTINGS in names or names <= {MODEL, MANIFEST}
    else:
        is_free = not folder.exists()
    if not is_free:
        raise UsageError(
            f"{argument} must be a new or empty folder, or an index of the same images, but got "
            f"{folder}."
        )
    make_folder(folder)
    with held(folder, argument):
        Manifest(folder).recover()
        yield


def stored_place(images: str) -> str:
    """Return the folder or address of images as files store it: without passwords and keys."""
    return without_passwords(images) if "://" in images else images


def opened_settings(
    folder: pathlib.Path, saved_model: pathlib.Path, fingerprint: str, images: str
) -> Settings:
    """Read the settings of an index folder, or write the settings of a new index.

    Args:
        folder: The locked folder.
        saved_model: The model's folder.
        fingerprint: The fingerprint of the model's files.
        images: The folder or address of the images.

    Returns:
        `saved_model` (relative to `folder` if it is inside), `fingerprint`, `images`, `built` (how
        the index was built, or None), and `search` (a line about the search).

    Raises:
        UsageError: The folder has an index of another model or other images.
    """
    place = MODEL if saved_model == folder / MODEL else str(saved_model)
    images = stored_place(images)
    if not (folder / SETTINGS).is_file():
        new: Settings = {"saved_model": place, "fingerprint": fingerprint, "images": images}
        write_settings(folder, new | {"built": None, "search": ""})
        return read_settings(folder)
    saved = read_settings(folder)
    before = stored_place(saved["images"])  # versions before 0.3 stored passwords
    if before != images:
        raise UsageError(
            f"images must be {before}, because the index in {folder} has these images, "
            f"but got {images}. Use another --output_dir."
        )
    if has_mapped_rows(saved):
        raise UsageError(
            f"output_dir must be an index without mapped rows, but got {folder}. Embed them first: "
            f"keras-dml upgrade --index={folder} --stage=1/1"
        )
    if saved["fingerprint"] != fingerprint:
        raise UsageError(
            f"output_dir must be an index of the model {saved_model}, but got {folder}, an index "
            "of another model. Use another --output_dir, or delete the folder."
        )
    settings = saved | {"saved_model": place, "images": images}
    if settings != saved:  # the model was moved
        write_settings(folder, settings)
    return settings


def has_mapped_rows(settings: Settings) -> bool:
    """Return whether rows of the index are mapped from another model."""
    return bool(settings.get("map")) and settings["map"]["of"] == ROWS


def read_settings(folder: pathlib.Path) -> Settings:
    """Read the settings of an index folder.

    Raises:
        UsageError: The folder has no settings, or they are damaged.
    """
    path = folder / SETTINGS
    if not folder.exists():
        raise UsageError(f"the index {folder} does not exist. keras-dml index makes one")
    if not path.is_file():
        raise UsageError(
            f"{folder} has no {SETTINGS}, so it is not an index. keras-dml index makes one"
        )
    try:
        return read_json_file(folder, SETTINGS, _FORM)
    except ArgumentError as error:
        raise UsageError(
            f"{error}. Delete {folder}, and its keras-dml index command makes it again"
        ) from error


def write_settings(folder: pathlib.Path, settings: Settings) -> None:
    """Write the settings of an index folder."""
    write_json_file(folder, SETTINGS, settings)


def write_json_file(folder: pathlib.Path, name: str, value: Mapping[str, Any]) -> None:
    """Write a JSON file of an index folder."""
    Manifest(folder).write_text(name, json.dumps(value, indent=1) + "\n")


def read_json_file(folder: pathlib.Path, name: str, form: Any) -> dict[str, Any]:
    """Read a JSON file of an index folder.

    Args:
        folder: The folder.
        name: Name of the file.
        form: The types of its values, as for `keras_dml._files.json_files.read_json`.

    Raises:
        ArgumentError: The file is damaged.
    """
    manifest = Manifest(folder)
    if name not in manifest.checksums():  # of a version with the checksum in the file
        return read_sealed_json(folder / name, form)
    found: dict[str, Any] = read_json(manifest.check(name), form)
    return found


def write_skipped(path: pathlib.Path, bad: Mapping[str, str]) -> None:
    """List the bad images and the reasons in a file, or delete the file if all images are good."""
    from experiments.options.data import bad_image_line

    if not bad:
        path.unlink(missing_ok=True)
        return
    lines = [f"{bad_image_line(name, reason)}\n" for name, reason in sorted(bad.items())]
    with replacing(path) as temporary:
        temporary.write_text("".join(lines), encoding="utf-8")


def how_to_search(index: object, images: str = "") -> str:
    """Return a line with the command that searches an index.

    Args:
        index: The folder or the store.
        images: The images' folder. A search opens an address only if the command line sets it.
    """
    words = [f"--index={index}", *([f"--images={images}"] if "://" in images else [])]
    command = without_passwords(typed(f"keras-dml search {shlex.join(words)}"))
    return f"search it: {command} --query=IMAGE (or --serve)"
