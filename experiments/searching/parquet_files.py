"""A folder of Parquet files, for programs that read them."""

from __future__ import annotations

import os
import pathlib
import time

from experiments.options.errors import UsageError
from experiments.searching.addresses import PARQUET, TABLE
from experiments.searching.arrow import arrow_schema, arrow_table
from experiments.searching.file_systems import Folder, opened_folder, refusing
from experiments.searching.store import Description, Rows, Target
from keras_dml._common.extras import needing
from keras_dml._files.atomic import replacing_folder

with needing("parquet", "parquet:FOLDER"):
    import pyarrow.parquet as pq

# Readers of Parquet ignore names that begin with _ or a dot.
MARKER = "_keras_dml.json"
ROWS = 100_000
"""Images of a file."""


class ParquetFiles(Target):
    """A folder of Parquet files. The files are only ever written as a whole.

    Args:
        place: The path of the folder, or an address.
        table: Unused, because a folder is one table.

    Raises:
        UsageError: The folder has other files, or its parent is missing.
    """

    def __init__(self, place: str | os.PathLike[str], table: str = TABLE) -> None:
        self.place = os.fspath(place)
        self._is_local = "://" not in self.place
        self._folder = opened_folder(self.place)
        names, path = self._folder.names(), pathlib.Path(self._folder.root)
        is_new = not (path.exists() if self._is_local else names)
        if (self._is_local and not path.parent.is_dir()) or not (is_new or MARKER in names):
            raise UsageError(
                f"to={PARQUET}:FOLDER must be a new folder in an existing folder, or a folder that "
                f"the same command has written, but got {self}."
            )

    def __str__(self) -> str:
        """Return the address."""
        return f"{PARQUET}:{self.place}"

    def description(self) -> None:
        """Return None, because the files are replaced as a whole."""

    def write(self, description: Description, rows: Rows) -> str:
        """Write the images. In an object store, the old files are deleted last."""
        if self._is_local:
            path = pathlib.Path(self._folder.root)
            with replacing_folder(path, MARKER, "Parquet files of keras-dml index") as unfinished:
                unfinished.mkdir()
                _write(self._folder._replace(root=str(unfinished)), "part", description, rows)
            return "written"
        before = self._folder.names()
        with refusing(self.place):
            self._folder.system.create_dir(self._folder.root, recursive=True)
            _write(self._folder, f"part-{time.time_ns()}", description, rows)
            for name in before:
                if name.startswith("part-"):
                    self._folder.system.delete_file(self._folder.path(name))
        return "written"


def _write(folder: Folder, prefix: str, description: Description, rows: Rows) -> None:
    """Write files of at most `ROWS` images, and last the file that marks the folder."""
    schema = arrow_schema(description)
    for number, start in enumerate(range(0, len(rows), ROWS)):
        table = arrow_table(rows.taken(range(start, min(start + ROWS, len(rows)))), schema)
        path = folder.path(f"{prefix}-{number:05d}.parquet")
        pq.write_table(table, path, filesystem=folder.system)
    with folder.system.open_output_stream(folder.path(MARKER)) as stream:
        stream.write(description.text().encode())
