"""`python -m experiments.index --images=FOLDER --output_dir=INDEX`: make a folder searchable."""

from __future__ import annotations

import contextlib
import pathlib
import sys
import time
from typing import TYPE_CHECKING

from experiments.options import parse, run_command
from experiments.options.values import absolute_place
from experiments.searching.addresses import parsed_address
from experiments.searching.index_options import IndexOptions, tree_arguments
from experiments.searching.index_settings import (
    SKIPPED,
    Settings,
    how_to_search,
    open_folder,
    write_settings,
    write_skipped,
)

if TYPE_CHECKING:
    from experiments.searching.folder_embeddings import Update
    from experiments.searching.image_files import ImageFile


def main(argv: list[str]) -> None:
    """Embed the images, update the index, and update the store."""
    start = time.monotonic()
    options = parse(IndexOptions, argv)
    given = tree_arguments(options)
    address = None if options.to is None else parsed_address(options.to, "to")
    saved_model, output = options.saved_model, options.output_dir
    images = absolute_place(options.images)
    from experiments.evaluation.saved_model import fingerprint
    from experiments.options.visible import visible
    from experiments.searching import image_files
    from experiments.searching.columns import import_csv
    from experiments.searching.index_building import IndexKind, update_index
    from experiments.searching.store_update import StoreTarget, images_to_store

    kind = IndexKind.of(options.metric, given, options.approximate, _prefix(options))
    files = image_files.list_images(images)
    model = fingerprint(saved_model)
    with contextlib.ExitStack() as stack:
        target = None
        if address is not None:  # refuse a store before embedding
            target = StoreTarget(address)
            stack.enter_context(target.held())
            target.check(model, images, options.metric)
        settings = stack.enter_context(open_folder(output, saved_model, model, images))
        known = []
        if options.columns is not None:
            paths = [file.path for file in files]
            known = import_csv(
                output, options.columns, options.class_column, pathlib.Path(images), paths
            )
        embedded, bad = _embedded(options, files, settings)
        write_skipped(output / SKIPPED, bad)
        if options.engine == "local":
            lines = update_index(output, settings, embedded, kind)
            seconds = time.monotonic() - start
            print(f"{output}: {len(embedded.files):,} images, {seconds:.1f} s: {lines}")
        else:
            write_settings(output, settings | {"store": str(target)})
        for line in known:
            print(visible(line))
        if bad:
            print(f"skipped {len(bad):,} files that cannot be embedded: {output / SKIPPED}")
        if options.engine == "local":
            print(how_to_search(output))
        if target is not None:
            print(images_to_store(target, output, settings, embedded, options.metric))


def _embedded(options: IndexOptions, files: list[ImageFile], settings: Settings) -> Update:
    """Embed the images that are new or changed, with the engine of the options."""
    if options.engine == "ray":
        from experiments.scale.embedding import embed_on_ray

        done = embed_on_ray(
            options.saved_model,
            settings["images"],
            files,
            options.output_dir,
            max_pixels=options.max_pixels,
            batch_size=options.batch_size,
            workers=options.workers,
        )
        print(
            f"{len(done.update.embedded.files):,} images; {done.new:,} embedded in "
            f"{done.seconds:.1f} s, {done.new / max(done.seconds, 1e-9):,.0f} a second"
        )
        return done.update
    from experiments.evaluation.saved_model import ImageEmbedder
    from experiments.searching.folder_embeddings import FolderEmbeddings

    folder = FolderEmbeddings(
        options.output_dir,
        pathlib.Path(settings["images"]),
        settings["fingerprint"],
        options.max_pixels,
    )
    return folder.update(files, lambda: ImageEmbedder(options.saved_model), options.batch_size)


def _prefix(options: IndexOptions) -> dict[str, int] | None:
    if options.prefix is None:
        return None
    return {"length": options.prefix, "candidates": options.candidates}


if __name__ == "__main__":
    sys.exit(run_command(main, goes_on="the same command continues where it stopped"))
