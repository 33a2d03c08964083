"""The page of a calibration."""

from __future__ import annotations

import math
import os
import pathlib

from experiments.evaluation.scores import percent
from experiments.pages.page import write_page
from experiments.pages.threshold_figures import errors_svg, roc_svg
from keras_dml.metrics import IdentificationPoint, Verification
from keras_dml.metrics.pair_verification import Interval

# The intervals of fewer classes are too narrow.
_ENOUGH_CLASSES = 20


def rows_of(found: Verification) -> list[tuple[str, list[str]]]:
    """Return the rows of the table: name, and value and interval as text."""
    (point,) = found.points
    rows = [
        ("threshold", point.threshold, point.threshold_interval, 1, "{:.4f}"),
        (
            "false match rate",
            point.measured_false_match_rate,
            point.false_match_rate_interval,
            1,
            "{:.3g}",
        ),
        (
            "true match rate, %",
            point.true_match_rate,
            point.true_match_rate_interval,
            100,
            "{:.2f}",
        ),
        (
            "equal error rate, %",
            found.equal_error_rate,
            found.equal_error_rate_interval,
            100,
            "{:.2f}",
        ),
    ]
    return [
        (name, [form.format(scale * value), interval_text(interval, form, scale)])
        for name, value, interval, scale, form in rows
    ]


def interval_text(interval: Interval, form: str, scale: float) -> str:
    """Return an interval as text: both bounds times `scale`, in a format such as "{:.2f}"."""
    if math.isnan(interval[0]):
        return "–"
    return " to ".join(form.format(scale * bound) for bound in interval)


def unknown(decided: IdentificationPoint) -> str:
    """Return a sentence about queries of unknown classes, which no pair measures."""
    false = percent(decided.false_positive_identification_rate)
    right = percent(decided.detection_and_identification_rate)
    return (
        f"searched among the other images: {false} % of the queries of a missing class still get a "
        f"match, {right} % of the others get their class first, as a match"
    )


def few_classes(found: Verification) -> str:
    """Return a warning if there are few classes; empty if there are enough."""
    if found.num_classes >= _ENOUGH_CLASSES:
        return ""
    return f"with only {found.num_classes} classes, the intervals are too narrow"


def write_calibration_page(
    path: pathlib.Path, file: pathlib.Path, found: Verification, decided: IdentificationPoint
) -> None:
    """Write the page.

    Args:
        path: The page.
        file: File of the embeddings.
        found: Result of `keras_dml.metrics.verification`.
        decided: Identification at its threshold.
    """
    (point,) = found.points
    notes = [
        f"{found.positive_pairs:,} pairs of one class and {found.negative_pairs:,} pairs of two "
        f"classes, from {found.num_classes:,} classes. The intervals are the central 95 % over "
        "random resamples of the classes.",
        f"{unknown(decided).capitalize()}.",
        few_classes(found).capitalize(),
    ]
    write_page(
        path,
        "Match or no match",
        template="calibration.html",
        threshold=f"{point.threshold:.3f}",
        side="similarity from" if found.metric == "cosine" else "distance up to",
        rate=f"{point.false_match_rate:g}",
        rates={
            "true match rate": percent(point.true_match_rate),
            "equal error rate": percent(found.equal_error_rate),
        },
        notes=notes,
        rows=rows_of(found),
        pictures={
            "Receiver operating characteristic": roc_svg(found, point),
            "Errors by threshold": errors_svg(found, point),
        },
        file=os.fspath(file),
    )
