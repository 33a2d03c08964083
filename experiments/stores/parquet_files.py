"""A folder of Parquet files, for programs that read them; replaced in one go."""

from __future__ import annotations

import hashlib
import os
import pathlib

from experiments.embedding.checked_json import checked_text, read_checked
from experiments.options.errors import UsageError
from experiments.stores.arrow import arrow_schema, arrow_table
from experiments.stores.store import DIGEST, Description, Rows
from keras_dml.atomic import replacing_folder
from keras_dml.extras import needing

with needing("parquet", "parquet:FOLDER"):
    import pyarrow.parquet as pq

__all__ = ["MARKER", "check_parquet", "write_parquet"]

# Readers of Parquet leave out what begins with _.
MARKER = "_keras_dml.json"
_ROWS = 100_000


def check_parquet(folder: str | os.PathLike[str]) -> None:
    """Refuse a place where no folder of Parquet files can be written.

    Raises:
        UsageError: something else is there, or nothing that could hold it.
    """
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
