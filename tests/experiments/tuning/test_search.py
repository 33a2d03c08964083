"""Optuna trials: resuming, sharing, and refusing another study's storage."""

import concurrent.futures
import contextlib
import pathlib
import sqlite3
import subprocess
import sys
import textwrap
import threading

import pytest

pytest.importorskip("optuna")

from experiments.options import RunError, UsageError
from experiments.tuning import search as searching
from experiments.tuning.search import Search
from experiments.tuning.space import Parameter

SPACE = (
    Parameter("learning_rate", 1e-5, 1e-3, log=True),
    Parameter("margin", 0.05, 0.5),
    Parameter("images_per_class", 2, 8, whole=True),
    Parameter("optimizer", choices=("adam", "sgd")),
)


def opened(folder, storage=None, folds=2, own=None):
    return Search(folder, storage, "one", {"folds": [f"--folds={folds}"]}, SPACE, 0, own)


def value(trial):
    return 1 - (trial.values["margin"] - 0.2) ** 2


def done(folder, total, run=value, **more):
    search = opened(folder, **more)
    search.do(total, run)
    return search


def test_values_are_within_bounds_and_the_best_trial_is_found(tmp_path):
    search = done(tmp_path / "one", 14)
    trials = search.trials()
    assert [trial.number for trial in trials] == list(range(14))
    for trial in trials:
        assert list(trial.values) == [parameter.name for parameter in SPACE]
        assert 1e-5 <= trial.values["learning_rate"] <= 1e-3
        assert 0.05 <= trial.values["margin"] <= 0.5
        assert trial.values["images_per_class"] in range(2, 9)
        assert trial.values["optimizer"] in ("adam", "sgd")
        assert trial.score == value(trial)
    assert search.best() == max(trials, key=value)
    assert len({trial.values["margin"] for trial in trials}) == 14


def test_the_first_trial_has_the_values_of_the_recipe(tmp_path):
    own = {"learning_rate": 1e-4, "optimizer": "sgd"}
    first, *others = done(tmp_path, 3, own=own).trials()
    assert {name: first.values[name] for name in own} == own
    assert set(first.values) == {parameter.name for parameter in SPACE}
    assert all(other.values["learning_rate"] != 1e-4 for other in others)


def test_a_stopped_search_resumes_identically(tmp_path):
    whole = done(tmp_path / "whole", 6).trials()
    tried = []

    def stops(trial):
        tried.append(trial)
        if len(tried) in (3, 4):
            raise (KeyboardInterrupt if len(tried) == 3 else RunError)
        return value(trial)

    for error in (KeyboardInterrupt, RunError):
        with pytest.raises(error):
            done(tmp_path / "stopped", 6, stops)
    assert [trial.number for trial in tried] == [0, 1, 2, 2]
    assert tried[2] == tried[3]  # repeated in the same folder, so that its runs resume
    stopped = done(tmp_path / "stopped", 6, stops).trials()
    assert [(each.values, each.score) for each in stopped] == [
        (each.values, each.score) for each in whole
    ]
    assert len({each.number for each in stopped}) == 6
    more = done(tmp_path / "stopped", 8, stops).trials()
    assert (len(more), more[:6]) == (8, stopped)


def test_two_searches_in_one_folder_repeat_no_trial(tmp_path):
    tried, together = [], threading.Barrier(2, timeout=60)

    def run(trial):
        if trial.number < 2:
            together.wait()  # each search has a trial
        tried.append(trial.number)
        return value(trial)

    with concurrent.futures.ThreadPoolExecutor(2) as threads:
        list(threads.map(lambda _: done(tmp_path, 5, run), range(2)))
    # Both searches can start a last trial at the same time.
    assert len(set(tried)) == len(tried) and len(tried) in (5, 6)


def test_values_that_a_run_refuses_stop_the_search_and_are_not_repeated(tmp_path):
    def refuses(trial):
        raise UsageError("batch_size must be another one")

    with pytest.raises(UsageError, match="batch_size"):
        done(tmp_path, 2, refuses)
    assert [trial.number for trial in done(tmp_path, 2).trials()] == [1, 2]


