"""Needs TensorFlow (tensorflow-datasets). Official archives: fetched, checked, unpacked.

Nothing takes its name before it is whole: downloads and unpacked files wait in hidden folders.
"""

import contextlib
import errno
import fcntl
import hashlib
import http.client
import os
import pathlib
import shutil
import ssl
import tarfile
import urllib.error
import urllib.request
import zipfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from keras_dml._common.errors import ArgumentError
from pipelines.bars import Bar
from pipelines.datasets.optional import tensorflow_datasets

_SECONDS_TO_ANSWER = 10
_CHUNK = 2**20
_OTHER = "is not the official archive, or not all of it: the checksum differs"


@dataclass(frozen=True)
class Archive:
    """A file to fetch.

    Attributes:
        url: where it is.
        file: its name.
        holds: the folder in it that the dataset needs; of a file that is no archive, its name.
        sha256: its checksum in hexadecimal digits, or None: not known.
    """

    url: str
    file: str
    holds: str
    sha256: str | None = None


_CARS = "ai.stanford.edu/~jkrause"
# Addresses and checksums as in tensorflow-datasets, which lacks the groceries.
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
    # Packed by GitHub when it is asked for, so that no checksum holds.
    "groceries": (
        Archive(
            "https://github.com/marcusklasson/GroceryStoreDataset/archive/refs/heads/master.zip",
            "GroceryStoreDataset-master.zip",
            "GroceryStoreDataset-master",
        ),
    ),
}
"""What makes up each dataset that can be downloaded."""


def missing(archives: Iterable[Archive], folder: str | os.PathLike[str]) -> list[Archive]:
    """The archives of which `folder` does not hold what they hold."""
    return [archive for archive in archives if not (pathlib.Path(folder) / archive.holds).exists()]


def fetch(archives: Iterable[Archive], folder: str | os.PathLike[str]) -> None:
    """Puts what the archives hold into `folder`, which is made; what is there is left alone.

    An archive that lies in `folder` already, from an earlier call or fetched by hand, is taken from
    there. Archives are kept.

    Args:
        archives: `Archive`s.
        folder: where to.

    Raises:
        ConnectionError: an address that does not answer, or not with the official archive.
        ValueError: an archive in `folder` that is not the official one, or one that is damaged, cut
            off or does not hold what it should.
        OSError: a disk that is full or cannot be written; another process at work in `folder`.
    """
    folder = pathlib.Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    with _held(folder):
        for archive in missing(archives, folder):
            file = folder / archive.file
            if not file.exists():
                _download(archive, file)
            elif not _is_official(file, archive):
                raise ArgumentError(f"{file} {_OTHER}")
            if archive.holds != archive.file:
                _unpack(file, archive.holds)


@contextlib.contextmanager
def _held(folder: pathlib.Path) -> Iterator[None]:
    with open(folder / ".preparing", "w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise BlockingIOError(f"{folder} is being prepared by another process") from error
        yield


@contextlib.contextmanager
def _scratch(folder: pathlib.Path) -> Iterator[pathlib.Path]:
    """A folder that is empty at first and gone in the end, also if a kill had left it behind."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _download(archive: Archive, file: pathlib.Path) -> None:
    tfds = tensorflow_datasets("a download")

    # The download manager tries for minutes before it gives an address up: ask first.
    _check_answers(archive.url)
    with _scratch(file.with_name(".downloading")) as scratch:
        manager = tfds.download.DownloadManager(download_dir=scratch)
        try:
            downloaded = manager.download(archive.url)
        except tfds.core.download.download_manager.NonMatchingChecksumError as error:
            raise ConnectionError(f"{archive.url} {_OTHER}") from error
        except (tfds.download.DownloadError, OSError) as error:
            if getattr(error, "errno", None) == errno.ENOSPC:
                raise
            raise ConnectionError(f"the download of {archive.url} failed: {error}") from error
        if not _is_official(downloaded, archive):
            raise ConnectionError(f"{archive.url} {_OTHER}")
        os.replace(downloaded, file)


def _check_answers(url: str) -> None:
    request = urllib.request.Request(url, headers={"User-Agent": "keras-dml"})
    try:
        with urllib.request.urlopen(request, timeout=_SECONDS_TO_ANSWER):
            return
    except urllib.error.HTTPError as error:
        raise ConnectionError(f"{url} answers {error.code} ({error.reason})") from error
    except (OSError, http.client.HTTPException) as error:  # URLError is an OSError
        reason = getattr(error, "reason", error)
        if isinstance(reason, ssl.SSLError):
            return  # somebody is there; the download manager brings certificates of its own
        raise ConnectionError(f"{url} does not answer ({reason})") from error


def _is_official(file: pathlib.Path, archive: Archive) -> bool:
    if archive.sha256 is None:
        return True
    digest, size = hashlib.sha256(), os.path.getsize(file)
    with (
        open(file, "rb") as stream,
        Bar(total=size, unit="B", unit_scale=True, desc=f"checking {archive.file}") as bar,
    ):
        while chunk := stream.read(_CHUNK):
            digest.update(chunk)
            bar.update(len(chunk))
    return digest.hexdigest() == archive.sha256


def _unpack(file: pathlib.Path, holds: str) -> None:
    with _scratch(file.with_name(f".unpacking-{holds}")) as scratch:
        try:
            if file.suffix == ".zip":
                _unpack_zip(file, scratch)
            else:
                _unpack_tar(file, scratch)
        except OSError as error:
            if error.errno is not None:  # of the disk, not of the archive
                raise
            raise ArgumentError(f"{file} is damaged or cut off: {error}") from error
        except Exception as error:  # each kind of archive and compression has errors of its own
            raise ArgumentError(f"{file} is damaged or cut off: {error}") from error
        if not (scratch / holds).exists():
            raise ArgumentError(f"{file} holds no {holds}: it is another archive of that name")
        os.replace(scratch / holds, file.with_name(holds))


def _unpack_zip(file: pathlib.Path, folder: pathlib.Path) -> None:
    with zipfile.ZipFile(file) as archive:
        for member in Bar(archive.infolist(), unit="file", desc=f"unpacking {file.name}"):
            archive.extract(member, folder)


def _unpack_tar(file: pathlib.Path, folder: pathlib.Path) -> None:
    size = file.stat().st_size
    with (
        open(file, "rb") as stream,
        Bar.wrapattr(stream, "read", total=size, desc=f"unpacking {file.name}") as read,
        tarfile.open(fileobj=read) as archive,
    ):
        # Refuses members that would be written elsewhere.
        archive.extraction_filter = getattr(tarfile, "data_filter", None)
        for member in archive:
            archive.extract(member, folder)
