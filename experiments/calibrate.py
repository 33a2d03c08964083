"""`python -m experiments.calibrate --run=FOLDER`: find the threshold of a match."""

from __future__ import annotations

import dataclasses
import pathlib
import sys
from typing import TYPE_CHECKING, NamedTuple, cast

from experiments.options import (
    Options,
    RunOptions,
    UsageError,
    check_together,
    option,
    parse,
    registry_flags,
    run_command,
)

if TYPE_CHECKING:
    import numpy as np

    from keras_dml._common.types import Metric
    from keras_dml.metrics import VerificationResult

# The rates among which the command chooses, and the true match rate that it asks for.
_RATES = (0.03, 0.01, 3e-3, 1e-3, 3e-4, 1e-4)
_LEAST = 0.5


@dataclasses.dataclass(frozen=True, kw_only=True)
class CalibrateOptions(Options):
    """Options of the command.

    Attributes:
        run: Folder of a finished keras-dml run: its test images and its kept model.
        index: Folder of keras-dml index, whose model was not trained on its images: its images,
            classes, and model.
        embeddings: File of numpy.savez with the arrays embeddings [n, d] and labels [n].
        saved_model: The SavedModel of the embeddings. A search uses it.
        false_match_rate: Share of pairs of two classes that may match, above 0 and below 1.
            Default: the lowest rate at which at least half of the pairs of one class match.
        metric: Score of a pair.
    """

    command = "experiments.calibrate"
    intro = """Find the threshold at which two images match, for a false match rate.

  keras-dml calibrate --run=runs/glyphs-seed0
  keras-dml calibrate --index=photo_index
  keras-dml calibrate --embeddings=FILE.npz --saved_model=FOLDER

A share of at most --false_match_rate of all pairs of two classes scores above the threshold. The
command writes NAME-calibration.json next to the model, and a page of the curves. A search and its
page then report for each neighbor whether it matches. Use classes that the model was not trained
on, such as the test classes of a run. More classes give narrower intervals.
"""

    group = "Embeddings, one of --run, --index, and --embeddings"

    run: pathlib.Path | None = option(None)
    index: pathlib.Path | None = option(None)
    embeddings: pathlib.Path | None = option(None)
    saved_model: pathlib.Path | None = option(None, needs="embeddings")
    false_match_rate: float | None = option(None, "Threshold")
    metric: str = option(
        "cosine", "Threshold", choices=registry_flags.words("keras_dml._common.types.METRICS")
    )


class _Source(NamedTuple):
    """Embeddings `[n, d]`, labels `[n]`, the file or folder that has them, and the SavedModel."""

    embeddings: np.ndarray
    labels: np.ndarray
    path: pathlib.Path
    saved_model: pathlib.Path | None


def _source(options: CalibrateOptions) -> _Source:
    """Read the embeddings that the options name."""
    check_together(options)
    sources = {"run": options.run, "index": options.index, "embeddings": options.embeddings}
    given = {name: path.expanduser() for name, path in sources.items() if path is not None}
    if len(given) != 1:
        raise UsageError(
            f"Set one of --run, --index, and --embeddings, but got {' and '.join(given) or 'none'}."
        )
    ((name, path),) = given.items()
    if name == "index":
        import numpy as np

        from experiments.searching.gallery import FolderGallery

        gallery = FolderGallery(path)
        if gallery.map is not None:
            raise UsageError(
                f"index must have rows and queries of one model, but got {path} with a map "
                f"({gallery.map.in_words}): {gallery.map.no_threshold(path)}"
            )
        labels = np.array(gallery.columns.class_names)
        model = pathlib.Path(gallery.description.saved_model)
        return _Source(gallery.index.embeddings_of(gallery.paths), labels, path, model)
    from experiments.evaluation.embedded_sets import embeddings_from_file
    from experiments.evaluation.result import FLAGS_FILE
    from experiments.training.run_files import embeddings_of_run

    saved_model = options.saved_model and options.saved_model.expanduser()
    if name == "run":
        run, path, saved_model = path, path / "test_embeddings.npz", path / "saved_model"
        if not (path.is_file() and saved_model.is_dir()):
            raise UsageError(
                "run must be the folder of a finished run, with test_embeddings.npz and "
                f"saved_model, but got {run}."
            )
        of_run = parse(RunOptions, ["calibrate", f"--flagfile={run / FLAGS_FILE}"])
        if of_run.keeps_nothing_back:
            raise UsageError(
                f"run must have unseen test images, but got {run} with class_split=every_class. "
                "Use the embeddings of other classes: --embeddings=FILE."
            )
        embeddings_of_run(run)
    queries = embeddings_from_file(path).queries
    return _Source(queries.embeddings, queries.labels, path, saved_model)


