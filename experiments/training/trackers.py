"""Trackers of experiments: MLflow and Weights & Biases receive the scores of each evaluation.

A thread sends them. The training never waits for the tracker.
"""

from __future__ import annotations

import contextlib
import logging
import os
import queue
import threading
import time
import urllib.parse
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple, TypeAlias

from experiments.options.errors import UsageError, one_line
from experiments.training.run_folder import RunFolder
from keras_dml._common.errors import ArgumentError, without_passwords
from keras_dml._common.extras import needing

TRACKER = "tracker.json"
"""The tracker's id of the run, so that a resumed run continues it."""

_EXPERIMENT = "keras_dml"  # of MLflow
_SECONDS = 30.0
_MOST_WAITING = 10_000  # evaluations
_LOGGER = logging.getLogger("experiments")


class Sent(NamedTuple):
    """The scores of an evaluation, its step, and its time in seconds since 1970."""

    step: int
    time: float
    scores: Mapping[str, float]


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
        target = _without_credentials(target or os.environ.get("MLFLOW_TRACKING_URI", ""))
        with needing("mlflow", "log_to=mlflow"):
            import mlflow
        self._entities = mlflow.entities
        self._client = mlflow.MlflowClient(target or None)
        if id is None:
            found = self._client.get_experiment_by_name(_EXPERIMENT)
            create = self._client.create_experiment
            experiment = found.experiment_id if found else create(_EXPERIMENT)
            tags = {"mlflow.runName": run.path.name}
            id = self._client.create_run(experiment, tags=tags).info.run_id
            params = [self._entities.Param(name, value) for name, value in flags.items()]
            self._client.log_batch(id, params=params)
        self.id: str = id

    def log(self, evaluations: Sequence[Sent]) -> None:
        """Send scores in one request. MLflow allows no @ in names."""
        metrics = [
            self._entities.Metric(
                name.replace("@", "_at_"), value, int(1000 * each.time), each.step
            )
            for each in evaluations
            for name, value in each.scores.items()
        ]
        self._client.log_batch(self.id, metrics=metrics)

    def finish(self, succeeded: bool) -> None:
        """Mark the run as finished or failed."""
        self._client.set_terminated(self.id, "FINISHED" if succeeded else "FAILED")


def _without_credentials(uri: str) -> str:
    """Move the name and password of a server's address into MLflow's environment variables.

    MLflow prints the address of a run.
    """
    if without_passwords(uri) == uri:
        return uri
    parts = urllib.parse.urlsplit(uri)
    if parts.scheme in ("http", "https") and not parts.username:
        raise ArgumentError(
            "log_to must be an address with %2F, %3F, and %23 for each /, ?, and # in its "
            f"password, but got mlflow:{without_passwords(uri)}."
        )
    if parts.scheme not in ("http", "https") or not parts.password:
        os.environ["MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT"] = "true"
        return uri
    os.environ["MLFLOW_TRACKING_USERNAME"] = urllib.parse.unquote(parts.username or "")
    os.environ["MLFLOW_TRACKING_PASSWORD"] = urllib.parse.unquote(parts.password)
    return parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()


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

    def log(self, evaluations: Sequence[Sent]) -> None:
        """Send scores."""
        for each in evaluations:
            self._run.log(dict(each.scores), step=each.step)

    def finish(self, succeeded: bool) -> None:
        """Mark the run as finished or failed."""
        self._run.finish(exit_code=0 if succeeded else 1)


#: A run in a tracker.
Tracker: TypeAlias = MLflow | WeightsAndBiases
TRACKERS: dict[str, type[Tracker]] = {"mlflow": MLflow, "wandb": WeightsAndBiases}
"""Trackers by the first word of `--log_to`."""


