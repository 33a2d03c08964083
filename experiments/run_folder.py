"""A run's folder: its flags, its log, its checkpoint; written so that a kill loses nothing."""

import contextlib
import dataclasses
import difflib
import fcntl
import json
import os
import pathlib

import numpy as np

FLAGS_FILE = "flags.txt"


@dataclasses.dataclass(frozen=True)
class State:
    """How far a run has come: finished epochs and steps, seconds spent in training steps."""

    epoch: int = 0
    step: int = 0
    seconds: float = 0.0


@contextlib.contextmanager
def replacing(path):
    """A temporary path beside `path` that takes its place when the block ends without an error."""
    path = pathlib.Path(path)
    temporary = path.with_name(f".writing-{path.name}")
    try:
        yield temporary
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


class RunFolder:
    """What a run has written so far, and where the rest goes.

    Files: `flags.txt` (resolved flags, itself a flag file), `metrics.jsonl` (one object an
    evaluation), `checkpoint.npz` (all variables of model and optimizer), `best.keras` and
    `last.keras` (embedding models), `result.json` (written last: the run is finished).

    Args:
        path: the folder; made by `open`, not before.
        flags: the resolved flags as text.

    Raises:
        ValueError: the folder holds another run's flags (shows the difference) or files that are no
            run's, or cannot be written.
    """

    def __init__(self, path, flags):
        self.path = pathlib.Path(path)
        self.flags = flags
        self._lock = None
        if self.path.exists() and not self.path.is_dir():
            raise ValueError(f"output_dir must be a folder. Received: output_dir={str(path)!r}")
        parent = next(p for p in (self.path, *self.path.absolute().parents) if p.exists())
        if not parent.is_dir() or not os.access(parent, os.W_OK | os.X_OK):
            raise ValueError(
                f"output_dir cannot be written: no permission in {parent}. "
                f"Received: output_dir={str(path)!r}"
            )
        saved = self.path / FLAGS_FILE
        if saved.is_file():
            self._check_same(saved.read_text())
        elif self.path.is_dir() and any(not p.name.startswith(".") for p in self.path.iterdir()):
            raise ValueError(
                "output_dir must be empty, new, or this run's own folder: it holds files that are "
                f"no run's. Received: output_dir={str(path)!r}"
            )

    def _check_same(self, saved):
        changes = [
            line
            for line in difflib.ndiff(saved.splitlines(), self.flags.splitlines())
            if line[0] in "+-"
        ]
        if changes:
            shown = ", ".join(
                f"{'there' if line[0] == '-' else 'now'} {line[2:]}" for line in changes
            )
            raise ValueError(
                f"output_dir {str(self.path)!r} holds a run with other flags ({shown}): give "
                "another --output_dir, or the same flags"
            )

    def file(self, name):
        """Path of a file of the run."""
        return self.path / name

    @property
    def result(self):
        """What the finished run had written, or None."""
        path = self.file("result.json")
        return json.loads(path.read_text()) if path.is_file() else None

    def open(self):
        """Make the folder if needed and hold it, so that no second process writes into it."""
        self.path.mkdir(parents=True, exist_ok=True)
        self._lock = open(self.file(".lock"), "w")  # noqa: SIM115 held until the process ends
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise ValueError(
                f"output_dir {str(self.path)!r} is in use by another running process"
            ) from error
        self.write_text(FLAGS_FILE, self.flags)
        return self

    def write_text(self, name, text):
        """Write a file of the run in one go."""
        with replacing(self.file(name)) as temporary:
            temporary.write_text(text)

    def write_json(self, name, value):
        """Write a JSON file of the run in one go."""
        self.write_text(name, json.dumps(value, indent=1) + "\n")

    def read_history(self):
        """The objects of `metrics.jsonl`."""
        path = self.file("metrics.jsonl")
        return (
            [json.loads(line) for line in path.read_text().splitlines()] if path.is_file() else []
        )

    def write_history(self, history):
        """Write `metrics.jsonl`, one object a line."""
        self.write_text("metrics.jsonl", "".join(json.dumps(row) + "\n" for row in history))

    def save_checkpoint(self, model, state):
        """Write every variable of `model` and its optimizer, and the `State`.

        All variables by position: Keras' own weight files leave out the seeds of dropout layers,
        without which a continued run would draw other masks than one that was never stopped.
        """
        arrays = [variable.numpy() for variable in _variables(model)]
        with replacing(self.file("checkpoint.npz")) as temporary, open(temporary, "wb") as stream:
            np.savez(
                stream,
                **{f"variable_{i}": array for i, array in enumerate(arrays)},
                **{f"state_{name}": value for name, value in dataclasses.asdict(state).items()},
            )
            stream.flush()
            os.fsync(stream.fileno())

    def restore_checkpoint(self, model):
        """Load the checkpoint into `model` and its optimizer; its `State`, a fresh one without it.

        The log is cut back to the checkpoint: what was evaluated after it will be so again.

        Raises:
            ValueError: the checkpoint does not fit the model.
        """
        path = self.file("checkpoint.npz")
        if not path.is_file():
            self.write_history([])
            return State()
        variables = _variables(model)
        with np.load(path) as saved:
            arrays = [saved[name] for name in saved.files if name.startswith("variable_")]
            if [a.shape for a in arrays] != [tuple(v.shape) for v in variables]:
                raise ValueError(f"{path} does not fit this model; give another --output_dir")
            for variable, array in zip(variables, arrays):
                variable.assign(array)
            names = [field.name for field in dataclasses.fields(State)]
            state = State(**{name: saved[f"state_{name}"].item() for name in names})
        self.write_history([row for row in self.read_history() if row["step"] <= state.step])
        return state


def _variables(model):
    model.optimizer.build(model.trainable_variables)
    return [*model.variables, *model.optimizer.variables]
