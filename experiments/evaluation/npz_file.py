"""Read the arrays of a `.npz` file and check all of its bytes."""

import os
import zipfile
from collections.abc import Collection

import numpy as np

from keras_dml._files.archives import opened_zip

_ENDING = ".npy"


class UnreadableError(ValueError):
    """A file that is damaged, or is not a `.npz` file."""


def read_npz(
    path: str | os.PathLike[str], names: Collection[str] | None = None
) -> tuple[dict[str, np.ndarray], list[str]]:
    """Return arrays by name, and the names of all arrays in the file.

    `numpy.load` checks the archive's checksums only if it reads each array to its end. A damaged
    array header may prevent that.

    Args:
        path: The file.
        names: Names of the arrays to read, if they are in the file. The default is all.

    Raises:
        UnreadableError: The file is damaged, is not a `.npz` file, has Python objects, or is
            compressed too much.
        OSError: The file cannot be opened.
    """
    try:
        with opened_zip(path) as archive:
            held = [
                name.removesuffix(_ENDING) for name in archive.namelist() if name.endswith(_ENDING)
            ]
            wanted = [name for name in held if names is None or name in names]
            return {name: _array(archive, name) for name in wanted}, held
    except OSError as error:
        if error.filename is not None:
            raise
        raise UnreadableError(str(error)) from error
    except Exception as error:  # zipfile, zlib, and NumPy raise any exception for a damaged file
        raise UnreadableError(str(error) or type(error).__name__) from error


def _array(archive: zipfile.ZipFile, name: str) -> np.ndarray:
    with archive.open(f"{name}{_ENDING}") as stream:
        array = np.lib.format.read_array(stream, allow_pickle=False)
        # zipfile checks the checksum at the end.
        if stream.read(1):
            raise UnreadableError(f"{name} is longer than its header says")
    return array
