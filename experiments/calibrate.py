"""`python -m experiments.calibrate --run=FOLDER`: find the threshold of a match."""

from __future__ import annotations

import dataclasses
import pathlib
import sys
from typing import TYPE_CHECKING, cast

from experiments.options import (
    Options,
    RunOptions,
    UsageError,
    option,
    parse,
    registries,
    run_command,
)

if TYPE_CHECKING:
    from keras_dml._common.types import Metric

_WHAT, _HOW = "Embeddings, one of --run and --embeddings", "How"
_METRICS = registries.words("keras_dml._common.types.METRICS")


@dataclasses.dataclass(frozen=True, kw_only=True)
class CalibrateOptions(Options):
    """Options of the command."""

    command = "experiments.calibrate"
    intro = """Find the threshold at which two images match, for a false match rate that you choose.

  python -m experiments.calibrate --run=runs/glyphs-seed0 --false_match_rate=1e-3
  python -m experiments.calibrate --embeddings=FILE.npz --saved_model=FOLDER

A share of at most --false_match_rate of all pairs of two classes scores above the threshold. The
command writes NAME-calibration.json next to the model, and a page of the curves. A search and its
page then report for each neighbor whether it matches. Use classes that the model was not trained
on, such as the test classes of a run. More classes give narrower intervals.
"""

    run: pathlib.Path | None = option(
        None, _WHAT, "Folder of a finished experiments.run: its test images and its kept model."
    )
    embeddings: pathlib.Path | None = option(
        None, _WHAT, "File of numpy.savez with the arrays embeddings [n, d] and labels [n]."
    )
    saved_model: pathlib.Path | None = option(
        None, _WHAT, "With --embeddings: the SavedModel that made them. A search uses it."
    )
    false_match_rate: float = option(
        1e-3, _HOW, "Share of pairs of two classes that may match, above 0 and below 1."
    )
    metric: str = option("cosine", _HOW, "Score of a pair.", choices=_METRICS)

    @property
    def sources(self) -> tuple[pathlib.Path, pathlib.Path | None]:
        """The file of the embeddings, and their SavedModel."""
        if (self.run is None) == (self.embeddings is None):
            received = "both" if self.run else "none of them"
            raise UsageError(f"Set one of --run and --embeddings, but got {received}.")
        if not 0 < self.false_match_rate < 1:
            raise UsageError(
                f"false_match_rate must be above 0 and below 1, but got {self.false_match_rate}."
            )
        if self.embeddings is not None:
            model = self.saved_model and self.saved_model.expanduser()
            return self.embeddings.expanduser(), model
        if self.saved_model is not None:
            raise UsageError(
                "saved_model must be unset with --run, which has its own, but got "
                f"{self.saved_model}."
            )
        run = pathlib.Path(self.run or "").expanduser()
        file, model = run / "test_embeddings.npz", run / "saved_model"
        if not (file.is_file() and model.is_dir()):
            raise UsageError(
                "run must be the folder of a finished run, with test_embeddings.npz and "
                f"saved_model, but got {run}."
            )
        _check_unseen(run)
        return file, model


def _check_unseen(run: pathlib.Path) -> None:
    from experiments.training.run_files import FLAGS_FILE

    if not (run / FLAGS_FILE).is_file():  # not a folder of experiments.run
        return
    of_run = parse(RunOptions, ["calibrate", f"--flagfile={run / FLAGS_FILE}"])
    if of_run.keeps_nothing_back:
        raise UsageError(
            f"run must have unseen test images, but got {run} with class_split=every_class. Use "
            "the embeddings of other classes: --embeddings=FILE."
        )


def main(argv: list[str]) -> None:
    """Verify the pairs, write the threshold and the page, print a table."""
    options = parse(CalibrateOptions, argv)
    file, saved_model = options.sources
    from experiments.evaluation.calibration import (
        calibration_of,
        calibration_path,
        check_rate,
        write_calibration,
    )
    from experiments.evaluation.labeled_embeddings import embeddings_from_file
    from experiments.evaluation.result import REPORT
    from experiments.evaluation.saved_model import fingerprint
    from experiments.evaluation.tables import text_table
    from experiments.pages.calibration_page import (
        few_classes,
        rows_of,
        unknown,
        write_calibration_page,
    )
    from experiments.pages.links import add_link
    from experiments.pages.model_card import MODEL_CARD, update_threshold
    from keras_dml import metrics

    queries = embeddings_from_file(file).queries
    of_model = None if saved_model is None else fingerprint(saved_model)
    check_rate(options.false_match_rate, queries.labels)
    metric = cast("Metric", options.metric)
    rates = [options.false_match_rate]
    found = metrics.verification(queries.embeddings, queries.labels, rates, metric)
    known = metrics.identification(queries.embeddings, queries.labels, (), metric)
    decided = known.at(found.points[0].threshold)
    calibration = calibration_of(found, decided, of_model)
    path = calibration_path(saved_model or file.with_suffix(""))
    page = path.with_suffix(".html")
    write_calibration_page(page, file, found, decided)
    write_calibration(path, calibration)
    if options.run is not None:
        report = file.with_name(REPORT)
        add_link(report, page, "Match or no match")
        add_link(page, report, "The run's report")
        words = f"{found.metric.capitalize()}: {calibration.in_words()}."
        update_threshold(file.with_name(MODEL_CARD), words)
    lines = [["", "", "95 %"], *([name, *cells] for name, cells in rows_of(found))]
    print(text_table(lines))
    no_model = "for no model: set --saved_model=FOLDER to let a search use it"
    notes = [unknown(decided), few_classes(found), no_model if saved_model is None else ""]
    print("\n".join(filter(None, [*notes, f"threshold: {path}", f"page: {page}"])))


if __name__ == "__main__":
    sys.exit(run_command(main))
