"""Calibrations: the threshold at which two embeddings of a model match.

`experiments.calibrate` writes a calibration next to its SavedModel, as NAME-calibration.json.
"""

import dataclasses
import math
import os
import pathlib
from typing import Any

import numpy as np

from experiments.options.errors import UsageError
from keras_dml._common.errors import ArgumentError
from keras_dml._common.types import METRICS
from keras_dml._files.atomic import replacing
from keras_dml._files.checksums import read_sealed_json, sealed_json
from keras_dml.export.load import fingerprint
from keras_dml.metrics import IdentificationPoint, VerificationResult, pairs_needed

_FORM = {
    "metric": str,
    "threshold": float,
    "false_match_rate": float,
    "fingerprint": str | None,
    "findings": (dict[str, Any], None),
}
_AGAIN = "keras-dml calibrate writes a new one"


@dataclasses.dataclass(frozen=True)
class Calibration:
    """A threshold.

    Attributes:
        metric: "cosine" or "l2".
        threshold: Embeddings match if their similarity is at least this value, or their distance at
            most this value.
        false_match_rate: The requested rate.
        fingerprint: Fingerprint of the SavedModel, if there is one.
        findings: Further measurements, as JSON values.
    """

    metric: str
    threshold: float
    false_match_rate: float
    fingerprint: str | None
    findings: dict[str, object] = dataclasses.field(default_factory=dict)

    def matches(self, score: float) -> bool:
        """Return whether two embeddings of this similarity or distance match."""
        return score >= self.threshold if self.metric == "cosine" else score <= self.threshold

    def in_words(self) -> str:
        """Return the condition of a match, for a page or a terminal."""
        side = "similarity of at least" if self.metric == "cosine" else "distance of at most"
        return f"{side} {self.threshold:z.4f}, false match rate {self.false_match_rate:g}"

    def sentence(self) -> str:
        """Return the condition of a match with its metric, for a model card."""
        return f"{self.metric.capitalize()}: {self.in_words()}."


def calibration_of(
    found: VerificationResult, decided: IdentificationPoint, fingerprint: str | None
) -> Calibration:
    """Return the calibration of a verification and of the identification at its threshold."""
    (point,) = found.points
    measured: dict[str, Any] = {
        **dataclasses.asdict(point),
        "equal_error_rate": found.equal_error_rate,
        "equal_error_rate_interval": found.equal_error_rate_interval,
        "equal_error_threshold": found.equal_error_threshold,
        "classes": found.num_classes,
        "positive_pairs": found.positive_pairs,
        "negative_pairs": found.negative_pairs,
        "identification": dataclasses.asdict(decided),
    }
    own = {name: measured.pop(name) for name in ("metric", "threshold", "false_match_rate")}
    findings = {name: _json(value) for name, value in measured.items()}
    return Calibration(**own, fingerprint=fingerprint, findings=findings)


def _json(value: Any) -> object:
    """Return a value with None instead of NaN, which JSON does not have."""
    if isinstance(value, tuple):
        return [_json(bound) for bound in value]
    return None if isinstance(value, float) and math.isnan(value) else value


def negative_pairs(labels: np.ndarray) -> int:
    """Return the number of pairs of two classes."""
    sizes = np.unique(labels, return_counts=True)[1].astype(np.float64)
    return int((sizes.sum() ** 2 - (sizes**2).sum()) / 2)


def check_rate(rate: float, labels: np.ndarray) -> None:
    """Raise `UsageError` if the labels have too few pairs of two classes for a false match rate."""
    pairs, needed = negative_pairs(labels), pairs_needed(rate)
    if 0 < pairs < needed:
        images = math.ceil(len(labels) * math.sqrt(needed / pairs))
        raise UsageError(
            f"false_match_rate must be at least {3 / pairs:.2g} for the {pairs:,} pairs of "
            f"{len(labels):,} images of {len(set(labels)):,} classes, but got {rate:g}. That rate "
            f"needs {needed:,} pairs of two classes (3 / rate), as of about {images:,} images."
        )


def calibration_path(saved_model: str | os.PathLike[str]) -> pathlib.Path:
    """Return the path of the calibration of a SavedModel."""
    path = pathlib.Path(os.path.abspath(saved_model))  # so that "." has a name
    return path.with_name(f"{path.name}-calibration.json")


def write_calibration(path: pathlib.Path, calibration: Calibration) -> None:
    """Write a calibration under a temporary name, then rename it."""
    with replacing(path) as unfinished:
        unfinished.write_text(sealed_json(dataclasses.asdict(calibration)))


def calibration_words(saved_model: str | os.PathLike[str]) -> str | None:
    """Return the condition of a match by the calibration of a SavedModel.

    Returns:
        None if it is missing, damaged, or belongs to another model.
    """
    try:
        found = read_calibration(saved_model, fingerprint(saved_model))
    except ValueError:
        return None
    return None if found is None else found.sentence()


def read_calibration(
    saved_model: str | os.PathLike[str], fingerprint: str, metric: str | None = None
) -> Calibration | None:
    """Return the calibration of a SavedModel; None if it is missing.

    Args:
        saved_model: Folder of the model.
        fingerprint: Fingerprint of the model.
        metric: Metric of the scores that are compared with the threshold, if it is known.

    Raises:
        UsageError: It is damaged, or belongs to another model or another metric.
    """
    path = calibration_path(saved_model)
    if not path.is_file():
        return None
    try:
        calibration = Calibration(**read_sealed_json(path, _FORM))
        if not (math.isfinite(calibration.threshold) and 0 < calibration.false_match_rate < 1):
            raise ArgumentError(f"{path} is damaged: a number is out of range")
        if calibration.metric not in METRICS:  # a word in a card
            raise ArgumentError(f"{path} is damaged: its metric is unknown")
    except ArgumentError as error:
        raise UsageError(f"The calibration {error}. Delete it; {_AGAIN}.") from error
    except TypeError as error:  # another field
        raise UsageError(f"The calibration {path} is damaged. Delete it; {_AGAIN}.") from error
    if calibration.fingerprint != fingerprint:
        raise UsageError(
            f"The calibration {path} belongs to another model than {saved_model}. Delete it; "
            f"{_AGAIN}."
        )
    if metric not in (None, calibration.metric):
        raise UsageError(
            f"The calibration {path} must have the index's metric={metric}, but got "
            f"metric={calibration.metric}. Delete it; {_AGAIN}: --metric={metric}"
        )
    return calibration
