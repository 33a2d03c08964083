"""A run's folder: its flags, its log, its checkpoint; written so that a kill loses nothing."""

from __future__ import annotations

import contextlib
import dataclasses
import difflib
import logging
import os
import pathlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Self, cast

import numpy as np

from experiments.embedding.checked_json import checked_text, read_checked
from experiments.embedding.fingerprint import file_sha256
from experiments.embedding.held_folder import hold
from experiments.options import RunOptions, UsageError, parse, resolved
from experiments.training.checkpoint import (
    Checkpoint,
    DamagedError,
    Records,
    State,
    read_checkpoint,
    write_checkpoint,
)
from experiments.training.run_files import (
    BEST,
    BEST_BEFORE,
    CHECKPOINT,
    CHECKPOINT_BEFORE,
    FLAGS_FILE,
    LOG,
    OF_THE_FLAGS,
    RESULT,
    has_checkpoint,
    is_readable,
    is_whole_archive,
    last_records,
    log_of_an_earlier_version,
    log_text,
)

# keras_dml brings Keras, which takes seconds: it is imported by what writes or restores, so that a
# finished run is answered at once.
if TYPE_CHECKING:
    import keras

    from experiments.training.workers import Workers

_LOGGER = logging.getLogger("experiments")


class RunFolder:
    """What a run has written so far, and where the rest goes.

    Files: `flags.txt` (resolved flags, itself a flag file), `metrics.jsonl` (one object an
    evaluation), `checkpoint.npz` (all variables of model and optimizer, the log, the SHA-256 of
    `best.keras`, the small files of the run), `checkpoint-before.npz` (the one of the epoch before,
    while the run lasts), `best.keras` and `last.keras` (embedding models), `result.json` (written
    last: the run is finished).

    All that the rest of a run depends on is checked before it is used. A damaged checkpoint is
    named, and the one before continues; of small files there is a copy in the checkpoint.

    Args:
        path: the folder; made by `open`, not before.
        flags: the resolved flags as text.
        writes: False for a worker beside the first: it leaves the folder alone, and all its
            `write_...` do nothing.

    Attributes:
        path, flags, writes: as given.
        history: the objects of `metrics.jsonl`, once `restore_checkpoint` has been called.
        threads: how many threads the checkpoint was computed with; None where it does not say.

    Raises:
        ValueError: the folder holds another run's flags (shows the difference) or files that are no
            run's, or cannot be written.
    """

    def __init__(self, path: str | os.PathLike[str], flags: str, writes: bool = True) -> None:
        self.path = pathlib.Path(path)
        self.flags = flags
        self.writes = writes
        self.history: list[dict[str, float]] = []
        self.threads: int | None = None
        self._best: str | None = None
        self._kept: dict[str, str] = {}
        self._lock: contextlib.ExitStack | None = None
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
        kept = has_checkpoint(self.path) or self.file(RESULT).is_file()
        self._unused = saved.is_file() and not kept
        if saved.is_file() or kept:
            if not self._unused:
                self._check_same()
        elif self.path.is_dir() and any(not p.name.startswith(".") for p in self.path.iterdir()):
            raise UsageError(
                "output_dir must be empty, new, or this run's own folder: it holds files that are "
                f"no run's. Received: output_dir={path!r}"
            )

    def _check_same(self) -> None:
        saved = self.file(FLAGS_FILE)
        text = saved.read_text(errors="replace") if saved.is_file() else ""
        changes = _changes(text, self.flags)
        if changes:
            # Damaged? The checkpoint has a copy, and `open` writes the file anew.
            records = last_records(self.path)
            changes = changes if records is None else _changes(records.flags, self.flags)
            if not changes:
                _LOGGER.warning("%s was damaged: written anew", saved)
        if changes and not text:
            raise UsageError(
                "output_dir must be empty, new, or this run's own folder: it lacks the run's "
                f"{FLAGS_FILE}. Received: output_dir={str(self.path)!r}"
            )
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
        """What the finished run had written; None where it has not, or can do so anew.

        Raises:
            ValueError: it is damaged, and there is no checkpoint to write it anew from.
        """
        found = read_checked(self.file(RESULT))
        if found is not None or not self.file(RESULT).is_file() or has_checkpoint(self.path):
            return found
        raise UsageError(
            f"{self.file(RESULT)} is damaged, and there is no checkpoint to write it anew from: "
            "delete it, and the same command begins anew"
        )

    @property
    def finished_text(self) -> str:
        """What to print of a finished run."""
        result = self.result or {}
        return f"{self.path} is finished:\n\n{result.get('table', '')}\n"

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
        lock = hold(self.path, "output_dir")
        try:
            self._check()
        except Exception:
            lock.close()
            raise
        self._lock = lock
        if self._unused and (self.file(FLAGS_FILE).read_text(errors="replace") != self.flags):
            for name in OF_THE_FLAGS:
                self.file(name).unlink(missing_ok=True)
        self.write_text(FLAGS_FILE, self.flags)
        return self

    def write_text(self, name: str, text: str) -> None:
        """Write a file of the run in one go."""
        if not self.writes:
            return
        from keras_dml._files.atomic import replacing

        with replacing(self.file(name)) as temporary:
            temporary.write_text(text)
        if name in OF_THE_FLAGS:
            self._kept[name] = text

    def write_json(self, name: str, value: Mapping[str, Any]) -> None:
        """Write a JSON object as a file of the run in one go, its checksum within."""
        self.write_text(name, checked_text(value))

    def read_json(self, name: str) -> dict[str, Any] | None:
        """What `write_json` wrote; None where it is missing or damaged."""
        found = read_checked(self.file(name))
        if found is not None and name in OF_THE_FLAGS:
            self._kept[name] = self.file(name).read_text()
        return found

    def write_history(self, history: Iterable[Mapping[str, float]]) -> None:
        """Write `metrics.jsonl`, one object a line."""
        self.history = [dict(row) for row in history]
        self.write_text(LOG, log_text(self.history))

    def write_result(self, result: Mapping[str, Any]) -> None:
        """Write `result.json`: the run is finished, and what only a continued one needs goes."""
        sums = {name: file_sha256(self.file(name)) for name in (BEST, LOG)}
        self.write_json(RESULT, {**result, "files": sums})
        for name in (CHECKPOINT_BEFORE, BEST_BEFORE):
            self.file(name).unlink(missing_ok=True)

    def save_checkpoint(self, model: keras.Model, state: State, threads: int | None = None) -> None:
        """Write every variable of `model` and its optimizer, and all else that a run goes on with.

        All variables by position: Keras' own weight files leave out the seeds of dropout layers,
        without which a continued run would draw other masks than one that was never stopped. The
        checkpoint before is kept, and the best model of its time.

        Args:
            model: the fitted one.
            state: how far it has come.
            threads: how many threads compute it.
        """
        if not self.writes:
            return
        from keras_dml._files.atomic import replacing

        waiting = self.best_of(state.step)
        before, self._best = self._best, file_sha256(waiting) if waiting.is_file() else self._best
        records = Records(self.flags, self.history, self._best, self._kept, threads)
        arrays = [variable.numpy() for variable in _variables(model)]
        with replacing(self.file(CHECKPOINT)) as temporary:
            with open(temporary, "w+b") as stream:
                write_checkpoint(stream, arrays, state, records)
            self._keep_before()
        self._settle_best(waiting, before)

    def _keep_before(self) -> None:
        """The checkpoint that is about to be replaced takes another name; it keeps its own too."""
        from keras_dml._files.atomic import replacing

        last, before = self.file(CHECKPOINT), self.file(CHECKPOINT_BEFORE)
        if not last.is_file():
            return
        try:
            with replacing(before) as linked:
                linked.unlink(missing_ok=True)
                os.link(last, linked)
        except OSError:  # a file system without links
            os.replace(last, before)

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
        from keras_dml._backend.cloning import finalize

        found = self._whole_checkpoint() if self.writes else None
        state = State() if found is None else found.state
        epoch, step, seconds = workers.from_first(np.array(dataclasses.astuple(state), float))
        state = State(int(epoch), int(step), float(seconds))
        model = model_at(state)
        variables = _variables(model)
        if found is not None:
            self._check_fits(found.variables, variables)
        if state.step:
            for number, variable in enumerate(variables):
                array = variable.numpy() if found is None else found.variables[number]
                variable.assign(workers.from_first(array))
            finalize(model)
        if self.writes:
            self._restore_files(found)
        return state

    def _whole_checkpoint(self) -> Checkpoint | None:
        """The last one that is whole, whose best model is there; None before the first.

        Raises:
            DamagedError: there was one, but no whole one is left.
        """
        problems: list[str] = []
        names = [name for name in (CHECKPOINT, CHECKPOINT_BEFORE) if self.file(name).is_file()]
        for name in names:
            try:
                found = read_checkpoint(self.file(name))
                self._check_rest(found)
            except DamagedError as error:
                problems.append(str(error))
                continue
            if problems:
                _LOGGER.warning(
                    "%s; the run goes on from the checkpoint before, of epoch %d",
                    "; ".join(problems),
                    found.state.epoch,
                )
            if name != CHECKPOINT:
                os.replace(self.file(name), self.file(CHECKPOINT))
            return found
        if not problems:
            return None
        raise DamagedError(
            f"{'; '.join(problems)}: nothing whole is left to go on from. Delete "
            f"{' and '.join(names)} in {self.path}, and the same command begins anew"
        )

    def _check_rest(self, found: Checkpoint) -> None:
        """DamagedError unless the log and the best model of a checkpoint are there."""
        records = found.records
        if records is None:
            rows = log_of_an_earlier_version(self.file(LOG), self.flags, found.state)
            path = self.best_of(found.state.step)
            path = path if path.is_file() else self.file(BEST)
            if rows and not is_whole_archive(path):
                raise DamagedError(f"{path} is damaged or missing")
        elif records.best is not None and self._place_of(records.best, found.state) is None:
            raise DamagedError(f"{self.file(BEST)} is missing or no longer what the run wrote")

    def _place_of(self, digest: str, state: State) -> pathlib.Path | None:
        for path in (self.file(BEST), self.best_of(state.step), self.file(BEST_BEFORE)):
            if path.is_file() and file_sha256(path) == digest:
                return path
        return None

    def _restore_files(self, found: Checkpoint | None) -> None:
        """Log, best model and small files as they were when the checkpoint was written."""
        for name in (RESULT, LOG):
            path = self.file(name)
            if found is not None and path.is_file() and not is_readable(path):
                _LOGGER.warning("%s was damaged: written anew", path)
        if found is None:
            self._drop_waiting()
            self.write_history([])
            return
        records = found.records
        if records is None:
            waiting = self.best_of(found.state.step)
            self._settle_best(waiting, None)
            self._best = file_sha256(self.file(BEST)) if self.file(BEST).is_file() else None
            self.write_history(log_of_an_earlier_version(self.file(LOG), self.flags, found.state))
            return
        self._best, self.threads = records.best, records.threads
        if records.best is not None:
            place = cast(pathlib.Path, self._place_of(records.best, found.state))
            if place == self.file(BEST_BEFORE):
                os.replace(place, self.file(BEST))
            elif place != self.file(BEST):
                self._settle_best(place, "")
        self._drop_waiting()
        for name, text in records.files.items():
            # One that is whole may only know more than it did then.
            if not self.file(name).is_file() or (
                name.endswith(".json") and read_checked(self.file(name)) is None
            ):
                _LOGGER.warning("%s was damaged: written anew", self.file(name))
            self.write_text(name, text)
        self.write_history(records.history)

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
        """Where the best model so far waits until the checkpoint of its step is written.

        So the kept model is always of an epoch that the log knows, whenever a kill comes.
        """
        return self.file(f".best-{step}.keras")

    def _settle_best(self, waiting: pathlib.Path, before: str | None) -> None:
        """The best model of the last checkpoint takes its place, if it is a new one.

        Args:
            waiting: where it is.
            before: of the one in its place; None: there is none that a checkpoint knows.
        """
        best, kept = self.file(BEST), self.file(BEST_BEFORE)
        if waiting.is_file():
            if before is not None and best.is_file():
                os.replace(best, kept)
            os.replace(waiting, best)
        elif before is not None:
            kept.unlink(missing_ok=True)
        self._drop_waiting()

    def _drop_waiting(self) -> None:
        for left_over in self.path.glob(".best-*.keras"):
            if left_over.name != BEST_BEFORE:
                left_over.unlink()

    def check_best(self) -> None:
        """DamagedError unless `best.keras` is the file that the run wrote."""
        path = self.file(BEST)
        if not path.is_file() or file_sha256(path) != self._best:
            raise DamagedError(
                f"{path} is missing or no longer what the run wrote: put it back, and the same "
                "command goes on"
            )


def _changes(saved: str, now: str) -> list[str]:
    """The lines of two flag files that only one of them has."""
    # Their order says nothing, and was another one in earlier versions.
    there, here = (sorted(_resolved_anew(flags).splitlines()) for flags in (saved, now))
    return [line for line in difflib.ndiff(there, here) if line[0] in "+-"]


def _options_of(flags: str) -> RunOptions:
    return parse(RunOptions, ["run", *flags.splitlines()])


def _resolved_anew(flags: str) -> str:
    """Resolved flags of an earlier version as this one has them: what came since, by its default.

    What this version does not take stays as it is.
    """
    try:
        return resolved(_options_of(flags))
    except UsageError:
        return flags


def _variables(model: keras.Model) -> list[keras.Variable]:
    if not model.optimizer.built:
        from experiments.embedding.table_embedder import strategy_of

        with strategy_of(model).scope():
            model.optimizer.build(model.trainable_variables)
    optimizers = [model.optimizer]
    if hasattr(model, "statistics_optimizer"):
        optimizers.append(model.statistics_optimizer)
    return [*model.variables, *(v for optimizer in optimizers for v in optimizer.variables)]