@pytest.mark.parametrize("storage", [None, "sqlite:///{}/shared.db"])
def test_a_storage_of_another_study_is_refused(storage, tmp_path):
    folder = tmp_path / "a {0} ?x=1 %20 #"  # characters of addresses
    storage = storage and storage.format(tmp_path)
    done(folder, 1, storage=storage)
    assert len(done(folder, 1, storage=storage).trials()) == 1
    argument = "storage" if storage else "output_dir"
    expected = rf"{argument} must .* study one .*\(there --folds=2, now --folds=3\)"
    with pytest.raises(UsageError, match=expected):
        opened(folder, storage=storage, folds=3)


def test_machine_specific_flags_are_not_part_of_the_study():
    found = searching.study_flags(["--dataset=glyphs", "--data_dir=/here", "--epochs=7"])
    assert "--epochs=7" in found and "--data_dir=/here" not in found


@pytest.mark.parametrize("storage", ["nothing://x/y", "sqlite:////proc/nothing/here.db", "x://"])
def test_an_unreachable_storage_is_one_line_without_its_password(storage, tmp_path):
    storage = storage.replace("//x", "//me:secret@x")
    with pytest.raises(UsageError, match="storage must be the storage of a study") as refused:
        opened(tmp_path, storage=storage)
    assert "secret" not in str(refused.value)
    assert "\n" not in str(refused.value)


def test_an_invalid_storage_file(tmp_path):
    (tmp_path / searching.FILE).write_text("thesis")
    with pytest.raises(UsageError, match="output_dir must be the storage.*not a database"):
        opened(tmp_path)
    assert (tmp_path / searching.FILE).read_text() == "thesis"


@pytest.mark.parametrize(
    "damage",
    [
        "UPDATE trial_params SET distribution_json = '{'",
        "UPDATE study_user_attributes SET value_json = '{'",
        "UPDATE trials SET state = 'DONE'",
        "UPDATE trials SET number = 'x'",
    ],
)
def test_a_damaged_storage_is_one_line_with_the_next_step(damage, tmp_path):
    done(tmp_path, 1)
    with contextlib.closing(sqlite3.connect(tmp_path / searching.FILE)) as database, database:
        database.execute(damage)
    with pytest.raises(UsageError, match=f"{searching.FILE} .*delete it: ") as refused:
        done(tmp_path, 2)
    assert "\n" not in str(refused.value)
    (tmp_path / searching.FILE).unlink()
    assert len(done(tmp_path, 1).trials()) == 1


def test_a_trial_of_a_killed_process_is_repeated(tmp_path, monkeypatch, capsys):
    """A killed process leaves a running trial without heartbeats."""
    monkeypatch.setattr(searching, "GRACE", 1)
    storage = f"sqlite:///{tmp_path}/shared.db"
    program = textwrap.dedent(f"""
        import os, pathlib, sys
        sys.path.insert(0, {str(pathlib.Path(__file__).parent)!r})
        from test_search import opened, searching
        searching.GRACE = 1
        folder = pathlib.Path({str(tmp_path / "there")!r})
        opened(folder, {storage!r}).do(2, lambda trial: os._exit(9))
    """)
    assert subprocess.run([sys.executable, "-c", program]).returncode == 9
    search = done(tmp_path / "here", 1, storage=storage)
    assert "waiting for the trials of another process" in capsys.readouterr().out
    assert [trial.number for trial in search.trials()] == [0]


def test_a_stored_trial_sets_only_searched_flags(tmp_path):
    """Otherwise, an untrusted storage could set flags of a run, such as `--trust_code`."""
    optuna = pytest.importorskip("optuna")
    search = done(tmp_path, 2)
    study = optuna.load_study(storage=f"sqlite:///{tmp_path / searching.FILE}", study_name="one")
    (first, _) = study.get_trials()
    params = {**first.params, "trust_code": "true"}
    words = optuna.distributions.CategoricalDistribution(["true", "false"])
    distributions = {**first.distributions, "trust_code": words}
    made = optuna.create_trial(params=params, distributions=distributions, value=2.0)
    study.add_trial(made)
    with pytest.raises(UsageError, match="parameters .* got trial 2 of .*trust_code"):
        search.best()
