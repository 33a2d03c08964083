"""An index as a folder."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import pathlib
import tokenize
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any

import numpy as np

from keras_dml.atomic import replacing_folder
from keras_dml.checksums import check_same, folder_checksums
from keras_dml.errors import ArgumentError
from keras_dml.nearness import METRICS, Metric
from keras_dml.retrieval.items import EMBEDDINGS, Items
from keras_dml.retrieval.tree import TreeAH
from keras_dml.retrieval.tree_searcher import TreeSearcher

# What the readers of JSON and of NumPy's files raise at a cut or changed one.
_WHAT_DAMAGE_RAISES = (
    AttributeError,
    EOFError,
    KeyError,
    OSError,
    RecursionError,
    SyntaxError,
    TypeError,
    ValueError,
    tokenize.TokenError,
)
# Raised by one whenever an older library could not read what is written.
FORMAT = 2
# What has no tree is written as before.
_FORMAT_WITHOUT_TREE = 1
_KINDS = ("exact", "prefix", "scann")
_DESCRIPTION = "index.json"
_SEARCHER = "searcher"
_CHECKSUMS = "sha256"


def save_index(
    path: str | os.PathLike[str],
    items: Items,
    *,
    kind: str,
    metric: Metric,
    parameters: Mapping[str, object],
    write_searcher: Callable[[pathlib.Path], None],
) -> None:
    """What `Index.save` says, of the parts of an index.

    Args:
        path: the folder.
        items: of the index.
        kind: which class of index it is.
        metric: the index's.
        parameters: JSON values by name, those of `Index.parameters`.
        write_searcher: writes what was trained on the items, `Index.write_searcher`.
    """
    with replacing_folder(path, _DESCRIPTION, "an index") as folder:
        folder.mkdir()
        np.save(folder / EMBEDDINGS, items.rows)
        if items.has_ids:
            np.save(folder / "ids.npy", items.ids)
        write_searcher(folder / _SEARCHER)
        written = FORMAT if "asked" in parameters else _FORMAT_WITHOUT_TREE
        description = {"format": written, "kind": kind, "metric": metric}
        description |= {"items": len(items), "dimensions": items.dimensions}
        description |= {"ids": items.has_ids, **parameters}
        sums = {**folder_checksums(folder), _DESCRIPTION: _digest(description)}
        description[_CHECKSUMS] = sums
        (folder / _DESCRIPTION).write_text(json.dumps(description, indent=1) + "\n")


@dataclasses.dataclass(frozen=True)
class SavedIndex:
    """What `save_index` wrote: its JSON values, the items, where it is read, and what that is
    called in messages."""

    description: dict[str, Any]
    items: Items
    folder: pathlib.Path
    path: str | os.PathLike[str]

    @property
    def kind(self) -> str:
        """Which class of index it was."""
        return self.description["kind"]

    @property
    def metric(self) -> Metric:
        """ "cosine" or "l2"."""
        return self.description["metric"]

    def tree(self, scann: ModuleType) -> TreeSearcher | TreeAH | None:
        """What `ScannIndex` takes: a trained `TreeSearcher`, a `TreeAH` not used yet, or None.

        Raises:
            ValueError: it is damaged.
        """
        try:
            if "tree" not in self.description:
                return TreeAH(**self.description["asked"]) if "asked" in self.description else None
            rows, searcher = self.items.rows, self.folder / _SEARCHER
            return TreeSearcher.loaded(scann, searcher, self.description, rows, self.metric)
        except (TypeError, ValueError) as error:
            said = str(error).replace(str(self.folder), os.fspath(self.path))
            raise _damaged(self.path, said) from error

    def prefix(self) -> dict[str, int]:
        """What `PrefixIndex` takes.

        Raises:
            ValueError: it is damaged.
        """
        try:
            found = {name: self.description[name] for name in ("length", "candidates")}
        except KeyError as error:
            raise _damaged(self.path, error) from error
        if not all(type(value) is int for value in found.values()) or not (
            0 < found["length"] < self.items.dimensions and found["candidates"] > 0
        ):
            raise _damaged(self.path, f"a prefix of {found}")
        return found


def _damaged(path: str | os.PathLike[str], error: object) -> ArgumentError:
    return ArgumentError(
        f"path holds an index that is damaged: {error}. Received: path={os.fspath(path)!r}"
    )


def read_index(folder: pathlib.Path, path: str | os.PathLike[str]) -> SavedIndex:
    """The `SavedIndex` of a folder.

    Args:
        folder: where it is read, see `keras_dml.atomic.read_folder`.
        path: what messages call it.

    Raises:
        ValueError: it is no index, damaged, or written by a newer library.
        PermissionError: a file must not be read.
    """
    where = f"Received: path={os.fspath(path)!r}"
    if not (folder / _DESCRIPTION).is_file():
        raise ArgumentError(f"path must be a folder that Index.save wrote. {where}")
    try:
        description = json.loads((folder / _DESCRIPTION).read_text())
        newer = description["format"] > FORMAT
        items = None if newer else _read_items(folder, description)
    except PermissionError as error:  # another user's file is not damaged
        name = str(error.filename).replace(str(folder), os.fspath(path))
        raise PermissionError(error.errno, error.strerror, name) from error
    except _WHAT_DAMAGE_RAISES as error:
        raise _damaged(path, error if isinstance(error, ArgumentError) else repr(error)) from error
    if items is None:
        raise ArgumentError(
            f"path holds an index of a newer library: format {description['format']}, "
            f"this one reads up to {FORMAT}. {where}"
        )
    return SavedIndex(description, items, folder, path)


def _digest(description: Mapping[str, Any]) -> str:
    """SHA-256 of what `index.json` says beside the checksums."""
    said = {name: value for name, value in description.items() if name != _CHECKSUMS}
    # As it is read: tuples have become lists.
    text = json.dumps(json.loads(json.dumps(said)), sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def _check_sums(folder: pathlib.Path, description: Mapping[str, Any]) -> None:
    """Before anything is loaded: ScaNN's own reader ends the process at many a flipped bit."""
    found = {**folder_checksums(folder), _DESCRIPTION: _digest(description)}
    check_same(found, description[_CHECKSUMS])


def _read_items(folder: pathlib.Path, description: Mapping[str, Any]) -> Items:
    # Indexes of 0.1.0 have none.
    if _CHECKSUMS in description:
        _check_sums(folder, description)
    rows = _array(folder / EMBEDDINGS)
    if rows.dtype != np.float32 or rows.shape != (description["items"], description["dimensions"]):
        raise ArgumentError(f"{EMBEDDINGS} holds {rows.dtype} of shape {rows.shape}")
    if not np.isfinite(rows).all():
        raise ArgumentError(f"{EMBEDDINGS} holds NaN or infinity")
    if description["kind"] not in _KINDS or description["metric"] not in METRICS:
        raise ArgumentError(f"{_DESCRIPTION} names no kind and metric of this library")
    return Items(rows, _array(folder / "ids.npy") if description["ids"] else None)


def _array(path: pathlib.Path) -> np.ndarray:
    return np.ascontiguousarray(np.load(path, allow_pickle=False))
