"""A search by Optuna that several processes share, and that resumes after a kill.

Optuna's heartbeats tell whether the process of a running trial is alive. After `GRACE` seconds
without a heartbeat, the trial is tried again with the same values. The new trial uses the folder of
the first one, so its finished runs count, and its interrupted run resumes.
"""

from __future__ import annotations

import contextlib
import pathlib
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np

from experiments.options import RunError, RunOptions, UsageError, one_line, parse, resolved
from experiments.options.command_words import differences
from experiments.options.held_folder import waiting_for
from experiments.tuning.space import Parameter, Trial, Value
from keras_dml._common.errors import without_passwords
from keras_dml._common.extras import needing

with needing("study", "keras-dml study --search"):
    import optuna
    import sqlalchemy
    from optuna.storages import RetryHeartbeatStaleTrialCallback
    from optuna.trial import FrozenTrial, TrialState

    # Heartbeats are experimental in Optuna.
    warnings.filterwarnings("ignore", category=optuna.exceptions.ExperimentalWarning)

FILE = "search.sqlite"
FLAGS = "flags"  # key of the identity
GRACE = 60  # seconds
_IDENTITY = "keras_dml"
# Flags that differ between machines and do not change the scores.
_NOT_OF_THE_STUDY = ("flagfile", "debug", "help", "output_dir", "data_dir", "cache_dir", "log_to")
_SQLITE_PATIENCE = 120  # seconds to wait for other processes that write


