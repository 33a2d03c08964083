"""The threshold from which on two embeddings of a model match: what `experiments.calibrate` writes.

It lies beside the SavedModel that it is of, as NAME-calibration.json.
"""

import dataclasses
import math
import os
import pathlib

from experiments.embedding.checked_json import checked_text, read_checked
from experiments.options.errors import UsageError

_AGAIN = "python -m experiments.calibrate makes one"


@dataclasses.dataclass(frozen=True)
class Calibration:
    """A threshold, and what it is of.

    Attributes:
        metric: "cosine" or "l2".
        threshold: embeddings match if their similarity is at least this ("l2": their distance at
            most this).
        false_match_rate: the rate that was asked for.
        fingerprint: of the SavedModel's files; None where no model was named.
        findings: what else was measured, as JSON takes it.
    """

    metric: str
    threshold: float
    false_match_rate: float
    fingerprint: str | None
    findings: dict[str, object] = dataclasses.field(default_factory=dict)

    def matches(self, score: float) -> bool:
        """Whether two embeddings of this similarity or distance match."""
        return score >= self.threshold if self.metric == "cosine" else score <= self.threshold

    def in_words(self) -> str:
        """What counts as a match, for a page or a terminal."""
        side = "similarity of at least" if self.metric == "cosine" else "distance of at most"
        return f"{side} {self.threshold:.4f}, false match rate {self.false_match_rate:g}"


def calibration_path(saved_model: str | os.PathLike[str]) -> pathlib.Path:
    """Where the calibration of a SavedModel lies."""
    path = pathlib.Path(os.path.abspath(saved_model))  # "." has a name then
    return path.with_name(f"{path.name}-calibration.json")


def write_calibration(path: pathlib.Path, calibration: Calibration) -> None:
    """Write it in one go, its own checksum within."""
    from keras_dml._files.atomic import replacing  # with Keras

    with replacing(path) as unfinished:
        unfinished.write_text(checked_text(dataclasses.asdict(calibration)))


def calibration_words(saved_model: str | os.PathLike[str]) -> str | None:
    """What counts as a match by the calibration beside a SavedModel.

    None where there is none, or none that is whole and of this model.
    """
    from experiments.embedding.saved_model import fingerprint  # with TensorFlow
    from keras_dml._common.types import METRICS

    if not calibration_path(saved_model).is_file():
        return None
    for metric in METRICS:
        try:
            found = read_calibration(saved_model, fingerprint(saved_model), metric)
        except UsageError:
            continue
        if found is not None:
            return f"{metric.capitalize()}: {found.in_words()}."
    return None


def read_calibration(
    saved_model: str | os.PathLike[str], fingerprint: str, metric: str
) -> Calibration | None:
    """The calibration beside a SavedModel; None where there is none.

    Args:
        saved_model: the model's folder.
        fingerprint: of its files.
        metric: of the scores that are to be compared with the threshold.

    Raises:
        UsageError: it is damaged, of another model or of another metric.
    """
    path = calibration_path(saved_model)
    if not path.is_file():
        return None
    try:
        calibration = Calibration(**(read_checked(path) or {}))
        whole = math.isfinite(calibration.threshold) and calibration.false_match_rate > 0
    except TypeError:
        whole = False
    if not whole:
        raise UsageError(f"the calibration {path} is damaged: delete it; {_AGAIN}")
    if calibration.fingerprint != fingerprint:
        raise UsageError(
            f"the calibration {path} is of another model than {saved_model} is now: its threshold "
            f"means nothing here. Delete it; {_AGAIN}"
        )
    if calibration.metric != metric:
        raise UsageError(
            f"the calibration {path} is of metric={calibration.metric}, the index of "
            f"metric={metric}. Delete it; {_AGAIN}: --metric={metric}"
        )
    return calibration
