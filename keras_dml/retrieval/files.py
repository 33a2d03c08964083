"""The folder format of a saved index."""

from __future__ import annotations

import json
import os
import pathlib
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from keras_dml._common.errors import ArgumentError, argument_error
from keras_dml._common.types import StrPath
from keras_dml._files.atomic import read_folder, replacing_folder
from keras_dml._files.checksums import check_same, folder_checksums, json_digest
from keras_dml._files.copies import names_of_files
from keras_dml._files.json_files import read_json
from keras_dml._files.manifest import MANIFEST, Manifest
from keras_dml.retrieval.items import EMBEDDINGS, Items

# Increment this whenever an older version of the library cannot read the new format.
FORMAT = 3
# Up to this format, `index.json` has the checksums.
_WITHOUT_MANIFEST = 2
_DESCRIPTION = "index.json"
SEARCHER = "searcher"
_IDS = "ids.npy"
_CHECKSUMS = "sha256"
_FORM = {
    "format": int,
    "kind": str,
    "metric": str,
    "items": int,
    "dimensions": int,
    "ids": bool,
    _CHECKSUMS: dict[str, str] | None,
    "length": int | None,
    "candidates": int | None,
    "measured_recall": float | None,
    "center": list[float] | None,
    "lift": float | None,
    "recall": float | None,
    "trained_on": int | None,
    "asked": (dict[str, Any], None),
    "tree": ({"num_leaves": int, "leaves_to_search": int, "reorder": int}, None),
}


def save_index(
    path: StrPath,
    items: Items,
    parameters: Mapping[str, object],
    write_searcher: Callable[[pathlib.Path], None],
) -> None:
    """Write the parts of an index to a folder, as `Index.save` describes.

    Args:
        path: The folder.
        items: Items of the index.
        parameters: JSON values by name: "kind", "metric", and those of `Index.parameters`.
        write_searcher: `Index.write_searcher`, which writes the state trained on the items.
    """
    with replacing_folder(path, _DESCRIPTION, "an index") as folder:
        folder.mkdir()
        np.save(folder / EMBEDDINGS, items.rows)
        if items.has_ids:
            np.save(folder / _IDS, items.ids)
        write_searcher(folder / SEARCHER)
        sizes = {"items": len(items), "dimensions": items.dimensions, "ids": items.has_ids}
        description = {"format": FORMAT, **sizes, **parameters}
        (folder / _DESCRIPTION).write_text(json.dumps(description, indent=1) + "\n")
        Manifest(folder).record(names_of_files(folder))


def damaged(path: StrPath, error: object) -> ArgumentError:
    """Return the error for a damaged index.

    Args:
        path: The folder.
        error: The reason, as a text or an exception.
    """
    reason = str(error) or type(error).__name__
    if isinstance(error, KeyError):
        reason = f"{_DESCRIPTION} is damaged: it has no {reason}"
    return ArgumentError(
        f"path must be an undamaged index, but got {os.fspath(path)!r} ({reason})."
    )


def read_index(folder: pathlib.Path, path: StrPath) -> tuple[dict[str, Any], Items]:
    """Read the JSON values and the items that `save_index` wrote.

    Args:
        folder: The folder to read, see `keras_dml._files.atomic.read_folder`.
        path: Name of the folder in messages.

    Raises:
        ValueError: The folder is not an index, is damaged, or is from a newer version of the
            library.
        PermissionError: A file is not readable.
    """
    if not (folder / _DESCRIPTION).is_file():
        raise argument_error("path", "a folder that Index.save wrote", os.fspath(path))
    try:
        description = read_json(folder / _DESCRIPTION, {"format": int})
        if description["format"] <= FORMAT:
            description = read_json(folder / _DESCRIPTION, _FORM)
            # Before anything is loaded, because ScaNN's reader can crash on a flipped bit.
            _checked_files(folder, description)
            ids = np.load(folder / _IDS) if description["ids"] else None
            items = Items(np.load(folder / EMBEDDINGS), ids)
            _check_sizes(description, items)
            return description, items
    except PermissionError as error:  # another user's file is not damaged
        name = str(error.filename).replace(str(folder), os.fspath(path))
        raise PermissionError(error.errno, error.strerror, name) from error
    except Exception as error:  # NumPy and zipfile raise any exception for a crafted array
        raise damaged(path, error) from error
    wanted = f"an index of format {FORMAT} or older"
    advice = f"It has format {description['format']}. Install a newer version of keras-dml."
    raise argument_error("path", wanted, os.fspath(path), advice=advice)


def _check_sizes(description: Mapping[str, Any], items: Items) -> None:
    for name, size in (("items", len(items)), ("dimensions", items.dimensions)):
        if description[name] != size:
            problem = f"{name} must be {size}, as in {EMBEDDINGS}, but got {description[name]}"
            raise ArgumentError(f"{_DESCRIPTION} is damaged: {problem}")


def index_files(path: StrPath) -> list[str]:
    """Return the relative paths of the files of an index, without other files in its folder.

    Raises:
        ValueError: As for `read_index`.
    """

    def read(folder: pathlib.Path) -> list[str]:
        description, _ = read_index(folder, path)
        return _checked_files(folder, description)

    return read_folder(path, read)


def _checked_files(folder: pathlib.Path, description: Mapping[str, Any]) -> list[str]:
    """Return the relative paths of the files of an index.

    Raises:
        DamagedError: A file is missing or has changed since it was written.
    """
    if description["format"] <= _WITHOUT_MANIFEST:
        found = {**folder_checksums(folder), _DESCRIPTION: json_digest(description)}
        check_same(found, description[_CHECKSUMS])
        return list(description[_CHECKSUMS])
    manifest = Manifest(folder)
    names = list(manifest.checksums())
    for name in [_DESCRIPTION, *names]:
        manifest.check(name)
    return [*names, MANIFEST]
