"""`python -m experiments.audit`: duplicates, wrong labels, outliers and confusions in a dataset."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import pathlib
import sys
from typing import TYPE_CHECKING

from experiments.options import (
    FindingsError,
    Options,
    RunOptions,
    UsageError,
    given_words,
    option,
    parse,
    run_command,
)
from experiments.options.run_options import CodeOptions, EvaluationOptions, ImageLimitOptions
from experiments.options.values import normal_path
from experiments.report.tables import text_table

if TYPE_CHECKING:
    from experiments.auditing.audited_images import AuditedImages
    from experiments.auditing.findings import Thresholds

_WHAT, _FOUND = "What is audited, one of", "What counts as found"
_LIMITS, _HOW = "How much is allowed, for an exit code", "How"
_RUN, _EMBEDDINGS = "run", "embeddings"
_ANY = " Default: any number."


@dataclasses.dataclass(frozen=True, kw_only=True)
class AuditOptions(CodeOptions, ImageLimitOptions):
    """What is audited, and what counts as found."""

    command = "experiments.audit"
    intro = """Look for what is wrong with a set of labeled images, by the embeddings of a model.

  python -m experiments.audit --run=runs/folder-seed0
  python -m experiments.audit --embeddings=FILE.npz

finds near-duplicates within and across training and test images, labels that are probably wrong,
outliers and the classes most confused. It writes audit.html, with pictures where these are at
hand, and findings.csv, which lists all.

Exit code 0: done, nothing over a limit. 3: more was found than one of the limits allows; both
files are written. 1: it had to stop. 2: a mistake in what was given.
"""

    run: str | None = option(
        None,
        _WHAT,
        "A folder of experiments.run: its training images, embedded by its kept model, and its "
        "test images. Of a model trained on wrong labels a part of these looks right.",
    )
    embeddings: str | None = option(
        None,
        _WHAT,
        "A file of numpy.savez with the arrays embeddings [n, d] and labels [n]; with train_ or "
        "gallery_ before the names those sets too, with paths (and train_paths, gallery_paths) of "
        "image files the pictures. Without pictures, near-duplicates are told by the embeddings.",
    )
    data_dir: str | None = option(
        None, _HOW, "run: where its dataset is now, if it has been moved.", convert=normal_path
    )
    eval_batch_size: int = option(64, _HOW, "run: images embedded at once.", lower_bound=1)
    split: str = option("all", _HOW, "run: which of its images.", choices=("all", "train", "test"))
    neighbors: int = option(
        20, _FOUND, "How many neighbours of an image vote on its label.", lower_bound=1
    )
    correlation: float = option(
        0.92,
        _FOUND,
        "Two pictures are one from this correlation of their grey levels on, at 32x32 pixels, one "
        "of them mirrored or cut by up to a sixth.",
        lower_bound=0,
        upper_bound=1,
    )
    similarity: float = option(
        0.97,
        _FOUND,
        "Without pictures: two images are one from this cosine similarity of their embeddings on. "
        "What is right depends on the model.",
        lower_bound=-1,
        upper_bound=1,
    )
    label_ratio: float = option(
        0.1,
        _FOUND,
        "A label is probably wrong where its share of the neighbours' votes is below this part of "
        "what images of the class have on average.",
        lower_bound=0,
        upper_bound=1,
    )
    outlier_score: float = option(
        1.5,
        _FOUND,
        "An outlier lies farther from its neighbours than the upper quartile of all images, by so "
        "many times the distance of the quartiles.",
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
        f"Images beyond the first of each group of near-duplicates.{_ANY}",
        lower_bound=0,
    )
    max_label_errors: int | None = option(
        None, _LIMITS, f"Labels that are probably wrong.{_ANY}", lower_bound=0
    )
    max_outliers: int | None = option(None, _LIMITS, f"Outliers.{_ANY}", lower_bound=0)
    shown: int = option(20, _HOW, "How many of each kind the page shows.", lower_bound=1)
    output_dir: str | None = option(
        None, _HOW, "Where the results go. Default: RUN/audit; beside the file, NAME-audit."
    )

    @property
    def source(self) -> pathlib.Path:
        """The path of what is audited.

        Raises:
            UsageError: none or both of the two.
        """
        if bool(self.run) == bool(self.embeddings):
            both = "both" if self.run else "neither"
            raise UsageError(f"give either --run=FOLDER or --embeddings=FILE. Received: {both}")
        return pathlib.Path(self.run or self.embeddings or "").expanduser()

    @property
    def output(self) -> pathlib.Path:
        """The folder of the results."""
        if self.output_dir:
            return pathlib.Path(self.output_dir).expanduser()
        if self.run:
            return self.source / "audit"
        source = pathlib.Path(os.path.abspath(self.source))  # "." and ".." have a name then
        return source.with_name(f"{source.stem}-audit")

    @property
    def limits(self) -> dict[str, int | None]:
        """How many of each count are allowed."""
        return {
            "leaks": self.max_leaks,
            "duplicates": self.max_duplicates,
            "label_errors": self.max_label_errors,
            "outliers": self.max_outliers,
        }


@dataclasses.dataclass(frozen=True, kw_only=True)
class _OptionsOfTheRun(EvaluationOptions):
    """What a run's flags say of its images."""

    command = "experiments.audit"

    @classmethod
    def of_flag_files(cls) -> type[Options]:
        return RunOptions


