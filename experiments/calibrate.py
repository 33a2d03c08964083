"""`python -m experiments.calibrate --run=FOLDER`: the threshold of match or no match."""

from __future__ import annotations

import dataclasses
import html
import math
import os
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
    from experiments.embedding.calibration import Calibration
    from experiments.embedding.labeled_embeddings import LabeledEmbeddings
    from keras_dml._common.types import Metric
    from keras_dml.metrics import IdentificationPoint, Verification
    from keras_dml.metrics.pair_verification import Interval

_WHAT, _HOW = "What is calibrated, one of --run and --embeddings", "How"
_METRICS = registries.words("keras_dml._common.types.METRICS")
# So many classes or more, for intervals that mean what they say.
_ENOUGH_CLASSES = 20


@dataclasses.dataclass(frozen=True, kw_only=True)
class CalibrateOptions(Options):
    """Whose embeddings, and which rate."""

    command = "experiments.calibrate"
    intro = """Find the threshold from which on two images match, at a false match rate you choose.

  python -m experiments.calibrate --run=runs/glyphs-seed0 --false_match_rate=1e-3
  python -m experiments.calibrate --embeddings=FILE.npz --saved_model=FOLDER

Of all pairs of images of two classes, a share of at most --false_match_rate scores above the
threshold. Written beside the model, as NAME-calibration.json, with a page of the curves; search and
its page then say of each neighbour whether it matches. Take classes that the model was not trained
on, as a run's test classes are: the more classes, the narrower the intervals.
"""

    run: pathlib.Path | None = option(
        None, _WHAT, "A folder of experiments.run, finished: its test images, by its kept model."
    )
    embeddings: pathlib.Path | None = option(
        None,
        _WHAT,
        "A file of numpy.savez with the arrays embeddings [n, d] and labels [n].",
    )
    saved_model: pathlib.Path | None = option(
        None, _WHAT, "embeddings: the SavedModel that made them, which the threshold then is of."
    )
    false_match_rate: float = option(
        1e-3, _HOW, "The share of pairs of two classes that may match, above 0 and below 1."
    )
    metric: str = option("cosine", _HOW, "What is near.", choices=_METRICS)


def main(argv: list[str]) -> None:
    """Verify, write, say."""
    options = parse(CalibrateOptions, argv)
    file, saved_model = _sources(options)
    from experiments.embedding.calibration import calibration_path, write_calibration
    from experiments.embedding.labeled_embeddings import embeddings_from_file
    from experiments.embedding.model_card import MODEL_CARD, update_threshold
    from experiments.report.links import add_link
    from experiments.training.run_files import REPORT
    from keras_dml import metrics

    embedded = embeddings_from_file(file)
    fingerprint = _fingerprint(saved_model)
    _check_rate(options.false_match_rate, embedded)
    metric = cast("Metric", options.metric)
    rates = [options.false_match_rate]
    found = metrics.verification(embedded.embeddings, embedded.labels, rates, metric)
    known = metrics.identification(embedded.embeddings, embedded.labels, (), metric)
    decided = known.at(found.points[0].threshold)
    calibration = _calibration(found, decided, fingerprint)
    path = calibration_path(saved_model or file.with_suffix(""))
    page = path.with_suffix(".html")
    _write_page(page, file, found, decided)
    write_calibration(path, calibration)
    if options.run is not None:
        report = file.with_name(REPORT)
        add_link(report, page, "Match or no match")
        add_link(page, report, "The run's report")
        words = f"{found.metric.capitalize()}: {calibration.in_words()}."
        update_threshold(file.with_name(MODEL_CARD), words)
    _show(found, decided, path, page, saved_model)