class _Sender:
    """A thread that opens a run in a tracker and sends its evaluations.

    Evaluations that a tracker refuses are sent again with the next ones.

    Args:
        log_to: TRACKER:TARGET.
        folder: The open folder of the run.
        seconds: The longest wait for the tracker, to open the run and to finish it.

    Raises:
        UsageError, MissingExtraError: As `sending_scores`.
    """

    def __init__(self, log_to: str, folder: RunFolder, seconds: float) -> None:
        self._shown, self._seconds = without_passwords(log_to), seconds
        # An evaluation, or at the end whether the run succeeded.
        self._waiting: queue.Queue[Sent | bool] = queue.Queue(_MOST_WAITING)
        self._evaluated: list[int] = []  # steps
        self._sent: set[int] = set()
        self._silent = self._problem = f"no answer within {seconds:g} s"
        opened: queue.Queue[Tracker | Exception] = queue.Queue()
        self._thread = threading.Thread(target=self._work, args=[log_to, folder, opened])
        self._thread.daemon = True  # A silent tracker does not keep the process alive.
        self._thread.start()
        try:
            found = opened.get(timeout=seconds)
        except queue.Empty:
            found = TimeoutError(self._silent)
        if isinstance(found, (ArgumentError, ImportError)):
            raise found
        if isinstance(found, Exception):  # The packages raise exceptions of many types.
            raise UsageError(
                "log_to must be a tracker that can be reached, but got "
                f"{self._shown} ({one_line(found)})."
            ) from found
        folder.write_json(TRACKER, {"log_to": _written(log_to), "id": found.id})

    def add(self, row: Mapping[str, float]) -> None:
        """Send a row of `metrics.jsonl` later."""
        scores = {name: value for name, value in row.items() if name != "step"}
        self._evaluated.append(int(row["step"]))
        with contextlib.suppress(queue.Full):
            self._waiting.put_nowait(Sent(int(row["step"]), time.time(), scores))

    def close(self, succeeded: bool) -> None:
        """Wait until the evaluations and the end of the run are sent, or print what is missing."""
        ends = time.monotonic() + self._seconds
        with contextlib.suppress(queue.Full):
            self._waiting.put(succeeded, timeout=self._seconds)
        self._thread.join(max(0.0, ends - time.monotonic()))
        missing = [step for step in self._evaluated if step not in self._sent]
        parts = []
        if missing:
            steps = f"steps {missing[0]:,} to {missing[-1]:,}"
            parts.append(
                f"{len(missing):,} of {len(self._evaluated):,} evaluations ({steps}; all are in "
                "metrics.jsonl)"
            )
        if self._problem:
            parts.append("the end of the run")
            _LOGGER.warning(
                "log_to=%s did not get %s: %s", self._shown, " and ".join(parts), self._problem
            )

    def _work(
        self, log_to: str, folder: RunFolder, opened: queue.Queue[Tracker | Exception]
    ) -> None:
        try:
            tracker = _opened(log_to, folder)
        except Exception as error:
            opened.put(error)
            return
        opened.put(tracker)
        rows: list[Sent] = []
        succeeded = None
        while succeeded is None:
            items = [self._waiting.get()]
            with contextlib.suppress(queue.Empty):
                while True:  # everything that waits, in one request
                    items.append(self._waiting.get_nowait())
            rows = [*rows, *(item for item in items if isinstance(item, Sent))][-_MOST_WAITING:]
            succeeded = items[-1] if isinstance(items[-1], bool) else None
            try:
                if rows:
                    tracker.log(rows)
                self._sent.update(row.step for row in rows)
                rows, self._problem = [], self._silent
                if succeeded is not None:
                    tracker.finish(succeeded)
                    self._problem = ""
            except Exception as error:  # A tracker must not end a training.
                self._problem = one_line(error) or type(error).__name__


@contextlib.contextmanager
def sending_scores(
    log_to: str | None, folder: RunFolder, seconds: float = _SECONDS
) -> Iterator[None]:
    """Send the scores of each evaluation in the block to a tracker.

    The block never waits for the tracker. Evaluations that are not sent at the end cause one
    warning.

    Args:
        log_to: TRACKER:TARGET, or None for no tracker.
        folder: The open folder of the run.
        seconds: The longest wait for the tracker, before the block and after it.

    Raises:
        UsageError: The tracker cannot be opened, or does not answer.
        MissingExtraError: Its package is missing.
    """
    if log_to is None or not folder.writes:
        yield
        return
    sender = _Sender(log_to, folder, seconds)
    folder.watch = sender.add
    succeeded = False
    try:
        yield
        succeeded = True
    finally:
        folder.watch = None
        sender.close(succeeded)


def _opened(log_to: str, folder: RunFolder) -> Tracker:
    """Create the run in the tracker, or continue it."""
    name, _, target = log_to.partition(":")
    known = folder.read_json(TRACKER, {"log_to": str | None, "id": str | None}) or {}
    lines = (line.removeprefix("--") for line in folder.flags.splitlines() if line[:2] == "--")
    flags = dict(line.partition("=")[::2] for line in lines)
    id = known.get("id") if known.get("log_to") == _written(log_to) else None
    return TRACKERS[name](target, folder, flags, id)


def _written(log_to: str) -> str:
    """Return the text in `tracker.json`, which has no password."""
    return without_passwords(log_to).replace("//…@", "//")
