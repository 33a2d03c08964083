"""A folder of Parquet files, for programs that read them; replaced in one go."""

from __future__ import annotations

import hashlib
import os
import pathlib
import uuid
from collections.abc import Collection

from experiments.embedding.checked_json import checked_text, read_checked
from experiments.options.errors import UsageError
from experiments.searching.arrow import arrow_schema, arrow_table
from experiments.searching.file_systems import Folder, is_uri, opened_folder, refusing
from experiments.searching.store import DIGEST, Description, Rows
from keras_dml._common.extras import needing
from keras_dml._files.atomic import replacing_folder

with needing("parquet", "parquet:FOLDER"):
    import pyarrow.parquet as pq

__all__ = ["MARKER", "check_parquet", "finish_parts", "write_parquet", "write_part"]

# Readers of Parquet leave out what begins with _ or a dot.
MARKER = "_keras_dml.json"
_ROWS = 100_000
_WRITING = ".writing-"


def check_parquet(folder: str | os.PathLike[str], by_many: bool = False) -> None:
    """Refuse a place where no folder of Parquet files can be written.

    Args:
        folder: where to.
        by_many: whether many workers write there: such a folder is none that one command replaces,
            and may be in an object store.

    Raises:
        UsageError: something else is there, or nothing that could hold it.
    """
    if by_many:
        names = opened_folder(folder).names()
        if names and MARKER not in names and not all(map(_is_part, names)):
            raise UsageError(
                "to=parquet:FOLDER must be a new or empty folder, or one that the same command has "
                f"written. Received: to=parquet:{folder}"
            )
        return
    if is_uri(os.fspath(folder)):
        raise UsageError(
            f"to=parquet:URI is written by --engine=ray alone. Received: to=parquet:{folder}"
        )
    path = pathlib.Path(os.path.abspath(folder))
    is_ours = (path / MARKER).is_file()
    if (path.exists() and not is_ours) or not path.parent.is_dir():
        raise UsageError(
            "to=parquet:FOLDER must be a new folder in one that exists, or one that the same "
            f"command has written. Received: to=parquet:{folder}"
        )


def write_parquet(folder: str | os.PathLike[str], description: Description, rows: Rows) -> bool:
    """Write `part-00000.parquet` and so on, of 100,000 images each; False: they are there already.

    Raises:
        UsageError: as `check_parquet`.
    """
    check_parquet(folder)
    path = pathlib.Path(os.path.abspath(folder))
    digest = hashlib.sha256(description.text().encode())
    digest.update("".join(rows.columns[DIGEST]).encode())
    digest.update("".join(rows.ids).encode())
    parts = [f"part-{part:05d}.parquet" for part in range(-(-len(rows) // _ROWS))]
    found = {"images": len(rows), "digest": digest.hexdigest(), "parts": parts}
    if read_checked(path / MARKER) == found and all((path / part).is_file() for part in parts):
        return False
    schema = arrow_schema(description)
    with replacing_folder(path, MARKER, "Parquet files of experiments.index") as unfinished:
        unfinished.mkdir()
        for place, part in enumerate(parts):
            block = rows.taken(range(place * _ROWS, min((place + 1) * _ROWS, len(rows))))
            pq.write_table(arrow_table(block, schema), unfinished / part)
        (unfinished / MARKER).write_text(checked_text(found))
    return True


def _is_part(name: str) -> bool:
    return name.startswith((_WRITING, "part-"))


def write_part(folder: Folder, name: str, description: Description, rows: Rows) -> None:
    """Write one file of a folder of many; it has its name when it is whole.

    Raises:
        OSError: it cannot be written.
    """
    table = arrow_table(rows, arrow_schema(description))
    if is_uri(folder.place):  # an object is there when it is whole
        pq.write_table(table, folder.path(name), filesystem=folder.system)
        return
    unfinished = folder.path(f"{_WRITING}{name}-{uuid.uuid4().hex[:8]}")
    pq.write_table(table, unfinished, filesystem=folder.system)
    folder.system.move(unfinished, folder.path(name))


def finish_parts(folder: Folder, names: Collection[str], described: dict[str, object]) -> None:
    """Delete what is no part of the folder any more, and write its marker."""
    with refusing(folder.place):
        for name in folder.names() - {*names, MARKER}:
            if _is_part(name):
                folder.system.delete_file(folder.path(name))
        with folder.system.open_output_stream(folder.path(MARKER)) as stream:
            stream.write(checked_text(described).encode())