# What of a run's own flags may be given anew.
_OVERRIDING = ("data_dir", "eval_batch_size", "import_modules", "trust_code", "max_pixels")
_OF_A_RUN = ("split", *_OVERRIDING[:-1])


def main(argv: list[str]) -> None:
    """Embed what is not embedded yet, look, write, count."""
    options = parse(AuditOptions, argv)
    source, output = options.source, options.output
    for name in _OF_A_RUN:
        if options.embeddings and name in options.on_command_line:
            raise UsageError(f"{name} is for --run, and means nothing to --embeddings")
    from experiments.auditing.audit_page import count_names, write_audit_page
    from experiments.auditing.audited_images import images_of_file
    from experiments.auditing.findings import find, write_findings

    with contextlib.ExitStack() as held_folder:
        if options.run:
            images, max_pixels = _images_of_run(source, options, held_folder)
        else:
            images, max_pixels = images_of_file(source), options.max_pixels
        if options.max_leaks is not None and len(images.sets) == 1:
            raise UsageError(
                "max_leaks is for training images beside test images, or a gallery. "
                f"Received: max_leaks={options.max_leaks} for one set"
            )
        if options.embeddings:
            _open(output, held_folder)
        thresholds = _thresholds(options, max_pixels)
        findings = find(images, thresholds)
        counts, limits = findings.counts(images), options.limits
        names = count_names(images)
        kind = _RUN if options.run else _EMBEDDINGS
        try:
            write_findings(output / "findings.csv", images, findings)
            write_audit_page(
                output / "audit.html",
                f"Audit of {kind} {source}",
                images,
                findings,
                thresholds,
                limits,
                options.shown,
            )
        except OSError as error:
            raise UsageError(f"the results cannot be written: {error}") from error
    allowed = {name: "any" if limits[name] is None else f"{limits[name]:,}" for name in names}
    rows = [[what, f"{counts[name]:,}", allowed[name]] for name, what in names.items()]
    print(text_table([[f"{len(images):,} images", "found", "allowed"], *rows]))
    print(f"\npage: {output / 'audit.html'}\nlist: {output / 'findings.csv'}")
    over = [
        f"{counts[name]:,} {what} (--max_{name}={limits[name]})"
        for name, what in names.items()
        if (most := limits[name]) is not None and counts[name] > most
    ]
    if over:
        raise FindingsError(f"{', '.join(over)}: more than is allowed")


def _thresholds(options: AuditOptions, max_pixels: int) -> Thresholds:
    from experiments.auditing.findings import Thresholds

    names = [field.name for field in dataclasses.fields(Thresholds)]
    values = {name: getattr(options, name) for name in names}
    return Thresholds(**values | {"max_pixels": max_pixels})


def _images_of_run(
    run: pathlib.Path, options: AuditOptions, held_folder: contextlib.ExitStack
) -> tuple[AuditedImages, int]:
    """The run's sets, with the embeddings that it has kept, or its best model's; and how many
    pixels its images may have."""
    from experiments.training.run_files import flag_file_of

    given = given_words(options, _OVERRIDING)
    of_run = parse(_OptionsOfTheRun, ["audit", f"--flagfile={flag_file_of(run)}", *given])
    from experiments.auditing.audited_images import (
        AuditedSet,
        audited_images,
        kept_embeddings,
        split_sets,
    )
    from experiments.embedding import model_embeddings
    from experiments.embedding.checked_json import read_checked
    from experiments.training.made_of import images_of_run
    from experiments.training.run_files import RESULT, kept_model

    model = kept_model(run)
    # What an audit has found is thrown out, and looked at again: no reason to refuse it.
    split = images_of_run(run, of_run, data_dir_moves=True, refuses=False)
    tables, class_names, offsets = split_sets(split)
    if options.split != "all":
        tables = {
            name: table
            for name, table in tables.items()
            if (name == "train") == (options.split == "train")
        }
    _open(options.output, held_folder)
    embeddings = {}
    if read_checked(run / RESULT) is not None:  # else they may be of an earlier model
        kept = {name: kept_embeddings(run, name, table) for name, table in tables.items()}
        embeddings = {name: array for name, array in kept.items() if array is not None}
    missing = {name: table for name, table in tables.items() if name not in embeddings}
    if missing:
        embedder = model_embeddings.keras_model(model, of_run, _RUN)
        embeddings |= model_embeddings.embed_tables(embedder, missing, options.output, "float32")
    sets = [
        AuditedSet(name, embeddings[name], table.labels + offsets[name], table)
        for name, table in tables.items()
    ]
    return audited_images(sets, class_names), of_run.max_pixels


def _open(output: pathlib.Path, held_folder: contextlib.ExitStack) -> None:
    """Make the folder of the results, which no other process writes into till the stack ends."""
    from experiments.embedding.held_folder import held

    output.mkdir(parents=True, exist_ok=True)
    held_folder.enter_context(held(output, "output_dir"))


if __name__ == "__main__":
    sys.exit(run_command(main, goes_on="the same command goes on where it stopped"))