def _sources(options: CalibrateOptions) -> tuple[pathlib.Path, pathlib.Path | None]:
    """The file of the embeddings, and the SavedModel that they are of."""
    if (options.run is None) == (options.embeddings is None):
        received = "both" if options.run else "none of them"
        raise UsageError(f"give one of --run and --embeddings. Received: {received}")
    rate = options.false_match_rate
    if not 0 < rate < 1:
        raise UsageError(
            f"false_match_rate must be above 0 and below 1. Received: false_match_rate={rate}"
        )
    if options.embeddings is not None:
        model = options.saved_model and options.saved_model.expanduser()
        return options.embeddings.expanduser(), model
    run = pathlib.Path(options.run or "").expanduser()
    if options.saved_model is not None:
        raise UsageError(
            "saved_model is for --embeddings: a run has its own. "
            f"Received: saved_model={options.saved_model}"
        )
    file, model = run / "test_embeddings.npz", run / "saved_model"
    if not (file.is_file() and model.is_dir()):
        raise UsageError(
            "run must be the folder of a finished run, with test_embeddings.npz and saved_model in "
            f"it. Received: run={run}"
        )
    _check_unseen(run)
    return file, model


def _check_unseen(run: pathlib.Path) -> None:
    from experiments.training.run_files import FLAGS_FILE

    if not (run / FLAGS_FILE).is_file():  # of another's making: who knows?
        return
    of_run = parse(RunOptions, ["calibrate", f"--flagfile={run / FLAGS_FILE}"])
    if of_run.keeps_nothing_back:
        raise UsageError(
            "run must have images that it was not trained on, and of one with class_split="
            "every_class all were: a threshold takes those of others, by --embeddings=FILE. "
            f"Received: run={run}"
        )


def _fingerprint(saved_model: pathlib.Path | None) -> str | None:
    if saved_model is None:
        return None
    from experiments.embedding.saved_model import fingerprint

    return fingerprint(saved_model)


def _check_rate(rate: float, embedded: LabeledEmbeddings) -> None:
    """Refuse what the pairs cannot show, by the flag's own name."""
    import numpy as np

    from keras_dml.metrics import pairs_needed

    sizes = np.unique(embedded.labels, return_counts=True)[1].astype(np.float64)
    pairs = int((sizes.sum() ** 2 - (sizes**2).sum()) / 2)
    needed = pairs_needed(rate)
    if len(sizes) > 1 and pairs < needed:
        images = math.ceil(len(embedded.labels) * math.sqrt(needed / pairs))
        raise UsageError(
            f"false_match_rate must be a rate that the pairs can show: {rate:g} takes {needed:,} "
            f"pairs of two classes (3 / rate), as of some {images:,} images; these "
            f"{len(embedded.labels):,} of {len(sizes):,} classes make {pairs:,}, enough for "
            f"{3 / pairs:.2g}. Received: false_match_rate={rate:g}"
        )


def _calibration(
    found: Verification, decided: IdentificationPoint, fingerprint: str | None
) -> Calibration:
    from experiments.embedding.calibration import Calibration

    (point,) = found.points
    findings: dict[str, object] = {
        name: _finite(value)
        for name, value in dataclasses.asdict(point).items()
        if name not in ("threshold", "false_match_rate", "metric")
    }
    findings |= {
        "equal_error_rate": found.equal_error_rate,
        "equal_error_rate_interval": _finite(found.equal_error_rate_interval),
        "equal_error_threshold": found.equal_error_threshold,
        "classes": found.num_classes,
        "positive_pairs": found.positive_pairs,
        "negative_pairs": found.negative_pairs,
        "identification": dataclasses.asdict(decided),
    }
    return Calibration(found.metric, point.threshold, point.false_match_rate, fingerprint, findings)


def _finite(value: float | Interval) -> object:
    """With None in place of NaN, which JSON lacks."""
    if isinstance(value, float):
        return None if math.isnan(value) else value
    return [None if math.isnan(bound) else bound for bound in value]


