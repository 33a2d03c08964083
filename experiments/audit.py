"""`python -m experiments.audit`: find duplicates, wrong labels, outliers, and confused classes."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

from experiments.evaluation.audit_options import AuditOptions
from experiments.evaluation.tables import text_table
from experiments.options import FindingsError, UsageError, parse, run_command

if TYPE_CHECKING:
    from experiments.evaluation.audited_images import AuditedImages


def main(argv: list[str]) -> None:
    """Embed, find, write, and print the counts."""
    options = parse(AuditOptions, argv)
    source, output = options.source, options.output
    options.check_effect()
    if options.run:
        from experiments.training.run_files import flag_file_of

        options = parse(AuditOptions, [argv[0], f"--flagfile={flag_file_of(source)}", *argv[1:]])
    from experiments.evaluation.audited_images import images_of_file
    from experiments.evaluation.findings import find, lines_of, write_findings
    from experiments.evaluation.held_folder import held
    from experiments.pages.audit_page import write_audit_page

    with contextlib.ExitStack() as until_end:
        if options.run:
            images = _images_of_run(
                options, lambda: until_end.enter_context(held(output, "output_dir"))
            )
        else:
            images = images_of_file(source)
        if options.max_leaks is not None and len(images.sets) == 1:
            raise UsageError(
                "max_leaks must be unset without training images or a gallery, but got "
                f"{options.max_leaks} for one set."
            )
        if options.embeddings:
            until_end.enter_context(held(output, "output_dir"))
        findings = find(images, options)
        lines, counts = lines_of(findings), findings.counts()
        title = f"Audit of {'run' if options.run else 'embeddings'} {source}"
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


def _images_of_run(options: AuditOptions, open_output: Callable[[], None]) -> AuditedImages:
    """Return the run's images with the embeddings of its kept model.

    Args:
        options: The options.
        open_output: Creates the folder of the results. It is called after all checks.
    """
    import numpy as np

    from experiments.evaluation import model_embeddings
    from experiments.evaluation.audited_images import audited_images
    from experiments.evaluation.labeled_embeddings import EmbeddedSet
    from experiments.training.made_of import images_of_run
    from experiments.training.run_files import kept_model

    run = options.source
    # A user may delete the images that an audit finds, and audit again.
    split = images_of_run(run, options, data_dir_moves=True, refuses=False)
    tables = {"train": split.train, "test": split.test}
    if split.gallery is not None:
        tables["gallery"] = split.gallery
    embedder = model_embeddings.keras_model(kept_model(run), options, "run")
    open_output()
    sets = {}
    for name, table in tables.items():
        path = options.output / f"{name}.npy"
        embeddings = model_embeddings.embed_table(embedder, table, path)
        sets[name] = EmbeddedSet(embeddings, np.array(table.class_names)[table.labels], table)
    return audited_images(sets)


if __name__ == "__main__":
    sys.exit(run_command(main, goes_on="the same command resumes"))
