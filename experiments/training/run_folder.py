"""A run's folder: its flags, its log, and its checkpoint, written so that a kill loses nothing."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import pathlib
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from experiments.options.command_words import differences
from experiments.options.errors import UsageError
from experiments.options.held_folder import held
from experiments.training.run_files import (
    BAD_IMAGES,
    BEST,
    CANDIDATE,
    CHECKPOINT,
    FLAGS_FILE,
    LOG,
    QUERY,
    RESULT,
    has_checkpoint,
    read_json,
    read_log,
    read_result,
)
from keras_dml._files.manifest import MANIFEST, DamagedError, Manifest

# keras_dml imports Keras, which takes seconds. A finished run is reported without it.

if TYPE_CHECKING:
    import keras

    from experiments.training.workers import Workers


_BEST_MODELS = (f"{QUERY}{BEST}", f"{CANDIDATE}{BEST}")


@dataclasses.dataclass(frozen=True)
class State:
    """Progress of a run: finished epochs and steps, and seconds of training steps."""

    epoch: int = 0
    step: int = 0
    seconds: float = 0.0


class RunFolder:
    """The folder of a run.

    Files: `flags.txt` (resolved flags, also a flag file), `metrics.jsonl` (one object per
    evaluation), `checkpoint.npz` (all variables of the model and its optimizers), `best.keras` and
    `last.keras` (embedding models), `result.json` (written last: the run is finished), and
    `manifest.json` (the SHA-256 of the files). The log, the best model, and the checkpoint of an
    epoch are replaced in one step. Files are checked before they are used. A run with two encoders
    also has `candidate_best.keras` and `candidate_last.keras`.

    Args:
        path: The folder, which `open` creates.
        flags: The resolved flags as text.
        writes: False for workers after the first. Their writing methods do
            nothing.

    Attributes:
        path, flags, writes: As given.
        history: The objects of `metrics.jsonl`, after `restore_checkpoint`.
        threads: Number of threads that computed the checkpoint. None without a checkpoint.
        watch: Function that receives each new object of `metrics.jsonl`, or None.

    Raises:
        ValueError: The folder contains a run with other flags (the message shows the difference) or
            other files.
    """

    def __init__(self, path: str | os.PathLike[str], flags: str, writes: bool = True) -> None:
        self.path = pathlib.Path(path)
        self.flags = flags
        self.writes = writes
        self.history: list[dict[str, float]] = []
        self.threads: int | None = None
        self.watch: Callable[[Mapping[str, float]], None] | None = None
        self._manifest = Manifest(self.path)
        self._tables: dict[str, np.ndarray] = {}
        self._lock = contextlib.ExitStack()
        if writes:
            self._check()

    def _check(self) -> None:
        if not self.path.is_dir():  # `open` creates it, or reports what is there
            return
        # Without a checkpoint nothing is lost if a run with other flags takes the folder.
        begun = has_checkpoint(self.path) or self.file(RESULT).is_file()
        if begun and not self.file(FLAGS_FILE).is_file():
            raise self._refused(f"lacks the run's {FLAGS_FILE}")
        if begun:
            advice = f"Put back {MANIFEST} and {FLAGS_FILE}, or delete the folder to begin again"
            text = self._manifest.check(FLAGS_FILE, advice).read_text()
            there, here = (sorted(flags.splitlines()) for flags in (text, self.flags))
            if changes := differences(there, here):
                raise self._refused(f"has a run with other flags ({changes})")
        elif not self.file(FLAGS_FILE).is_file() and any(
            not each.name.startswith(".") and each.name != MANIFEST for each in self.path.iterdir()
        ):
            raise self._refused("has other files")

    def _refused(self, why: str) -> UsageError:
        return UsageError(
            "output_dir must be new, empty, or the folder of a run with the same flags, but got "
            f"{str(self.path)!r}, which {why}. Set another --output_dir."
        )

    @property
    def _advice(self) -> str:
        return f"Put it back, or delete {self.file(CHECKPOINT)} to begin again"

    def file(self, name: str) -> pathlib.Path:
        """Return the path of a file of the run."""
        return self.path / name

    @property
    def result(self) -> dict[str, Any] | None:
        """The result of the finished run. None if the run is not finished, or can repeat its end.

        Raises:
            ValueError: The result is damaged, and the checkpoint is missing.
        """
        found = read_result(self.path)
        if found is not None or not self.file(RESULT).is_file() or has_checkpoint(self.path):
            return found
        raise UsageError(
            f"{self.file(RESULT)} is damaged, and there is no checkpoint: delete the result, and "
            "the same command begins again"
        )

    @property
    def bad_images(self) -> list[str] | None:
        """The lines about images that the run has left out. None if it has no checkpoint."""
        if not has_checkpoint(self.path) or self._manifest.problem_of(BAD_IMAGES):
            return None
        return self.file(BAD_IMAGES).read_text().splitlines()

    @property
    def finished_text(self) -> str:
        """The message about a finished run."""
        result = self.result or {}
        return f"{self.path} is finished:\n\n{result.get('table') or ''}\n"

    def open(self) -> Self:
        """Create the folder if needed and lock it, so that no second process writes to it.

        Raises:
            ValueError: As the constructor, for the current folder. Also if the folder cannot be
                written, or another process has locked it.
        """
        if not self.writes:
            return self
        with contextlib.ExitStack() as lock:
            try:
                lock.enter_context(held(self.path, "output_dir"))
            except OSError as error:
                raise UsageError(
                    f"output_dir must be a writable folder, but got {str(self.path)!r} "
                    f"({error.strerror})."
                ) from error
            self._manifest.recover()
            self._check()
            self._lock = lock.pop_all()
        if not has_checkpoint(self.path) and not self.file(RESULT).is_file():
            saved = self.file(FLAGS_FILE)
            if saved.is_file() and saved.read_text(errors="replace") != self.flags:
                self._manifest.forget(self._manifest.checksums())
        self.write_text(FLAGS_FILE, self.flags)
        return self

    def close(self) -> None:
        """Unlock the folder."""
        self._lock.close()

    def write_text(self, name: str, text: str) -> None:
        """Replace a file of the run."""
        if self.writes:
            self._manifest.write_text(name, text)

    def replacing(self, name: str) -> contextlib.AbstractContextManager[pathlib.Path]:
        """Return a context with a temporary path, which then replaces a file of the run."""
        return self._manifest.replacing(name)

    def write_json(self, name: str, value: Mapping[str, Any]) -> None:
        """Replace a file of the run by a JSON object."""
        self.write_text(name, json.dumps(value, indent=1) + "\n")

    def read_json(self, name: str, form: Any = dict[str, Any]) -> Any:
        """Return the value that `write_json` wrote. None if it is missing or damaged.

        Args:
            name: Name of the file.
            form: The types of its values, see `keras_dml._files.json_files`.
        """
        return read_json(self.path, name, form)

    def write_history(self, history: Iterable[Mapping[str, float]]) -> None:
        """Write the objects of `metrics.jsonl`, which the next checkpoint replaces."""
        self.history = [dict(row) for row in history]
        if self.writes:
            text = "".join(json.dumps(row) + "\n" for row in self.history)
            self._manifest.staged(LOG).write_text(text)
            if self.watch is not None:
                self.watch(self.history[-1])

    def new_best(self, encoder: str = QUERY) -> pathlib.Path:
        """Return the path of a new best model, which the next checkpoint moves to `best.keras`."""
        return self._manifest.staged(f"{encoder}{BEST}")

    def save_checkpoint(
        self,
        model: keras.Model,
        state: State,
        threads: int | None = None,
        tables: Mapping[str, np.ndarray] | None = None,
    ) -> None:
        """Write the variables of `model` and its optimizers, with the log and the best model.

        The weight files of Keras leave out the seeds of dropout layers, without which a resumed run
        would draw other masks.

        Args:
            model: The fitted model.
            state: Progress of the run.
            threads: Number of threads that compute the model.
            tables: The state of the sampler, if it has one.
        """
        if self.writes:
            variables = enumerate(_variables(model))
            arrays: dict[str, Any] = {f"variable_{i}": each.numpy() for i, each in variables}
            arrays |= {f"state_{name}": value for name, value in dataclasses.asdict(state).items()}
            arrays |= {f"sampler_{name}": array for name, array in (tables or {}).items()}
            with self._manifest.staged(CHECKPOINT).open("wb") as stream:
                np.savez(stream, **arrays, threads=threads or 0)
            self._manifest.commit([LOG, *_BEST_MODELS, CHECKPOINT])

    def restore_checkpoint(
        self, model_at: Callable[[State], keras.Model], workers: Workers
    ) -> State:
        """Load the checkpoint into a model and its optimizers, and return its state.

        The first worker reads the checkpoint and sends it to the others.

        Args:
            model_at: Returns the model, compiled as when a checkpoint of this state was saved.
            workers: All workers. Each calls this method.

        Raises:
            ValueError: The checkpoint is damaged, or does not fit the model.
        """
        from keras_dml._backend.cloning import finalize

        state, arrays = self._read_checkpoint() if self.writes else (State(), [])
        epoch, step, seconds = workers.from_first(np.array(dataclasses.astuple(state), float))
        state = State(int(epoch), int(step), float(seconds))
        model = model_at(state)
        if state.step:
            variables = _variables(model)
            if self.writes and [a.shape for a in arrays] != [tuple(v.shape) for v in variables]:
                raise UsageError(
                    f"{self.file(CHECKPOINT)} does not fit this model: the file has {len(arrays)} "
                    f"variables, and the model {len(variables)}. It is of another version: give "
                    "another --output_dir"
                )
            for number, variable in enumerate(variables):
                array = arrays[number] if self.writes else variable.numpy()
                variable.assign(workers.from_first(array))
            finalize(model)
        return state

    def restored_tables(
        self, like: Mapping[str, np.ndarray], workers: Workers
    ) -> dict[str, np.ndarray]:
        """Return the state of the sampler from the checkpoint, on every worker.

        Args:
            like: A state with arrays of the same names, ranks, and dtypes.
            workers: All workers. Each calls this method, after `restore_checkpoint`.
        """
        found = {}
        for name, array in like.items():
            shape = workers.from_first(np.array(self._tables.get(name, array).shape))
            empty = np.zeros(shape, array.dtype)
            found[name] = workers.from_first(self._tables.get(name, empty))
        return found

    def _read_checkpoint(self) -> tuple[State, list[np.ndarray]]:
        """Return the state and the variables. Without a checkpoint, delete an earlier best model.

        Raises:
            DamagedError: The checkpoint, the best model, or the log is damaged.
        """
        if not has_checkpoint(self.path):
            self._manifest.forget([*_BEST_MODELS, RESULT])
            self.write_text(LOG, "")
            return State(), []
        written = (CHECKPOINT, *_BEST_MODELS, LOG)
        names = [name for name in written if name in self._manifest.checksums()]
        for name in dict.fromkeys([CHECKPOINT, *names]):
            self._manifest.check(name, self._advice)
        self.history = read_log(self.file(LOG), self._advice) if LOG in names else []
        from keras_dml._files.archives import check_zip

        try:
            check_zip(self.file(CHECKPOINT))
            with np.load(self.file(CHECKPOINT), allow_pickle=False) as saved:
                self.threads = int(saved["threads"]) or None
                fields = [field.name for field in dataclasses.fields(State)]
                state = State(**{name: saved[f"state_{name}"].item() for name in fields})
                self._tables = {
                    name.removeprefix("sampler_"): saved[name]
                    for name in saved.files
                    if name.startswith("sampler_")
                }
                count = sum(name.startswith("variable_") for name in saved.files)
                return state, [saved[f"variable_{i}"] for i in range(count)]
        except PermissionError:
            raise
        except Exception as error:  # zipfile and NumPy raise any exception
            raise DamagedError(
                f"{self.file(CHECKPOINT)} must be a checkpoint of this version"
            ) from error

    def best_model(self, encoder: str = QUERY) -> pathlib.Path:
        """Return the path of an encoder's best model.

        Raises:
            DamagedError: It is not the file that the run wrote.
        """
        advice = "Put it back, and the same command resumes the run"
        return self._manifest.check(f"{encoder}{BEST}", advice)


def _variables(model: keras.Model) -> list[keras.Variable]:
    if not model.optimizer.built:
        from experiments.evaluation.embed import strategy_of

        with strategy_of(model).scope():
            model.optimizer.build(model.trainable_variables)
    optimizers = [model.optimizer]
    if hasattr(model, "statistics_optimizer"):
        optimizers.append(model.statistics_optimizer)
    return [*model.variables, *(v for optimizer in optimizers for v in optimizer.variables)]
