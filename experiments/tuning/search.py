"""A search by Optuna: trials that several processes share, and that a killed process leaves behind.

What says that a trial is at work is the lock of a file beside its runs, which the system opens when
its process ends, however it does: who finds a running trial without an owner goes on with it. Where
processes share the storage but not the folder, a sign of life in the storage stands for the lock.
"""

from __future__ import annotations

import contextlib
import difflib
import os
import pathlib
import secrets
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from experiments.embedding.held_folder import try_lock, waiting_for
from experiments.options import RunError, RunOptions, UsageError, one_line, parse, resolved
from experiments.tuning.space import Parameter, Trial, Value, without_password
from keras_dml._common.extras import needing
from keras_dml._files.atomic import replacing

with needing("study", "experiments.study --search"):
    import optuna
    import sqlalchemy
    from optuna.trial import TrialState

__all__ = ["FLAGS", "Search", "study_flags"]

FILE = "search.sqlite"
FLAGS = "flags"  # of the identity
_NOT_OF_THE_STUDY = ("flagfile", "debug", "help", "output_dir", "data_dir", "cache_dir")
_IDENTITY, _PLACE, _ALIVE = "keras_dml", "place", "alive"
# Of what happens elsewhere: how often it is looked for, said, and missed before it is given up.
_LOOK, _SAY, _GIVE_UP = 1.0, 30.0, 300.0  # seconds
_SQLITE_PATIENCE = 120  # seconds, for others that write


