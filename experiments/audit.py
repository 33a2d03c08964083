"""`python -m experiments.audit`: find duplicates, wrong labels, outliers, and confused classes."""

from __future__ import annotations

import pathlib
import sys
from typing import TYPE_CHECKING

from experiments.evaluation.tables import text_table
from experiments.options import FindingsError, UsageError, parse, run_command
from experiments.options.audit_options import AuditOptions

if TYPE_CHECKING:
    from experiments.evaluation.audit import AuditedImages
    from experiments.evaluation.embed import IdentifiedEmbedder
    from pipelines import ImageTable


def main(argv: list[str]) -> None:
    """Embed, find, write, and print the counts."""
    options = parse(AuditOptions, argv)
    source, output = options.source, options.output
    options.check_effect()
    if options.run:
        from experiments.training.run_files import flag_file_of

        options = parse(AuditOptions, [argv[0], f"--flagfile={flag_file_of(source)}", *argv[1:]])
    import numpy as np

    from experiments.evaluation.audit import (
        audited_images,
        find,
        images_of_file,
        lines_of,
        write_findings,
    )
    from experiments.evaluation.embed import embed_table
    from experiments.evaluation.embedded_sets import EmbeddedSet
    from experiments.options.held_folder import held
    from experiments.pages.audit_page import write_audit_page

    kind = "run" if options.run else "index" if options.index else "embeddings"
    title = f"Audit of {kind} {source}"
    if options.run:
        tables, model = _images_and_model(options)
    else:
        if options.index:
            images, used_map = _images_of_index(source)
            if used_map:
                title += f", with a map: {used_map}"
                print(f"map: {used_map}")
        else:
            images = images_of_file(source)
        if options.max_leaks is not None and len(images.sets) == 1:
            raise UsageError(
                "max_leaks must be unset without training images or a gallery, but got "
                f"{options.max_leaks} for one set."
            )
    with held(output, "output_dir"):
        if options.run:
            sets = {}
            for name, table in tables.items():
                embeddings = embed_table(model, table, output / f"{name}.npy")
                labels = np.array(table.class_names)[table.labels]
                sets[name] = EmbeddedSet(embeddings, labels, table)
            images = audited_images(sets)
        findings = find(images, options)
        lines, counts = lines_of(findings), findings.counts()
        page, file = output / "audit.html", output / "findings.csv"
        write_findings(file, lines)
        write_audit_page(page, title, findings, lines, counts)
    rows = [
        [each.text, f"{each.found:,}", "any" if each.limit is None else f"{each.limit:,}"]
        for each in counts
    ]
    print(text_table([[f"{len(images):,} images", "found", "allowed"], *rows]))
    print(f"\npage: {page}\nlist: {file}")
    over = [f"{each.found:,} {each.text} (--max_{each.name}={each.limit})"
            for each in counts if each.is_over]  # fmt: skip
    if over:
        raise FindingsError(f"{', '.join(over)}: more than is allowed")


def _images_of_index(folder: pathlib.Path) -> tuple[AuditedImages, str]:
    """Return the images of an index, with its rows, and its map in words."""
    import numpy as np

    from experiments.evaluation.audit import audited_images
    from experiments.evaluation.embedded_sets import EmbeddedSet
    from experiments.searching.gallery import FolderGallery
    from pipelines import ImageTable

    gallery = FolderGallery(folder)
    classes = gallery.columns.class_names
    paths = [f"{gallery.description.images}/{path}" for path in gallery.paths]
    table = ImageTable.from_paths(paths, classes)
    rows = gallery.index.embeddings_of(gallery.paths)
    images = audited_images({"": EmbeddedSet(rows, np.array(classes), table)})
    return images, "" if gallery.map is None else gallery.map.in_words


def _images_and_model(options: AuditOptions) -> tuple[dict[str, ImageTable], IdentifiedEmbedder]:
    """Return the images of the run by their sets, and its kept model."""
    from experiments.evaluation.embed import keras_model
    from experiments.training.run_files import kept_model
    from experiments.training.run_images import images_of_run

    # A user may delete the images that an audit finds, and audit again.
    split = images_of_run(options.source, options, data_dir_moves=True, refuses=False)
    tables = {"train": split.train, "test": split.test}
    if split.gallery is not None:
        tables["gallery"] = split.gallery
    return tables, keras_model(kept_model(options.source), options, "run")


if __name__ == "__main__":
    sys.exit(run_command(main, goes_on="the same command resumes"))
