"""Downloads of official archives.

Archives are downloaded, checked, and unpacked in hidden folders. They only get their name when they
are complete.
"""

import contextlib
import errno
import fcntl
import hashlib
import http.client
import os
import pathlib
import shutil
import urllib.error
import urllib.request
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from keras_dml._common.errors import ArgumentError
from keras_dml._common.progress import Bar

_SECONDS_OF_SILENCE = 10
_CHUNK = 2**20
_WRONG_CHECKSUM = "is not the official archive, or is incomplete: the checksum differs"


@dataclass(frozen=True)
class Archive:
    """A file to download.

    Attributes:
        url: Address of the file.
        file: Name of the file.
        holds: Folder in the archive that the dataset needs. For other files, the name of the file.
        sha256: Checksum in hexadecimal digits, or None if it is not known.
    """

    url: str
    file: str
    holds: str
    sha256: str | None = None


_CARS = "ai.stanford.edu/~jkrause"
# The addresses and checksums are from tensorflow-datasets, which does not have the groceries.
ARCHIVES = {
    "cub": (
        Archive(
            "https://data.caltech.edu/records/65de6-vp158/files/CUB_200_2011.tgz?download=1",
            "CUB_200_2011.tgz",
            "CUB_200_2011",
            "0c685df5597a8b24909f6a7c9db6d11e008733779a671760afef78feb49bf081",
        ),
    ),
    "cars": (
        Archive(
            f"https://{_CARS}/cars/car_devkit.tgz",
            "car_devkit.tgz",
            "devkit",
            "b97deb463af7d58b6bfaa18b2a4de9829f0f79e8ce663dfa9261bf7810e9accd",
        ),
        Archive(
            f"http://{_CARS}/car196/cars_test_annos_withlabels.mat",
            "cars_test_annos_withlabels.mat",
            "cars_test_annos_withlabels.mat",
            "790f75be8ea34eeded134cc559332baf23e30e91367e9ddca97d26ed9b895f05",
        ),
        Archive(
            f"http://{_CARS}/car196/cars_train.tgz",
            "cars_train.tgz",
            "cars_train",
            "512b227b30e2f0a8aab9e09485786ab4479582073a144998da74d64b801fd288",
        ),
        Archive(
            f"http://{_CARS}/car196/cars_test.tgz",
            "cars_test.tgz",
            "cars_test",
            "bffea656d6f425cba3c91c6d83336e4c5f86c6cffd8975b0f375d3a10da8e243",
        ),
    ),
    "sop": (
        Archive(
            "ftp://cs.stanford.edu/cs/cvgl/Stanford_Online_Products.zip",
            "Stanford_Online_Products.zip",
            "Stanford_Online_Products",
            "b04fa78210e69fab050ce73939550e1cd0f96890bdd98ec9fee732c3b756ef48",
        ),
    ),
    # GitHub creates the archive for each download, so its checksum varies.
    "groceries": (
        Archive(
            "https://github.com/marcusklasson/GroceryStoreDataset/archive/refs/heads/master.zip",
            "GroceryStoreDataset-master.zip",
            "GroceryStoreDataset-master",
        ),
    ),
}
"""Archives of the datasets that can be downloaded."""


def missing(archives: Iterable[Archive], folder: str | os.PathLike[str]) -> list[Archive]:
    """Return the archives whose content is not in `folder`."""
    return [archive for archive in archives if not (pathlib.Path(folder) / archive.holds).exists()]


def fetch(archives: Iterable[Archive], folder: str | os.PathLike[str]) -> None:
    """Download and unpack the archives whose content is not in `folder`. Existing files are kept.

    An archive in `folder`, from an earlier call or downloaded by hand, is not downloaded again.

    Args:
        archives: `Archive`s.
        folder: Target folder. It is created if it does not exist.

    Raises:
        ConnectionError: An address does not answer, or its file is not the official archive.
        ValueError: An archive in `folder` is not the official one, is damaged, or does not contain
            the folder that the dataset needs.
        OSError: The disk is full or not writable, or another process is downloading to `folder`.
    """
    folder = pathlib.Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    with _locked(folder):
        for archive in missing(archives, folder):
            file = folder / archive.file
            if not file.exists():
                _download(archive, file)
            elif not _is_official(file, archive):
                raise ArgumentError(f"{file} {_WRONG_CHECKSUM}")
            if archive.holds != archive.file:
                _unpack(file, archive.holds)


@contextlib.contextmanager
def _locked(folder: pathlib.Path) -> Iterator[None]:
    with open(folder / ".preparing", "w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise BlockingIOError(f"{folder} is being prepared by another process") from error
        yield


@contextlib.contextmanager
def _scratch(folder: pathlib.Path) -> Iterator[pathlib.Path]:
    """Create an empty folder, and delete it at the end. Delete the folder of a killed process."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _download(archive: Archive, file: pathlib.Path) -> None:
    with _scratch(file.with_name(".downloading")) as scratch:
        try:
            _copy(archive.url, scratch / file.name)
        except urllib.error.HTTPError as error:
            raise ConnectionError(f"{archive.url} answers {error.code} ({error.reason})") from error
        except urllib.error.URLError as error:
            raise ConnectionError(f"{archive.url} does not answer ({error.reason})") from error
        except (http.client.HTTPException, OSError) as error:
            if getattr(error, "errno", None) == errno.ENOSPC:
                raise
            raise ConnectionError(f"the download of {archive.url} failed: {error}") from error
        if not _is_official(scratch / file.name, archive):
            raise ConnectionError(f"{archive.url} {_WRONG_CHECKSUM}")
        os.replace(scratch / file.name, file)


def _copy(url: str, file: pathlib.Path) -> None:
    """Write the content of an address to a file."""
    request = urllib.request.Request(url, headers={"User-Agent": "keras-dml"})
    with urllib.request.urlopen(request, timeout=_SECONDS_OF_SILENCE) as answer:
        size = int(answer.headers.get("Content-Length") or 0)
        with (
            open(file, "wb") as stream,
            Bar.wrapattr(
                stream, "write", size, desc=f"downloading {file.name}", leave=True
            ) as written,
        ):
            shutil.copyfileobj(answer, written, _CHUNK)
        if file.stat().st_size < size:
            raise ConnectionError(f"it ended after {file.stat().st_size:,} of {size:,} bytes")


def _is_official(file: pathlib.Path, archive: Archive) -> bool:
    if archive.sha256 is None:
        return True
    with open(file, "rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest() == archive.sha256


def _unpack(file: pathlib.Path, holds: str) -> None:
    with (
        _scratch(file.with_name(f".unpacking-{holds}")) as scratch,
        Bar(f"unpacking {file.name}", 1, unit="archive", leave=True) as bar,
    ):
        try:
            if file.suffix == ".zip":
                shutil.unpack_archive(file, scratch)
            else:
                # Refuse members outside of the folder.
                shutil.unpack_archive(file, scratch, filter="data")
        except Exception as error:  # archives and compressions have different errors
            if isinstance(error, OSError) and error.errno is not None:  # a disk error
                raise
            raise ArgumentError(f"{file} is damaged or cut off: {error}") from error
        bar.update()
        if not (scratch / holds).exists():
            raise ArgumentError(f"{file} must contain {holds}, but got another archive")
        os.replace(scratch / holds, file.with_name(holds))
