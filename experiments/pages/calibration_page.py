"""The page of a calibration."""

from __future__ import annotations

import math
import os
import pathlib

import numpy as np

from experiments.evaluation.figures import Curves
from experiments.evaluation.scores import percent
from experiments.pages.figures import svgs
from experiments.pages.page import write_page
from keras_dml.metrics import IdentificationPoint, VerificationResult
from keras_dml.metrics.pair_verification import Interval

# The intervals of fewer classes are too narrow.
_ENOUGH_CLASSES = 20


def rows_of(found: VerificationResult) -> list[tuple[str, list[str]]]:
    """Return the rows of the table: name, and value and interval as text."""
    (point,) = found.points
    equal, equal_interval = found.equal_error_rate, found.equal_error_rate_interval
    false, false_interval = point.measured_false_match_rate, point.false_match_rate_interval
    true, true_interval = point.true_match_rate, point.true_match_rate_interval
    rows = [
        ("threshold", point.threshold, point.threshold_interval, 1, "{:z.4f}"),
        ("false match rate", false, false_interval, 1, "{:.3g}"),
        ("true match rate, %", true, true_interval, 100, "{:.2f}"),
        ("equal error rate, %", equal, equal_interval, 100, "{:.2f}"),
    ]
    return [
        (name, [form.format(scale * value), interval_text(interval, form, scale)])
        for name, value, interval, scale, form in rows
    ]


def rates_of(found: VerificationResult) -> list[list[str]]:
    """Return a table of the thresholds and true match rates of all false match rates."""
    rows = [["false match rate", "threshold", "true match rate, %", "95 %"]]
    for point in found.points:
        shares = interval_text(point.true_match_rate_interval, "{:.1f}", 100)
        numbers = f"{point.threshold:.4f}", f"{100 * point.true_match_rate:.1f}", shares
        rows.append([f"{point.false_match_rate:g}", *numbers])
    return rows


def interval_text(interval: Interval, form: str, scale: float) -> str:
    """Return an interval as text: both bounds times `scale`, in a format such as "{:.2f}"."""
    if math.isnan(interval[0]):
        return "–"
    return " to ".join(form.format(scale * bound) for bound in interval)


def notes_of(found: VerificationResult, decided: IdentificationPoint) -> list[str]:
    """Return a sentence about unknown classes, which no pair measures, and about few classes."""
    false = percent(decided.false_positive_identification_rate)
    right = percent(decided.detection_and_identification_rate)
    notes = [
        f"searched among the other images: {false} % of the queries of a missing class still get a "
        f"match, {right} % of the others get their class first, as a match"
    ]
    if found.num_classes < _ENOUGH_CLASSES:
        notes.append(f"with only {found.num_classes} classes, the intervals are too narrow")
    return notes


def write_calibration_page(
    path: pathlib.Path, file: pathlib.Path, found: VerificationResult, decided: IdentificationPoint
) -> None:
    """Write the page.

    Args:
        path: The page.
        file: File of the embeddings.
        found: Result of `keras_dml.metrics.verification`.
        decided: Identification at its threshold.
    """
    write_page(
        path,
        "Match or no match",
        template="calibration.html",
        found=found,
        point=found.points[0],
        notes=[f"{note.capitalize()}." for note in notes_of(found, decided)],
        rows=rows_of(found),
        pictures=svgs(_figures(found)),
        file=os.fspath(file),
    )


def _figures(found: VerificationResult) -> dict[str, Curves]:
    """Return the ROC curve, and both error rates over the threshold."""
    (point,) = found.points
    false, matched = found.false_match_rates, 100 * found.true_match_rates
    above = false > 0
    finite = np.isfinite(found.thresholds)
    thresholds = found.thresholds[finite]
    roc = Curves(
        {"all thresholds": list(zip(false[above], matched[above]))},
        "true match rate, %",
        "false match rate",
        rings={"this threshold": (point.false_match_rate, 100 * point.true_match_rate)},
        is_log=True,
    )
    errors = Curves(
        {
            "false matches": list(zip(thresholds, 100 * false[finite])),
            "missed matches": list(zip(thresholds, 100 - matched[finite])),
        },
        "share of the pairs, %",
        "cosine similarity" if found.metric == "cosine" else "distance (l2)",
        places={"threshold, 95 %": point.threshold},
        band=point.threshold_interval,
    )
    return {"Receiver operating characteristic": roc, "Errors by threshold": errors}
