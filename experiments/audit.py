"""`python -m experiments.audit`: find duplicates, wrong labels, outliers, and confused classes."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import pathlib
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

from experiments.evaluation.tables import text_table
from experiments.options import (
    FindingsError,
    Options,
    RunOptions,
    UsageError,
    option,
    parse,
    refuse_unused,
    run_command,
)
from experiments.options.run_options import EvaluationOptions

if TYPE_CHECKING:
    from experiments.evaluation.audited_images import AuditedImages

_WHAT, _FOUND = "Audited run or file, one of", "What counts as found"
_LIMITS, _HOW = "How much is allowed, for an exit code", "How"
_ANY = " Default: any number."


@dataclasses.dataclass(frozen=True, kw_only=True)
class AuditOptions(EvaluationOptions):
    """Options of the command."""

    command = "experiments.audit"
    intro = """Find errors in a set of labeled images by the embeddings of a model.

  python -m experiments.audit --run=runs/folder-seed0
  python -m experiments.audit --embeddings=FILE.npz

Finds near-duplicates within and across training and test images, labels that are probably wrong,
outliers, and the most confused classes. Writes audit.html, with pictures if the images are
available, and findings.csv with all findings.

Exit code 0: done, and nothing is over a limit. 3: a limit is exceeded, and both files are written.
1: the audit had to stop. 2: a flag is wrong.
"""

    run: str | None = option(
        None,
        _WHAT,
        "Folder of experiments.run: its images and its kept model. A model that was trained on "
        "wrong labels agrees with some of them.",
    )
    embeddings: str | None = option(
        None,
        _WHAT,
        "File of numpy.savez with the arrays embeddings [n, d] and labels [n]. train_ or gallery_ "
        "before these names adds sets, and paths (train_paths, gallery_paths) of image files add "
        "pictures. Without pictures, near-duplicates are found by the embeddings.",
    )
    split: str = option(
        "all", _HOW, "With --run: which of its images.", choices=("all", "train", "test")
    )
    neighbors: int = option(20, _FOUND, "Number of neighbors that vote on a label.", lower_bound=1)
    correlation: float = option(
        0.92,
        _FOUND,
        "Least correlation of the gray levels of two near-duplicates, at 32x32 pixels. One of them "
        "may be mirrored or cut by up to a sixth.",
        lower_bound=0,
        upper_bound=1,
    )
    similarity: float = option(
        0.97,
        _FOUND,
        "Without pictures: least cosine similarity of two near-duplicates. The right value depends "
        "on the model.",
        lower_bound=-1,
        upper_bound=1,
    )
    label_ratio: float = option(
        0.1,
        _FOUND,
        "A label is probably wrong if its share of the neighbors' votes is below this part of the "
        "average share in its class.",
        lower_bound=0,
        upper_bound=1,
    )
    outlier_score: float = option(
        1.5,
        _FOUND,
        "An outlier's distance to its neighbors is above the upper quartile of all images by this "
        "multiple of the distance of the quartiles.",
        lower_bound=0,
    )
    max_leaks: int | None = option(
        None,
        _LIMITS,
        f"Test and gallery images that are near-duplicates of training images.{_ANY}",
        lower_bound=0,
    )
    max_duplicates: int | None = option(
        None,
        _LIMITS,
        f"Images after the first of each group of near-duplicates.{_ANY}",
        lower_bound=0,
    )
    max_label_errors: int | None = option(
        None, _LIMITS, f"Labels that are probably wrong.{_ANY}", lower_bound=0
    )
    max_outliers: int | None = option(None, _LIMITS, f"Outliers.{_ANY}", lower_bound=0)
    shown: int = option(20, _HOW, "Findings of each kind on the page.", lower_bound=1)
    output_dir: str | None = option(
        None, _HOW, "Folder of the results. Default: RUN/audit, or NAME-audit next to the file."
    )

    @classmethod
    def of_flag_files(cls) -> type[Options]:
        """Return the options of the audited run, whose flags the others override."""
        return RunOptions

    @property
    def source(self) -> pathlib.Path:
        """The path of the audited run or file."""
        if bool(self.run) == bool(self.embeddings):
            both = "both" if self.run else "neither"
            raise UsageError(f"Set one of --run and --embeddings, but got {both}.")
        return pathlib.Path(self.run or self.embeddings or "").expanduser()

    @property
    def output(self) -> pathlib.Path:
        """The folder of the results."""
        if self.output_dir:
            return pathlib.Path(self.output_dir).expanduser()
        if self.run:
            return self.source / "audit"
        source = pathlib.Path(os.path.abspath(self.source))  # so that "." has a name
        return source.with_name(f"{source.stem}-audit")


# Flags of the audited run that have no effect on a file of embeddings.
_OF_A_RUN = ("data_dir", "eval_batch_size", "import_modules", "trust_code", "split")


def main(argv: list[str]) -> None:
    """Embed the images that are not embedded yet, find, write, and print the counts."""
    options = parse(AuditOptions, argv)
    source, output = options.source, options.output
    if options.embeddings:
        refuse_unused(options, _OF_A_RUN, "--embeddings")
    else:
        from experiments.training.run_files import flag_file_of

        options = parse(AuditOptions, [argv[0], f"--flagfile={flag_file_of(source)}", *argv[1:]])
    from experiments.evaluation.audited_images import images_of_file
    from experiments.evaluation.findings import (
        Thresholds,
        count_names,
        find,
        lines_of,
        write_findings,
    )
    from experiments.evaluation.held_folder import opened
    from experiments.pages.audit_page import write_audit_page

    with contextlib.ExitStack() as until_end:
        if options.run:
            images = _images_of_run(options, lambda: until_end.enter_context(opened(output)))
        else:
            images = images_of_file(source)
        names = count_names(images)
        if options.max_leaks is not None and "leaks" not in names:
            raise UsageError(
                "max_leaks must be unset without training images or a gallery, but got "
                f"{options.max_leaks} for one set."
            )
        if options.embeddings:
            until_end.enter_context(opened(output))
        fields = dataclasses.fields(Thresholds)
        thresholds = Thresholds(**{each.name: getattr(options, each.name) for each in fields})
        findings = find(images, thresholds)
        lines = lines_of(images, findings)
        counts = findings.counts(images)
        limits = {name: getattr(options, f"max_{name}") for name in counts}
        title = f"Audit of {'run' if options.run else 'embeddings'} {source}"
        page, file = output / "audit.html", output / "findings.csv"
        try:
            write_findings(file, lines)
            write_audit_page(
                page, title, images, findings, lines, thresholds, limits, options.shown
            )
        except OSError as error:
            raise UsageError(f"The results cannot be written: {error}") from error
    allowed = {name: "any" if limits[name] is None else f"{limits[name]:,}" for name in names}
    rows = [[text, f"{counts[name]:,}", allowed[name]] for name, text in names.items()]
    print(text_table([[f"{len(images):,} images", "found", "allowed"], *rows]))
    print(f"\npage: {page}\nlist: {file}")
    over = [
        f"{counts[name]:,} {text} (--max_{name}={limits[name]})"
        for name, text in names.items()
        if limits[name] is not None and counts[name] > limits[name]
    ]
    if over:
        raise FindingsError(f"{', '.join(over)}: more than is allowed")


def _images_of_run(options: AuditOptions, open_output: Callable[[], None]) -> AuditedImages:
    """Return the run's images with the embeddings of its kept model.

    Args:
        options: The options.
        open_output: Creates the folder of the results. It is called after all checks.
    """
    from experiments.evaluation import model_embeddings
    from experiments.evaluation.audited_images import audited_images, kept_embeddings, split_sets
    from experiments.evaluation.labeled_embeddings import EmbeddedSet
    from experiments.training.made_of import images_of_run
    from experiments.training.run_files import RESULT, kept_model, read_json

    run = options.source
    model = kept_model(run)
    # A user may delete the images that an audit finds, and audit again.
    split = images_of_run(run, options, data_dir_moves=True, refuses=False)
    tables, class_names, offsets = split_sets(split)
    if options.split != "all":
        is_train = options.split == "train"
        tables = {n: table for n, table in tables.items() if (n == "train") == is_train}
    open_output()
    embeddings = {}
    if read_json(run, RESULT) is not None:  # otherwise they may belong to an earlier model
        kept = {name: kept_embeddings(run, name, table) for name, table in tables.items()}
        embeddings = {name: array for name, array in kept.items() if array is not None}
    missing = {name: table for name, table in tables.items() if name not in embeddings}
    if missing:
        embedder = model_embeddings.keras_model(model, options, "run")
        embeddings |= model_embeddings.embed_tables(embedder, missing, options.output, "float32")
    sets = {name: EmbeddedSet(embeddings[name], table.labels + offsets[name], table)
            for name, table in tables.items()}  # fmt: skip
    return audited_images(sets, class_names)


if __name__ == "__main__":
    sys.exit(run_command(main, goes_on="the same command resumes"))
