"""`python -m experiments.index --images=FOLDER --output_dir=INDEX`: make a folder searchable."""

from __future__ import annotations

import contextlib
import pathlib
import sys
import time
from typing import TYPE_CHECKING

from experiments.options import parse, run_command
from experiments.options.conversions import absolute_place
from experiments.searching import index_folder
from experiments.searching.addresses import locked_store, parsed_address
from experiments.searching.index_options import IndexOptions, check_index

if TYPE_CHECKING:
    from experiments.searching.folder_embeddings import Embedded
    from experiments.searching.images import ImageFile, ImageFolder


def main(argv: list[str]) -> None:
    """Embed the images, update the index, and update the store."""
    start = time.monotonic()
    options = parse(IndexOptions, argv)
    check_index(options)
    address = None if options.to is None else parsed_address(options.to, "to")
    output = options.output_dir
    from experiments.options.visible import visible
    from experiments.searching.columns import import_csv
    from experiments.searching.images import ImageFolder
    from experiments.searching.index_building import saved_backbone, update_index
    from experiments.searching.store import check_store, images_to_store, open_store
    from keras_dml.export.load import fingerprint

    images = ImageFolder(absolute_place(options.images))
    files = images.files()
    if options.saved_model is not None:  # refuse another folder before writing one
        fingerprint(options.saved_model)
    with contextlib.ExitStack() as stack:
        stack.enter_context(index_folder.locked_folder(output))
        saved_model = options.saved_model or saved_backbone(options)
        model = fingerprint(saved_model)
        target = None
        if address is not None:  # refuse a store before embedding
            stack.enter_context(locked_store(address))
            target = stack.enter_context(contextlib.closing(open_store(address)))
            check_store(target, model, images.place, options.metric)
        settings = index_folder.opened_settings(output, saved_model, model, images.place)
        known = []
        if options.columns is not None:
            paths = [file.path for file in files]
            known = import_csv(output, options.columns, images.place, paths)
        embedded = _embedded(options, saved_model, images, files)
        skipped = images.left_out | embedded.bad
        index_folder.write_skipped(output / index_folder.SKIPPED, skipped)
        if options.engine == "local":
            lines = update_index(options, settings, embedded)
            seconds = time.monotonic() - start
            print(f"{output}: {len(embedded.files):,} images, {seconds:.1f} s: {lines}")
        else:
            index_folder.write_settings(output, settings | {"store": str(target)})
        for line in known:
            print(visible(line))
        if skipped:
            count = "1 file" if len(skipped) == 1 else f"{len(skipped):,} files"
            where = output / index_folder.SKIPPED
            print(f"skipped {count} that cannot be embedded: {where}")
        if options.engine == "local":
            print(index_folder.how_to_search(output))
        if target is not None:
            print(images_to_store(target, output, settings, embedded, options.metric))


def _embedded(
    options: IndexOptions, saved_model: pathlib.Path, images: ImageFolder, files: list[ImageFile]
) -> Embedded:
    """Embed the images that are new or changed, with the engine of the options."""
    if options.engine == "ray":
        from experiments.scale.embedding import embed_on_ray

        done = embed_on_ray(
            saved_model,
            images.place,
            files,
            options.output_dir,
            max_pixels=options.max_pixels,
            batch_size=options.batch_size,
            workers=options.workers,
        )
        print(
            f"{len(done.embedded.files):,} images; {done.new:,} embedded in "
            f"{done.seconds:.1f} s, {done.new / max(done.seconds, 1e-9):,.0f} a second"
        )
        return done.embedded
    from experiments.searching.folder_embeddings import embed_folder

    return embed_folder(
        options.output_dir,
        saved_model,
        images,
        files,
        batch_size=options.batch_size,
        max_pixels=options.max_pixels,
    )


if __name__ == "__main__":
    sys.exit(run_command(main, goes_on="the same command continues where it stopped"))
