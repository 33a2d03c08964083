"""A folder of Parquet files, for programs that read them."""

from __future__ import annotations

import hashlib
import os
import pathlib

from experiments.evaluation.checked_json import checked, checked_text
from experiments.options.errors import UsageError
from experiments.searching.arrow import arrow_schema, arrow_table
from experiments.searching.file_systems import Folder, is_uri, opened_folder, refusing
from experiments.searching.store import DIGEST, Description, Rows
from keras_dml._common.extras import needing
from keras_dml._files.atomic import replacing_folder

with needing("parquet", "parquet:FOLDER"):
    import pyarrow.parquet as pq

__all__ = ["MARKER", "check_parquet", "write_parquet"]

# Readers of Parquet ignore names that begin with _ or a dot.
MARKER = "_keras_dml.json"
_ROWS = 100_000


def check_parquet(place: str | os.PathLike[str]) -> None:
    """Check that a folder of Parquet files can be written.

    Raises:
        UsageError: if the folder holds other files, or its parent is missing.
    """
    folder, place = opened_folder(place), os.fspath(place)
    names = folder.names()
    is_new = not names if is_uri(place) else not pathlib.Path(folder.root).exists()
    if MARKER not in names and not is_new:
        raise UsageError(
            "to=parquet:FOLDER must be a new folder, or one that the same command has written, but "
            f"got to=parquet:{place}."
        )
    if not is_uri(place) and not pathlib.Path(folder.root).parent.is_dir():
        raise UsageError(
            "to=parquet:FOLDER must be a new folder in a folder that exists, but got "
            f"to=parquet:{place}."
        )


def write_parquet(place: str | os.PathLike[str], description: Description, rows: Rows) -> bool:
    """Write Parquet files of 100,000 images each.

    A local folder is replaced as a whole. In an object store, the new files are complete before the
    old files are deleted.

    Returns:
        False if the folder already holds the same images.

    Raises:
        UsageError: as `check_parquet`.
    """
    check_parquet(place)
    folder, place = opened_folder(place), os.fspath(place)
    sha256 = hashlib.sha256(description.text().encode())
    sha256.update("".join(rows.columns[DIGEST]).encode())
    sha256.update("".join(rows.ids).encode())
    digest = sha256.hexdigest()
    prefix = f"part-{digest[:8]}" if is_uri(place) else "part"
    parts = [f"{prefix}-{part:05d}.parquet" for part in range(-(-len(rows) // _ROWS))]
    marker = checked_text({"images": len(rows), "digest": digest, "parts": parts})
    names = folder.names()
    if names >= {*parts, MARKER}:
        found = checked(folder.read(MARKER).decode(errors="replace"))
        if found is not None and found == checked(marker):
            return False
    if not is_uri(place):
        path = pathlib.Path(folder.root)
        with replacing_folder(path, MARKER, "Parquet files of experiments.index") as unfinished:
            unfinished.mkdir()
            _write(folder._replace(root=str(unfinished)), description, rows, parts, marker)
        return True
    with refusing(place):
        folder.make()
        _write(folder, description, rows, parts, marker)
        for name in names - {*parts, MARKER}:
            if name.startswith("part-"):
                folder.system.delete_file(folder.path(name))
    return True


def _write(
    folder: Folder, description: Description, rows: Rows, parts: list[str], marker: str
) -> None:
    schema = arrow_schema(description)
    for place, part in enumerate(parts):
        block = rows.taken(range(place * _ROWS, min((place + 1) * _ROWS, len(rows))))
        pq.write_table(arrow_table(block, schema), folder.path(part), filesystem=folder.system)
    with folder.system.open_output_stream(folder.path(MARKER)) as stream:
        stream.write(marker.encode())
