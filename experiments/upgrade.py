"""`python -m experiments.upgrade --index=INDEX --saved_model=NEW`: change the model of an index."""

from __future__ import annotations

import sys

from experiments.options import UsageError, parse, run_command
from experiments.options.conversions import absolute_place
from experiments.searching.upgrade_options import (
    AGAIN,
    MAP,
    UpgradeOptions,
    check_upgrade,
)


def main(argv: list[str]) -> None:
    """Measure the ways to upgrade, and write the upgraded index."""
    options = parse(UpgradeOptions, argv)
    check_upgrade(options)
    from experiments.searching import upgrade_folder, upgrade_measuring
    from experiments.searching.gallery import FolderGallery
    from experiments.searching.images import ImageFolder
    from experiments.searching.index_folder import how_to_search, locked_folder

    folder, upgraded = options.folder, options.upgraded
    gallery = FolderGallery(folder)  # refuse other folders before locking
    with locked_folder(folder, "index"):
        gallery = FolderGallery(folder)
        images = ImageFolder(absolute_place(options.images or gallery.description.images))
        if options.saved_model is not None:
            model = upgrade_folder.NewModel(
                options.saved_model, options.batch_size, options.max_pixels
            )
        if options.stages:
            ...