def _rows(found: Verification) -> list[tuple[str, str, str]]:
    """What was found: its name, its value and its interval, as text."""
    (point,) = found.points
    return [
        ("threshold", f"{point.threshold:.4f}", _interval(point.threshold_interval, "{:.4f}")),
        (
            "false match rate",
            f"{point.measured_false_match_rate:.3g}",
            _interval(point.false_match_rate_interval, "{:.3g}"),
        ),
        (
            "true match rate, %",
            f"{100 * point.true_match_rate:.2f}",
            _interval(point.true_match_rate_interval, "{:.2f}", 100),
        ),
        (
            "equal error rate, %",
            f"{100 * found.equal_error_rate:.2f}",
            _interval(found.equal_error_rate_interval, "{:.2f}", 100),
        ),
    ]


def _interval(interval: Interval, form: str, scale: float = 1) -> str:
    if math.isnan(interval[0]):
        return "–"
    return " to ".join(form.format(scale * bound) for bound in interval)


def _unknown_line(found: Verification, decided: IdentificationPoint) -> str:
    """What the threshold does to a query of no class that is there, which no pair says."""
    false = 100 * decided.false_positive_identification_rate
    right = 100 * decided.detection_and_identification_rate
    return (
        f"searched among the other images: {false:.1f} % of queries whose class is not there find "
        f"a match all the same, {right:.1f} % of the others find their class first, as a match"
    )


def _few_classes_line(found: Verification) -> str:
    if found.num_classes >= _ENOUGH_CLASSES:
        return ""
    return f"of {found.num_classes} classes alone the intervals are too narrow"


def _write_page(
    path: pathlib.Path, file: pathlib.Path, found: Verification, decided: IdentificationPoint
) -> None:
    from experiments.report.page import picture_cards, write_page
    from experiments.report.tables import html_table
    from experiments.report.threshold_figures import errors_svg, roc_svg

    (point,) = found.points
    side = "similarity from" if found.metric == "cosine" else "distance up to"
    beside = {
        "true match rate": point.true_match_rate,
        "equal error rate": found.equal_error_rate,
    }
    headline = "".join(
        f'<div><b>{100 * share:.1f}<small> %</small></b><span class="soft">{name}</span></div>'
        for name, share in beside.items()
    )
    notes = [
        f"{found.positive_pairs:,} pairs of one class and {found.negative_pairs:,} of two, of "
        f"{found.num_classes:,} classes. The intervals are the central 95 % of what other classes "
        "would give, by drawing the classes again and again.",
        f"{_unknown_line(found, decided).capitalize()}.",
        _few_classes_line(found).capitalize(),
    ]
    table = html_table(
        ["", "", "95 %"],
        [(name, [value, interval]) for name, value, interval in _rows(found)],
    )
    body = [
        f'<div class="headline"><div class="main"><b>{point.threshold:.3f}</b><span class="soft">'
        f"{side} which two images match, at a false match rate of {point.false_match_rate:g}"
        f"</span></div>{headline}</div>",
        *(f'<p class="soft">{html.escape(note)}</p>' for note in notes if note),
        f'<section class="card scroll">{table}</section>',
        picture_cards(
            {
                "Receiver operating characteristic": roc_svg(found, point),
                "Errors by threshold": errors_svg(found, point),
            }
        ),
        f'<p class="soft">{html.escape(os.fspath(file))}</p>',
    ]
    write_page(path, "Match or no match", "\n".join(body))


def _show(
    found: Verification,
    decided: IdentificationPoint,
    path: pathlib.Path,
    page: pathlib.Path,
    saved_model: pathlib.Path | None,
) -> None:
    from experiments.report.tables import text_table

    lines = [text_table([["", "", "95 %"], *map(list, _rows(found))])]
    lines += [_unknown_line(found, decided), _few_classes_line(found)]
    if saved_model is None:
        lines.append("of no model: a search takes it with --saved_model=FOLDER given here")
    print("\n".join(filter(None, [*lines, f"threshold: {path}", f"page: {page}"])))


if __name__ == "__main__":
    sys.exit(run_command(main))