class Search:
    """The trials of one recipe, in a storage.

    Args:
        folder: of the recipe, which is made.
        storage: URL of the storage, of several machines; None: a file in the folder.
        name: of the study in the storage.
        identity: what makes it this search and no other: lines of text by what they are of; those
            of `FLAGS` are flags of a run.
        space: what is searched.
        seed: of what the sampler draws. What is drawn for a trial follows from it, the number of
            trials before, and what is known of them then.
        own: values that the first trial has, in place of drawn ones.

    Raises:
        UsageError: the storage cannot be opened, or holds another search.
        MissingExtraError: Optuna is not installed.
    """

    def __init__(
        self,
        folder: pathlib.Path,
        storage: str | None,
        name: str,
        identity: Mapping[str, Sequence[str]],
        space: Sequence[Parameter],
        seed: int,
        own: Mapping[str, Value] | None = None,
    ) -> None:
        self._folder, self._seed, self._own = folder, seed, dict(own or {})
        self._space = {parameter.name: _distribution(parameter) for parameter in space}
        self._seen: dict[int, tuple[object, float]] = {}
        self._called = without_password(storage) if storage else str(folder / FILE)
        self._argument = "storage" if storage else "output_dir"
        folder.mkdir(parents=True, exist_ok=True)
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        with self._alone():
            self._place = _place(folder)
            self._study = self._opened(storage, name)
            self._check({key: list(lines) for key, lines in identity.items()})

    def _opened(self, storage: str | None, name: str) -> optuna.Study:
        file = sqlalchemy.URL.create("sqlite", database=str(self._folder / FILE))
        # Optuna puts something where braces are.
        url = storage or str(file).replace("{", "{{").replace("}", "}}")
        waits = {"connect_args": {"timeout": _SQLITE_PATIENCE}} if url.startswith("sqlite") else {}
        try:
            self._storage = optuna.storages.RDBStorage(url, engine_kwargs=waits)
            return optuna.create_study(
                storage=self._storage, study_name=name, direction="maximize", load_if_exists=True
            )
        except Exception as error:  # drivers of databases raise anything
            why = one_line(error).partition(" (Background on this error")[0]
            raise UsageError(
                f"{self._argument} has no storage of a study that can be opened ({why[:300]}). "
                f"Received: {self._argument}={self._called}"
            ) from error

    def _check(self, identity: dict[str, list[str]]) -> None:
        held = self._study.user_attrs.get(_IDENTITY)
        if isinstance(held, dict) and FLAGS in held:
            held = {**held, FLAGS: study_flags(held[FLAGS])}
        if held is None and not self._study.get_trials(deepcopy=False):
            self._study.set_user_attr(_IDENTITY, identity)
            return
        if held == identity:
            return
        there = [line for lines in (held or {}).values() for line in lines]
        here = [line for lines in identity.values() for line in lines]
        shown = ", ".join(
            f"{'there' if line[0] == '-' else 'now'} {line[2:]}"
            for line in difflib.ndiff(there, here)
            if line[0] in "+-"
        )
        raise UsageError(
            f"{self._argument} holds another study of the name {self._study.study_name} "
            f"({shown if held else 'none of experiments.study'}): give another --output_dir or "
            f"--storage, or the same flags. Received: {self._argument}={self._called}"
        )

    def do(self, total: int, run: Callable[[Trial], float]) -> None:
        """Run trials until so many are done, here or elsewhere.

        Args:
            total: of them, those of earlier times too.
            run: gives a trial's score. What it raises ends this, and the trial is gone on with by
                whoever comes next; but after a UsageError it is not: its values cannot be.
        """
        while True:
            with self._reached():
                claimed = self._next(total)
            if claimed is None:
                return
            trial, lock = claimed
            with lock, self._sign_of_life(trial):
                try:
                    score = run(trial)
                except UsageError:
                    self._study.tell(trial.number, state=TrialState.FAIL, skip_if_finished=True)
                    raise
                with self._reached():
                    self._study.tell(trial.number, score, skip_if_finished=True)

    def trials(self) -> list[Trial]:
        """Return the trials that are done.

        Raises:
            UsageError: a trial has other parameters than the search. Parameters become flags of
                runs, and a storage may come from a stranger.
        """
        with self._reached():
            frozen = self._study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))
        for each in frozen:
            if set(each.params) != set(self._space):
                raise UsageError(
                    f"{self._argument} holds trial {each.number} of other parameters "
                    f"({', '.join(each.params)}) than the search ({', '.join(self._space)}): give "
                    f"another --output_dir or --storage. Received: {self._argument}={self._called}"
                )
        return [Trial(each.number, dict(each.params), each.value) for each in frozen]

    def best(self) -> Trial:
        """The first of those with the highest score."""
        return max(self.trials(), key=lambda trial: (trial.score or 0.0, -trial.number))

    def _next(self, total: int) -> tuple[Trial, contextlib.ExitStack] | None:
        """A trial to do, which is held; None when all are done."""
        said = 0.0
        while True:
            with self._alone():
                claimed = self._left_behind() or self._new(total)
            if claimed is not None:
                return claimed
            busy = self._of(TrialState.RUNNING)
            if not busy:
                return None
            if said == 0.0:
                names = ", ".join(f"{each.number} ({self._where(each)})" for each in busy)
                print(f"waiting for trial {names}", flush=True)
                said = time.monotonic()
            self._give_up_lost(busy)
            time.sleep(_LOOK)

    def _left_behind(self) -> tuple[Trial, contextlib.ExitStack] | None:
        """A trial of this folder whose process is gone."""
        for each in self._of(TrialState.RUNNING):
            if each.user_attrs.get(_PLACE) != self._place:
                continue
            lock = self._lock(each.number)
            if lock is None:
                continue
            if set(each.params) == set(self._space):
                return Trial(each.number, dict(each.params)), lock
            lock.close()  # killed while its values were drawn
            self._study.tell(each.number, state=TrialState.FAIL)
        return None

    def _new(self, total: int) -> tuple[Trial, contextlib.ExitStack] | None:
        waiting = self._of(TrialState.WAITING)
        known = self._of(TrialState.COMPLETE, TrialState.RUNNING)
        if len(known) >= total:
            return None
        if not waiting:
            # Where it is at work is said before it is: whoever is killed leaves no riddle.
            values = {} if known else self._own
            self._study.enqueue_trial(values, user_attrs={_PLACE: self._place})
        drawn = np.random.SeedSequence([self._seed, len(known)]).generate_state(1)[0]
        self._study.sampler = optuna.samplers.TPESampler(seed=int(drawn))
        asked = self._study.ask(self._space)
        if asked.user_attrs.get(_PLACE) != self._place:
            asked.set_user_attr(_PLACE, self._place)
        before = [each for each in self._of(TrialState.COMPLETE, TrialState.RUNNING)
                  if each.number < asked.number]  # fmt: skip
        if len(before) >= total:  # another machine was as fast
            self._study.tell(asked, state=TrialState.FAIL)
            return None
        lock = self._lock(asked.number)
        if lock is None:
            raise RunError(f"trial {asked.number} is in use by another running process")
        return Trial(asked.number, dict(asked.params)), lock

    def _give_up_lost(self, busy: Sequence[optuna.trial.FrozenTrial]) -> None:
        """Trials of other places that have long been silent are done again, with their values."""
        for each in busy:
            if each.user_attrs.get(_PLACE) == self._place:
                continue
            sign = each.user_attrs.get(_ALIVE)
            before, since = self._seen.setdefault(each.number, (sign, time.monotonic()))
            if before != sign:
                self._seen[each.number] = sign, time.monotonic()
            elif time.monotonic() - since > _GIVE_UP:
                print(f"trial {each.number} is lost ({self._where(each)}): again", flush=True)
                self._study.tell(each.number, state=TrialState.FAIL, skip_if_finished=True)
                whole = set(each.params) == set(self._space)
                values = each.params if whole else {}
                self._study.enqueue_trial(values, user_attrs={_PLACE: self._place})

    def _of(self, *states: TrialState) -> list[optuna.trial.FrozenTrial]:
        return self._study.get_trials(deepcopy=False, states=states)

    def _where(self, trial: optuna.trial.FrozenTrial) -> str:
        place = trial.user_attrs.get(_PLACE, "nowhere")
        return "another process here" if place == self._place else place.rpartition("#")[0]

    def _lock(self, number: int) -> contextlib.ExitStack | None:
        return try_lock(self._folder / f".trial-{number}.lock")

    def _alone(self) -> contextlib.AbstractContextManager[object]:
        """While one process chooses its trial, the others of this folder wait."""
        return waiting_for(self._folder / ".search.lock")

    @contextlib.contextmanager
    def _sign_of_life(self, trial: Trial) -> Iterator[None]:
        """For processes elsewhere, which do not see the lock."""
        ended = threading.Event()

        def sign() -> None:
            storage, count = self._storage, 0
            while not ended.wait(_SAY):
                count += 1
                with contextlib.suppress(Exception):  # the trial itself says what is wrong
                    study = storage.get_study_id_from_name(self._study.study_name)
                    held = storage.get_trial_id_from_study_id_trial_number(study, trial.number)
                    storage.set_trial_user_attr(held, _ALIVE, f"{os.getpid()} {count}")

        thread = threading.Thread(target=sign, daemon=True)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()

    @contextlib.contextmanager
    def _reached(self) -> Iterator[None]:
        """RunError where the storage is not."""
        try:
            yield
        except (sqlalchemy.exc.SQLAlchemyError, optuna.exceptions.StorageInternalError) as error:
            raise RunError(
                f"{self._argument} {self._called} cannot be reached ({one_line(error)[:300]}); the "
                "same command goes on where it stopped"
            ) from error


def study_flags(words: Sequence[str]) -> list[str]:
    """Flags of a run as this version resolves them: what came since, by its default.

    Without those that say where things lie on one machine. What this version does not take stays.
    """
    try:
        return resolved(parse(RunOptions, ["study", *words]), _NOT_OF_THE_STUDY).splitlines()
    except UsageError:
        return list(words)


def _distribution(parameter: Parameter) -> optuna.distributions.BaseDistribution:
    if parameter.choices:
        return optuna.distributions.CategoricalDistribution(parameter.choices)
    bounds: dict[str, Any] = {"low": parameter.low, "high": parameter.high, "log": parameter.log}
    if not parameter.whole:
        return optuna.distributions.FloatDistribution(**bounds)
    return optuna.distributions.IntDistribution(**bounds)


def _place(folder: pathlib.Path) -> str:
    """What this folder is called in a storage: by others who see it, the same."""
    file = folder / ".place"
    if not file.is_file():
        with replacing(file) as unfinished:
            unfinished.write_text(
                f"{socket.gethostname()}:{folder.absolute()}#{secrets.token_hex(8)}"
            )
    return file.read_text()
