"""`python -m experiments.prepare`: put a published dataset where a recipe can read it."""

from __future__ import annotations

import dataclasses
import logging.handlers
import pathlib
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from experiments import typed
from experiments.options import (
    Options,
    RunError,
    UsageError,
    one_line,
    option,
    parse,
    run_command,
)

if TYPE_CHECKING:
    from pipelines.datasets.download import Archive

NAMES = ("cub", "cars", "sop", "groceries", "inshop")
# Other sources of the files, for downloads by hand.
ELSEWHERE = {
    "cub": "data.caltech.edu/records/65de6-vp158",
    "cars": "the authors' site is gone since 2023; Kaggle has copies",
    "sop": "cvgl.stanford.edu/projects/lifted_struct",
    "groceries": "github.com/marcusklasson/GroceryStoreDataset, Code, Download ZIP",
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class PrepareOptions(Options):
    """The dataset and its folder.

    Attributes:
        dataset: Dataset.
        data_dir: Folder for the dataset's files.
    """

    group = "Data"

    command = "experiments.prepare"
    intro = """Download, check, and unpack a published dataset.

  keras-dml prepare --dataset=cub|cars|sop|groceries --data_dir=FOLDER

Archives stay in FOLDER. A complete archive there is not downloaded again. At the end, the images
are counted. In-Shop has no public download: --dataset=inshop checks the files that you have
unpacked into FOLDER.

  cub         CUB-200-2011               1.2 GB, CUB_200_2011.tgz
  cars        Cars-196                   2.0 GB, car_devkit.tgz, cars_train.tgz, cars_test.tgz and
                                         cars_test_annos_withlabels.mat
  sop         Stanford Online Products   3.1 GB, Stanford_Online_Products.zip
  groceries   Grocery Store Dataset      its repository, GroceryStoreDataset-master.zip
"""

    dataset: str = option(None, choices=NAMES, required=True)
    data_dir: pathlib.Path = option(None, required=True)


def main(argv: list[str]) -> None:
    """Look for the dataset, download missing archives, and count the images."""
    options = parse(PrepareOptions, argv)
    name, folder = options.dataset, options.data_dir
    from pipelines.datasets import download

    archives = download.ARCHIVES.get(name, ())
    # The user can name the unpacked folder. Archives are in its parent.
    if folder.name in {archive.holds for archive in archives}:
        folder = folder.parent
    found, problem = _look(name, folder)
    if problem:
        if download.missing(archives, folder):
            _fetch(archives, name, folder)
        # Another process can have unpacked the archives in the meantime.
        found, problem = _look(name, folder)
    if problem:
        advice = ""
        if archives:
            names = ", ".join(archive.holds for archive in archives)
            advice = f"; move {names} away, and the same command unpacks the archive again"
        raise UsageError(f"{problem}{advice}")
    print(f"{name}: {found} in {folder}, as published")
    print(typed(f"train on it: keras-dml run --flagfile={name}.flags --data_dir={folder}"))


def _look(name: str, folder: pathlib.Path) -> tuple[str | None, str]:
    """Load the dataset, and return the number of its images and the problems, in words."""
    from keras_dml._common.errors import ArgumentError
    from pipelines import load_dataset

    handler = logging.handlers.BufferingHandler(sys.maxsize)
    logger = logging.getLogger("pipelines")
    logger.addHandler(handler)
    logger.propagate = False
    try:
        split = load_dataset(name, folder)
    except ArgumentError as error:
        return None, str(error)
    finally:
        logger.removeHandler(handler)
        logger.propagate = True
    counts = [
        f"{len(table):,} images of {table.num_classes:,} classes ({side})"
        for side, table in split.tables.items()
    ]
    return ", ".join(counts), "; ".join(record.getMessage() for record in handler.buffer)


def _fetch(archives: Sequence[Archive], name: str, folder: pathlib.Path) -> None:
    from keras_dml._common.errors import ArgumentError
    from pipelines.datasets import download

    try:
        download.fetch(archives, folder)
    except ConnectionError as error:
        files = ", ".join(archive.file for archive in download.missing(archives, folder))
        raise RunError(
            f"{one_line(error)}. By hand: put {files} ({ELSEWHERE[name]}) into {folder}, packed "
            "or unpacked, and repeat this command"
        ) from error
    except ArgumentError as error:
        raise UsageError(f"{one_line(error)}; move it away and repeat this command") from error
    except BlockingIOError as error:
        raise UsageError(one_line(error)) from error


if __name__ == "__main__":
    sys.exit(run_command(main, goes_on="the same command resumes"))
