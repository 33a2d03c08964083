"""`python -m experiments.upgrade --index=INDEX --saved_model=NEW`: change the model of an index."""

from __future__ import annotations

import pathlib
import shlex
import sys
from typing import TYPE_CHECKING, cast

from experiments import typed
from experiments.options import UsageError, parse, run_command
from experiments.options.conversions import absolute_place
from experiments.searching.upgrade_options import (
    AGAIN,
    MAP,
    PREFIX,
    QUERIES,
    UpgradeOptions,
    check_upgrade,
)

if TYPE_CHECKING:
    from experiments.searching.gallery import FolderGallery
    from experiments.searching.images import ImageFolder
    from experiments.searching.upgrade_folder import NewModel
    from keras_dml.upgrade import Kind


def main(argv: list[str]) -> None:
    """Measure the ways to change the model, and write the upgraded index."""
    options = parse(UpgradeOptions, argv)
    check_upgrade(options)
    from experiments.evaluation.calibration import calibration_path
    from experiments.searching import upgrade_folder
    from experiments.searching.gallery import FolderGallery
    from experiments.searching.images import images_of_index
    from experiments.searching.index_folder import how_to_search, locked_folder, read_settings
    from keras_dml._files.atomic import read_folder

    folder, upgraded = options.folder, options.upgraded
    read_folder(folder, read_settings)  # refuse another folder before locking it
    with locked_folder(folder, "index"):
        written = folder
        if options.stages or options.saved_model:  # only --replace needs no old index
            gallery = FolderGallery(folder)
            old_model = gallery.description.saved_model
            given = absolute_place(options.images) if options.images else None
            images = images_of_index(folder, given, gallery.description.images)
            path = options.saved_model or pathlib.Path(old_model)
            model = upgrade_folder.NewModel(path, options.batch_size, options.max_pixels)
        if options.stages:
            print(upgrade_folder.write_stage(gallery, folder, model, images, options.stages))
        elif options.saved_model:
            written = upgraded
            _check_new(options, gallery, model.fingerprint)
            _measure_and_write(options, gallery, model, images)
        if options.replace:
            print(upgrade_folder.replace(folder, upgraded))
            written = folder
    if options.to or options.stage:
        print(how_to_search(written))
        if options.to == MAP:
            stage = shlex.join([f"--index={written}", "--stage=1/4"])
            again = typed(f"keras-dml upgrade {stage}")
            print(f"embed it again in shares: {again}, and then 2/4, 3/4, and 4/4, in any order")
        if written == upgraded:
            print(upgrade_folder.how_to_replace(folder))
        if options.to and calibration_path(old_model).is_file():
            print(
                f"the threshold in {calibration_path(old_model)} belongs to the old model, and is "
                "not applied. Once all images are embedded again: "
                + typed(f"keras-dml calibrate {shlex.quote(f'--index={written}')}")
            )


def _check_new(options: UpgradeOptions, gallery: FolderGallery, fingerprint: str) -> None:
    """Check that the new model is new, that maps are possible, and that nothing is overwritten."""
    from keras_dml._files.atomic import read_folder

    folder, upgraded = options.folder, options.upgraded
    found = gallery.description
    again = "Embed all images again: --to=again"
    if gallery.map is not None and options.to != AGAIN:
        raise UsageError(
            f"index must be without a map, but got {folder} with a map ({gallery.map.in_words}). "
            f"Finish its upgrade first: {gallery.map.how_to_finish(folder)}"
        )
    if fingerprint == found.fingerprint:
        raise UsageError(
            f"saved_model must differ from the model of the index, but got {options.saved_model}."
        )
    if found.metric != "cosine" and options.to != AGAIN:
        raise UsageError(
            "index must have cosine similarities, because a map gives rows of length 1, but got "
            f"metric={found.metric} of {folder}. {again}"
        )
    if options.to and read_folder(upgraded, pathlib.Path.exists):
        raise UsageError(
            f"to must write a new folder, but {upgraded} exists. Replace the index by it with "
            "--replace, or delete it."
        )


def _measure_and_write(
    options: UpgradeOptions, gallery: FolderGallery, model: NewModel, images: ImageFolder
) -> None:
    from experiments.searching import upgrade_folder
    from experiments.searching.upgrade_measuring import (
        KEEP,
        embedded_sample,
        measured,
        recommended,
        seconds_per_image,
        summary,
    )

    folder, upgraded = options.folder, options.upgraded
    if options.to == AGAIN:
        print(upgrade_folder.write_again(gallery, folder, upgraded, model, images))
        return
    lengths = model.embedder.dimensions, gallery.index.dimensions
    if options.to == PREFIX and lengths[0] < lengths[1]:
        raise UsageError(
            f"saved_model must have embeddings of at least {lengths[1]} numbers for --to=prefix, "
            f"as the rows of the index, but got {options.saved_model} with {lengths[0]}."
        )
    kind = cast("Kind", options.kind)
    sample = embedded_sample(folder, gallery, model, images, options.sample, options.seed)
    seconds = seconds_per_image(sample, model, images)
    ways = measured(sample, len(gallery.paths), kind, options.seed, seconds)
    advice = recommended(ways)
    print(summary(ways, sample, len(gallery.paths), advice))
    if not options.to and advice.way != KEEP:
        print(f"write it: the same command with --to={advice.way}")
    if options.to:
        to_new, to_old = sample.maps(kind, options.seed, every_row=True)
        places = gallery, folder, upgraded, model, images
        if options.to == MAP:
            print(upgrade_folder.write_mapped(*places, to_new, sample.new))
        if options.to == QUERIES:
            print(upgrade_folder.write_query_map(*places, to_old, kind))
        if options.to == PREFIX:
            cut = upgrade_folder.prefix_map(*lengths)
            print(upgrade_folder.write_query_map(*places, cut, PREFIX))


if __name__ == "__main__":
    sys.exit(run_command(main, goes_on="the same command continues where it stopped"))