def _verified(source: _Source, options: CalibrateOptions) -> VerificationResult:
    """Verify the pairs at one rate: the rate of the options, or the recommended rate."""
    from experiments.evaluation.calibration import check_rate, negative_pairs
    from experiments.evaluation.tables import text_table
    from experiments.pages.calibration_page import rates_of
    from keras_dml import metrics

    labels, rate = source.labels, options.false_match_rate
    pairs = negative_pairs(labels)
    rates = [each for each in _RATES if metrics.pairs_needed(each) <= pairs] or [_RATES[0]]
    if rate is not None:
        rates = [rate]
    check_rate(rates[0], labels)
    metric = cast("Metric", options.metric)
    found = metrics.verification(source.embeddings, labels, rates, metric)
    if rate is not None:
        return found
    print(text_table(rates_of(found)))
    useful = [point for point in found.points if point.true_match_rate_interval[0] >= _LEAST]
    chosen = useful[-1] if useful else found.points[0]
    flag = f"--false_match_rate={chosen.false_match_rate:g}"
    if useful:
        print(f"recommended: {flag}, the lowest rate at which half of the pairs of one class match")
    else:
        print(
            f"no rate is useful: with {flag}, only {100 * chosen.true_match_rate:.0f} % of the "
            "pairs of one class match. Expect right answers below the threshold, or train first."
        )
    return dataclasses.replace(found, points=(chosen,))


def main(argv: list[str]) -> None:
    """Verify the pairs, write the threshold and the page, print a table."""
    options = parse(CalibrateOptions, argv)
    source = _source(options)
    from experiments.evaluation import calibration as calibrations
    from experiments.evaluation.result import REPORT
    from experiments.evaluation.tables import text_table
    from experiments.pages.calibration_page import notes_of, rows_of, write_calibration_page
    from experiments.pages.model_card import MODEL_CARD, update_threshold
    from experiments.pages.page import add_link
    from keras_dml import metrics
    from keras_dml.export.load import fingerprint

    file, saved_model = source.path, source.saved_model
    of_model = None if saved_model is None else fingerprint(saved_model)
    metric = cast("Metric", options.metric)
    found = _verified(source, options)
    known = metrics.identification(source.embeddings, source.labels, (), metric)
    decided = known.at(found.points[0].threshold)
    calibration = calibrations.calibration_of(found, decided, of_model)
    path = calibrations.calibration_path(saved_model or file.with_suffix(""))
    page = path.with_suffix(".html")
    write_calibration_page(page, file, found, decided)
    calibrations.write_calibration(path, calibration)
    if options.run is not None:
        report = file.with_name(REPORT)
        add_link(report, page, "Match or no match")
        add_link(page, report, "The run's report")
        update_threshold(file.with_name(MODEL_CARD), calibration.sentence())
    print(text_table([["", "", "95 %"], *([name, *cells] for name, cells in rows_of(found))]))
    print(*notes_of(found, decided), sep="\n")
    if saved_model is None:
        print("for no model: set --saved_model=FOLDER to let a search use it")
    print(f"threshold: {path}\npage: {page}")


if __name__ == "__main__":
    sys.exit(run_command(main))
