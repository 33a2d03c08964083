"""A run's folder: its flags, its log, its checkpoint; written so that a kill loses nothing."""

from __future__ import annotations

import dataclasses
import difflib
import fcntl
import json
import os
import pathlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Self, TextIO

import numpy as np

from experiments.options import RunOptions, UsageError, parse, resolved

# keras_dml brings Keras, which takes seconds: it is imported by what writes or restores, so that a
# finished run is answered at once.
if TYPE_CHECKING:
    import keras

    from experiments.training.workers import Workers

FLAGS_FILE = "flags.txt"
CHECKPOINT = "checkpoint.npz"
BAD_IMAGES = "bad_images.txt"
RAW_PIXELS = "raw_pixels.json"
RANKMI = "rankmi.json"
RESULT = "result.json"
# What is kept for the rest of a run before its first checkpoint, and follows from its flags.
OF_THE_FLAGS = (BAD_IMAGES, RAW_PIXELS, RANKMI)


@dataclasses.dataclass(frozen=True)
class State:
    """How far a run has come: finished epochs and steps, seconds spent in training steps."""

    epoch: int = 0
    step: int = 0
    seconds: float = 0.0


class RunFolder:
    """What a run has written so far, and where the rest goes.

    Files: `flags.txt` (resolved flags, itself a flag file), `metrics.jsonl` (one object an
    evaluation), `checkpoint.npz` (all variables of model and optimizer), `best.keras` and
    `last.keras` (embedding models), `result.json` (written last: the run is finished).

    Args:
        path: the folder; made by `open`, not before.
        flags: the resolved flags as text.
        writes: False for a worker beside the first: it leaves the folder alone, and all its
            `write_...` do nothing.

    Raises:
        ValueError: the folder holds another run's flags (shows the difference) or files that are no
            run's, or cannot be written.
    """

    def __init__(self, path: str | os.PathLike[str], flags: str, writes: bool = True) -> None:
        self.path = pathlib.Path(path)
        self.flags = flags
        self.writes = writes
        self._lock: TextIO | None = None
        if writes:
            self._check()

    def _check(self) -> None:
        path = str(self.path)
        try:
            exists = self.path.exists()
        except OSError as error:
            raise UsageError(f"output_dir cannot be used: {error}") from error
        if exists and not self.path.is_dir():
            raise UsageError(f"output_dir must be a folder. Received: output_dir={path!r}")
        parent = next(p for p in (self.path, *self.path.absolute().parents) if p.exists())
        if not parent.is_dir() or not os.access(parent, os.W_OK | os.X_OK):
            why = "no permission in" if parent.is_dir() else "no folder:"
            raise UsageError(
                f"output_dir cannot be written, {why} {parent}. Received: output_dir={path!r}"
            )
        saved = self.path / FLAGS_FILE
        # Before its first checkpoint a run has nothing to lose: other flags may take its folder.
        kept = self.file(CHECKPOINT).is_file() or self.file(RESULT).is_file()
        self._unused = saved.is_file() and not kept
        if saved.is_file():
            if not self._unused:
                self._check_same(saved.read_text())
        elif self.path.is_dir() and any(not p.name.startswith(".") for p in self.path.iterdir()):
            raise UsageError(
                "output_dir must be empty, new, or this run's own folder: it holds files that are "
                f"no run's. Received: output_dir={path!r}"
            )

    def _check_same(self, saved: str) -> None:
        there, now = (sorted(_resolved_anew(flags).splitlines()) for flags in (saved, self.flags))
        changes = [
            line
            # Their order says nothing, and was another one in earlier versions.
            for line in difflib.ndiff(there, now)
            if line[0] in "+-"
        ]
        if changes:
            shown = ", ".join(
                f"{'there' if line[0] == '-' else 'now'} {line[2:]}" for line in changes
            )
            raise UsageError(
                f"output_dir {str(self.path)!r} holds a run with other flags ({shown}): give "
                "another --output_dir, or the same flags"
            )

    def file(self, name: str) -> pathlib.Path:
        """Path of a file of the run."""
        return self.path / name

    @property
    def result(self) -> dict[str, Any] | None:
        """What the finished run had written, or None."""
        path = self.file(RESULT)
        return json.loads(path.read_text()) if path.is_file() else None

    @property
    def finished_text(self) -> str:
        """What to print of a finished run."""
        result = self.result or {"table": ""}
        return f"{self.path} is finished:\n\n{result['table']}\n"

    def open(self) -> Self:
        """Make the folder if needed and hold it, so that no second process writes into it.

        What the constructor has checked is checked again: till now others may have written here.

        Raises:
            ValueError: as the constructor; another process holds the folder.
        """
        if not self.writes:
            return self
        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UsageError(f"output_dir cannot be made: {error}") from error
        lock = open(self.file(".lock"), "w")  # noqa: SIM115 held until the process ends
        try:
            self._hold(lock)
            self._check()
        except Exception:
            lock.close()
            raise
        self._lock = lock
        if self._unused and self.file(FLAGS_FILE).read_text() != self.flags:
            for name in OF_THE_FLAGS:
                self.file(name).unlink(missing_ok=True)
        self.write_text(FLAGS_FILE, self.flags)
        return self

    def _hold(self, lock: TextIO) -> None:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise UsageError(
                f"output_dir {str(self.path)!r} is in use by another running process"
            ) from error

    def write_text(self, name: str, text: str) -> None:
        """Write a file of the run in one go."""
        if not self.writes:
            return
        from keras_dml.atomic import replacing

        with replacing(self.file(name)) as temporary:
            temporary.write_text(text)

    def write_json(self, name: str, value: Any) -> None:
        """Write a JSON file of the run in one go."""
        self.write_text(name, json.dumps(value, indent=1) + "\n")

    def read_history(self) -> list[dict[str, float]]:
        """The objects of `metrics.jsonl`."""
        path = self.file("metrics.jsonl")
        return (
            [json.loads(line) for line in path.read_text().splitlines()] if path.is_file() else []
        )

    def write_history(self, history: Iterable[Mapping[str, float]]) -> None:
        """Write `metrics.jsonl`, one object a line."""
        self.write_text("metrics.jsonl", "".join(json.dumps(row) + "\n" for row in history))

    def save_checkpoint(self, model: keras.Model, state: State) -> None:
        """Write every variable of `model` and its optimizer, and the `State`.

        All variables by position: Keras' own weight files leave out the seeds of dropout layers,
        without which a continued run would draw other masks than one that was never stopped.
        """
        if not self.writes:
            return
        from keras_dml.atomic import replacing

        arrays = [variable.numpy() for variable in _variables(model)]
        with replacing(self.file(CHECKPOINT)) as temporary, open(temporary, "wb") as stream:
            np.savez(
                stream,
                **{f"variable_{i}": array for i, array in enumerate(arrays)},
                **{f"state_{name}": value for name, value in dataclasses.asdict(state).items()},
            )
            stream.flush()
            os.fsync(stream.fileno())

    def restore_checkpoint(
        self, model_at: Callable[[State], keras.Model], workers: Workers
    ) -> State:
        """Load the checkpoint into a model and its optimizers; its `State`, a fresh one without it.

        The first worker reads it and sends it to the others. The log is cut back to the checkpoint:
        what was evaluated after it will be so again.

        Args:
            model_at: gives the model, compiled as it was when a checkpoint of this state was saved.
            workers: all that train together; each calls this.

        Raises:
            ValueError: the checkpoint does not fit the model.
        """
        from keras_dml.cloning import finalize

        saved, state = self._read_checkpoint()
        epoch, step, seconds = workers.from_first(np.array(dataclasses.astuple(state), float))
        state = State(int(epoch), int(step), float(seconds))
        model = model_at(state)
        variables = _variables(model)
        if workers.first and state.step:
            self._check_fits(saved, variables)
        if state.step:
            for number, variable in enumerate(variables):
                array = saved[number] if workers.first else variable.numpy()
                variable.assign(workers.from_first(array))
            finalize(model)
        self.write_history([row for row in self.read_history() if row["step"] <= state.step])
        self.settle_best(state.step)
        return state

    def _read_checkpoint(self) -> tuple[list[np.ndarray], State]:
        path = self.file(CHECKPOINT)
        if not self.writes or not path.is_file():
            return [], State()
        with np.load(path) as saved:
            arrays = [saved[name] for name in saved.files if name.startswith("variable_")]
            names = [field.name for field in dataclasses.fields(State)]
            return arrays, State(**{name: saved[f"state_{name}"].item() for name in names})

    def _check_fits(
        self, arrays: Sequence[np.ndarray], variables: Sequence[keras.Variable]
    ) -> None:
        if [a.shape for a in arrays] != [tuple(v.shape) for v in variables]:
            path = self.file(CHECKPOINT)
            raise UsageError(
                f"{path} does not fit this model, whose {len(variables)} variables are others than "
                f"the {len(arrays)} in it: it is of another version. Give another --output_dir"
            )

    def best_of(self, step: int) -> pathlib.Path:
        """Where the best model so far waits until the checkpoint of its step is written."""
        return self.file(f".best-{step}.keras")

    def settle_best(self, step: int) -> None:
        """After the checkpoint of `step`: its best model takes its place, later ones are dropped.

        So the kept model is always of an epoch that the log knows, whenever a kill comes.
        """
        if not self.writes:
            return
        waiting = self.best_of(step)
        if waiting.is_file():
            os.replace(waiting, self.file("best.keras"))
        for left_over in self.path.glob(".best-*.keras"):
            left_over.unlink()


def known_bad_images(path: str | os.PathLike[str]) -> list[str] | None:
    """The lines of the images that the run in a folder left out at its start.

    None where there is no run that has begun, or none that leaves images out.
    """
    folder = pathlib.Path(path)
    listed = folder / BAD_IMAGES
    if not listed.is_file() or not (folder / CHECKPOINT).is_file():
        return None
    return listed.read_text().splitlines()


def _resolved_anew(flags: str) -> str:
    """Resolved flags of an earlier version as this one has them: what came since, by its default.

    What this version does not take stays as it is.
    """
    try:
        return resolved(parse(RunOptions, ["run", *flags.splitlines()]))
    except UsageError:
        return flags


def _variables(model: keras.Model) -> list[keras.Variable]:
    if not model.optimizer.built:
        with model.distribute_strategy.scope():
            model.optimizer.build(model.trainable_variables)
    optimizers = [model.optimizer]
    if hasattr(model, "statistics_optimizer"):
        optimizers.append(model.statistics_optimizer)
    return [*model.variables, *(v for optimizer in optimizers for v in optimizer.variables)]
