"""Trackers of experiments: MLflow and Weights & Biases receive the scores of each evaluation."""

from __future__ import annotations

import contextlib
import logging
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeAlias

from experiments.options.errors import UsageError
from experiments.training.run_folder import RunFolder
from keras_dml._common.errors import ArgumentError
from keras_dml._common.extras import needing

TRACKER = "tracker.json"
"""The tracker's id of the run, so that a resumed run continues it."""

_EXPERIMENT = "keras_dml"  # of MLflow
_LOGGER = logging.getLogger("experiments")


class MLflow:
    """A run in MLflow.

    Args:
        target: Tracking URI. Empty: the default of MLflow (MLFLOW_TRACKING_URI).
        run: Folder of the run.
        flags: The run's flags.
        id: Id of the run to continue, or None.

    Attributes:
        id: The tracker's id of the run.
    """

    def __init__(self, target: str, run: RunFolder, flags: Mapping[str, str], id: str | None):
        with needing("mlflow", "log_to=mlflow"):
            import mlflow
        self._client = mlflow.MlflowClient(target or None)
        if id is None:
            found = self._client.get_experiment_by_name(_EXPERIMENT)
            create = self._client.create_experiment
            experiment = found.experiment_id if found else create(_EXPERIMENT)
            tags = {"mlflow.runName": run.path.name}
            id = self._client.create_run(experiment, tags=tags).info.run_id
            for name, value in flags.items():
                self._client.log_param(id, name, value)
        self.id: str = id

    def log(self, step: int, scores: Mapping[str, float]) -> None:
        """Send the scores of a step. MLflow allows no @ in names."""
        for name, value in scores.items():
            self._client.log_metric(self.id, name.replace("@", "_at_"), value, step=step)

    def finish(self, succeeded: bool) -> None:
        """Mark the run as finished or failed."""
        self._client.set_terminated(self.id, "FINISHED" if succeeded else "FAILED")


class WeightsAndBiases:
    """A run in Weights & Biases.

    Args:
        target: PROJECT or ENTITY/PROJECT.
        run, flags, id: As in `MLflow`.
    """

    def __init__(self, target: str, run: RunFolder, flags: Mapping[str, str], id: str | None):
        with needing("wandb", "log_to=wandb"):
            import wandb
        entity, _, project = target.rpartition("/")
        self._run = wandb.init(
            project=project or None,
            entity=entity or None,
            name=run.path.name,
            config=dict(flags),
            dir=str(run.path),
            id=id,
            resume="allow",
        )
        self.id: str = self._run.id

    def log(self, step: int, scores: Mapping[str, float]) -> None:
        """Send the scores of a step."""
        self._run.log(dict(scores), step=step)

    def finish(self, succeeded: bool) -> None:
        """Mark the run as finished or failed."""
        self._run.finish(exit_code=0 if succeeded else 1)


#: A run in a tracker.
Tracker: TypeAlias = MLflow | WeightsAndBiases
TRACKERS: dict[str, type[Tracker]] = {"mlflow": MLflow, "wandb": WeightsAndBiases}
"""Trackers by the first word of `--log_to`."""


@contextlib.contextmanager
def tracked(log_to: str | None, folder: RunFolder) -> Iterator[None]:
    """Send the scores of each evaluation in the block to a tracker.

    A tracker that fails during the training causes one warning, and the training continues.

    Args:
        log_to: TRACKER:TARGET, or None for no tracker.
        folder: The open folder of the run.

    Raises:
        UsageError: The tracker cannot be opened.
        MissingExtraError: Its package is missing.
    """
    if log_to is None or not folder.writes:
        yield
        return
    tracker: Tracker | None = _opened(log_to, folder)

    def attempt(send: Callable[..., None], *arguments: Any) -> None:
        nonlocal tracker
        try:
            send(*arguments)
        except Exception as error:  # A tracker must not end a training.
            _LOGGER.warning("log_to=%s stopped: %s", log_to, error)
            tracker = None

    def watch(row: Mapping[str, float]) -> None:
        if tracker is not None:
            scores = {name: value for name, value in row.items() if name != "step"}
            attempt(tracker.log, int(row["step"]), scores)

    folder.watch = watch
    succeeded = False
    try:
        yield
        succeeded = True
    finally:
        if tracker is not None:
            attempt(tracker.finish, succeeded)


def _opened(log_to: str, folder: RunFolder) -> Tracker:
    """Create the run in the tracker, or continue it."""
    name, _, target = log_to.partition(":")
    written = re.sub(r"//[^/@]*@", "//", log_to)  # without a user's name and password
    known = folder.read_json(TRACKER) or {}
    lines = (line.removeprefix("--") for line in folder.flags.splitlines() if line[:2] == "--")
    flags = dict(line.partition("=")[::2] for line in lines)
    try:
        tracker = TRACKERS[name](
            target, folder, flags, known.get("id") if known.get("log_to") == written else None
        )
    except (ArgumentError, ImportError):
        raise
    except Exception as error:  # The packages raise exceptions of many types.
        raise UsageError(
            f"log_to must be a tracker that can be reached, but got {log_to} ({error})."
        ) from error
    folder.write_json(TRACKER, {"log_to": written, "id": tracker.id})
    return tracker
