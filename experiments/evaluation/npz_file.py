"""Arrays of a `.npz` file, all of whose bytes are checked."""

import os
import zipfile
from collections.abc import Collection

import numpy as np

_ENDING = ".npy"


class UnreadableError(ValueError):
    """A file that is no `.npz`, or is damaged."""


def read_npz(
    path: str | os.PathLike[str], names: Collection[str] | None = None
) -> tuple[dict[str, np.ndarray], list[str]]:
    """Arrays by name, and the names of all that the file holds.

    `numpy.load` compares the archive's checksums only where it reads to the end, which a damaged
    header of an array may keep it from.

    Args:
        path: of the file.
        names: those to read, of the ones that are there; None: all.

    Raises:
        UnreadableError: it is none, is cut or damaged, or holds Python objects.
        OSError: it cannot be opened.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            held = [
                name.removesuffix(_ENDING) for name in archive.namelist() if name.endswith(_ENDING)
            ]
            wanted = [name for name in held if names is None or name in names]
            return {name: _array(archive, name) for name in wanted}, held
    except OSError as error:
        if error.filename is not None:
            raise
        raise UnreadableError(str(error)) from error
    except Exception as error:  # zipfile, zlib and NumPy raise anything at a damaged file
        raise UnreadableError(str(error) or type(error).__name__) from error


def _array(archive: zipfile.ZipFile, name: str) -> np.ndarray:
    with archive.open(f"{name}{_ENDING}") as stream:
        array = np.lib.format.read_array(stream, allow_pickle=False)
        # At its end the archive's checksum is compared.
        if stream.read(1):
            raise UnreadableError(f"{name} is longer than it says")
    return array