class Search:
    """The trials of one recipe, in a storage.

    Args:
        folder: Folder of the recipe.
        storage: URL of a storage that machines share. None for a file in the folder.
        name: Name of the study in the storage.
        identity: Lines of text that distinguish the search from others, by topic. The lines of
            `FLAGS` are flags of a run.
        space: The hyperparameters.
        seed: Seed of the sampler. The values of a trial follow from the seed and the trials that
            are done.
        own: Values of the first trial, instead of random ones.

    Raises:
        UsageError: The storage cannot be opened, or contains another search.
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
        self._space, self._seed = tuple(space), seed
        self._shown = without_passwords(storage) if storage else str(folder / FILE)
        self._argument = "storage" if storage else "output_dir"
        folder.mkdir(parents=True, exist_ok=True)
        optuna.logging.set_verbosity(optuna.logging.CRITICAL)
        with waiting_for(folder / ".search.lock"), self._opens(storage is None):
            self._study = self._opened(folder, storage, name)
            self._check({key: list(lines) for key, lines in identity.items()})
            trials = self._trials()
            if sorted(trial.number for trial in trials) != [*range(len(trials))]:
                raise ValueError("the numbers of its trials are damaged")
            if not trials:
                self._study.enqueue_trial(dict(own or {}))

    @contextlib.contextmanager
    def _opens(self, is_file: bool) -> Iterator[None]:
        """Raise `UsageError` if the storage is not one, or has a trial that cannot be read."""
        try:
            yield
        except UsageError:
            raise
        except Exception as error:  # database drivers and damaged values raise any exception
            why = one_line(error).partition(" (Background on this error")[0]
            again = "If it is damaged, delete it: the same command repeats the search with its runs"
            raise UsageError(
                f"{self._argument} must be the storage of a study that can be opened, but got "
                f"{self._shown} ({why[:300]}). {again if is_file else 'Set another --storage'}."
            ) from error

    def _opened(self, folder: pathlib.Path, storage: str | None, name: str) -> optuna.Study:
        file = sqlalchemy.URL.create("sqlite", database=str(folder / FILE))
        # Optuna formats the URL, so braces are doubled.
        url = storage or str(file).replace("{", "{{").replace("}", "}}")
        waits = {"connect_args": {"timeout": _SQLITE_PATIENCE}} if url.startswith("sqlite") else {}
        opened = optuna.storages.RDBStorage(
            url,
            engine_kwargs=waits,
            heartbeat_interval=max(1, GRACE // 3),
            grace_period=GRACE,
            heartbeat_stale_trial_callback=RetryHeartbeatStaleTrialCallback(),
        )
        return optuna.create_study(
            storage=opened, study_name=name, direction="maximize", load_if_exists=True
        )

    def _check(self, identity: dict[str, list[str]]) -> None:
        stored = self._study.user_attrs.get(_IDENTITY)
        if stored is None and not self._trials():
            self._study.set_user_attr(_IDENTITY, identity)
            return
        if stored and all(identity.get(key) == lines for key, lines in stored.items()):
            return  # a search of an earlier version lacks a key
        there = [line for lines in (stored or {}).values() for line in lines]
        here = [line for lines in identity.values() for line in lines]
        shown = differences(there, here) if stored else "not of keras-dml study"
        raise UsageError(
            f"{self._argument} must be new, or have a study {self._study.study_name} with these "
            f"flags, but got {self._shown} ({shown}). "
            "Set another --output_dir or --storage, or the same flags and images."
        )

    def do(self, total: int, run: Callable[[Trial], float]) -> None:
        """Run trials until `total` trials are done, in this process or in others.

        Processes that begin their last trials at the same moment can do one more each.

        Args:
            total: Number of trials, including trials of earlier calls.
            run: Returns a trial's score. An exception ends the search. A later call tries the
                values again, except after a `UsageError`.
        """

        def objective(trial: optuna.Trial) -> float:
            values = {each.name: _suggest(trial, each) for each in self._space}
            stored = self._study.trials[trial.number]
            try:
                return run(_trial(stored, values))
            except UsageError:
                raise
            except (Exception, KeyboardInterrupt):
                RetryHeartbeatStaleTrialCallback()(self._study, stored)
                raise

        waits = False
        with self._reached():
            while (done := len(self._trials(TrialState.COMPLETE))) < total:
                optuna.storages.fail_stale_trials(self._study)
                if done + len(self._trials(TrialState.RUNNING)) < total:
                    drawn = np.random.SeedSequence([self._seed, done]).generate_state(1)[0]
                    self._study.sampler = optuna.samplers.TPESampler(seed=int(drawn))
                    self._study.optimize(objective, n_trials=1)
                    continue
                if not waits:
                    print("waiting for the trials of another process", flush=True)
                    waits = True
                time.sleep(1.0)

    def trials(self) -> list[Trial]:
        """Return the trials that are done.

        Raises:
            UsageError: A trial has other parameters than the search. Parameters become flags of
                runs, and a storage can come from a stranger.
        """
        with self._reached():
            done = self._trials(TrialState.COMPLETE)
        names = {parameter.name for parameter in self._space}
        for each in done:
            if set(each.params) != names:
                found = ", ".join(map(str, each.params))
                raise UsageError(
                    f"{self._argument} must have trials of the parameters {', '.join(names)}, but "
                    f"got trial {each.number} of {found} in {self._shown}. Set another "
                    "--output_dir or --storage."
                )
        return [_trial(each, each.params, each.value) for each in done]

    def best(self) -> Trial:
        """Return the first of the trials with the highest score."""
        return max(self.trials(), key=lambda trial: (trial.score or 0.0, -trial.number))

    def _trials(self, *states: TrialState) -> list[FrozenTrial]:
        return self._study.get_trials(deepcopy=False, states=states or None)

    @contextlib.contextmanager
    def _reached(self) -> Iterator[None]:
        """Raise `RunError` if the storage cannot be reached."""
        try:
            yield
        except (sqlalchemy.exc.SQLAlchemyError, optuna.exceptions.StorageInternalError) as error:
            raise RunError(
                f"{self._argument} {self._shown} cannot be reached ({one_line(error)[:300]}); the "
                "same command resumes the search"
            ) from error


def study_flags(words: Sequence[str]) -> list[str]:
    """Return the resolved flags of a run, without flags that differ between machines."""
    return resolved(parse(RunOptions, ["study", *words]), _NOT_OF_THE_STUDY).splitlines()


def _suggest(trial: optuna.Trial, parameter: Parameter) -> Value:
    name = parameter.name
    if parameter.choices:
        return str(trial.suggest_categorical(name, parameter.choices))
    if parameter.whole:
        low, high = int(parameter.low), int(parameter.high)
        return int(trial.suggest_int(name, low, high, log=parameter.log))
    return float(trial.suggest_float(name, parameter.low, parameter.high, log=parameter.log))


def _trial(trial: FrozenTrial, values: Mapping[str, Value], score: float | None = None) -> Trial:
    """Convert Optuna's trial. A repeated trial has the number of the first one, and its folder."""
    first = RetryHeartbeatStaleTrialCallback.retried_trial_number(trial)
    return Trial(trial.number if first is None else first, dict(values), score)
