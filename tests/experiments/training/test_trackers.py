"""`--log_to`: the calls of the trackers, with stand-ins and with installed packages."""

import json
import os
import sys
import threading
import time
from unittest import mock
from unittest.mock import call

import pytest
import tiny_run

from experiments.options.errors import UsageError
from experiments.training.run_folder import RunFolder
from experiments.training.trackers import sending_scores
from keras_dml._common.errors import ArgumentError
from keras_dml._common.extras import MissingExtraError

FLAGS = "--loss=triplet\n--epochs=2\n"
ROWS = [{"epoch": 1, "step": 5, "test/R@1": 0.25}, {"epoch": 2, "step": 10, "test/R@1": 0.5}]


@pytest.fixture
def folder(tmp_path):
    folder = RunFolder(tmp_path / "a run", FLAGS)
    folder.path.mkdir()
    return folder


def evaluate(folder, log_to, *, fails=False, seconds=20.0):
    """Write the rows of two evaluations, as a run does."""
    with sending_scores(log_to, folder, seconds):
        for number in range(len(ROWS)):
            folder.write_history(ROWS[: number + 1])
        if fails:
            raise FloatingPointError


@pytest.fixture
def client(monkeypatch):
    """Stand-in for `mlflow.MlflowClient`."""
    package = mock.MagicMock()
    monkeypatch.setitem(sys.modules, "mlflow", package)
    package.entities.Metric = package.entities.Param = lambda *values: values
    for name in ("USERNAME", "PASSWORD"):  # set, so that monkeypatch restores the environment
        monkeypatch.setenv(f"MLFLOW_TRACKING_{name}", "")
    monkeypatch.setenv("MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT", "")
    client = package.MlflowClient.return_value
    client.get_experiment_by_name.return_value = None
    client.create_experiment.return_value = "7"
    client.create_run.return_value.info.run_id = "id1"
    return client


def sent(client):
    """Return the scores that MLflow got, with their steps and without their times."""
    metrics = [call.kwargs.get("metrics", ()) for call in client.log_batch.call_args_list]
    return [(name, value, step) for batch in metrics for name, value, _, step in batch]


def test_mlflow_gets_flags_and_scores(folder, client):
    began = 1000 * time.time()
    evaluate(folder, "mlflow:https://me:s%40cret@host")
    # MLflow prints the address of a run.
    sys.modules["mlflow"].MlflowClient.assert_called_once_with("https://host")
    assert os.environ["MLFLOW_TRACKING_USERNAME"] == "me"
    assert os.environ["MLFLOW_TRACKING_PASSWORD"] == "s@cret"
    assert "cret" not in folder.file("tracker.json").read_text()
    client.create_run.assert_called_once_with("7", tags={"mlflow.runName": "a run"})
    params = [("loss", "triplet"), ("epochs", "2")]
    assert client.log_batch.call_args_list[0] == call("id1", params=params)
    assert sent(client) == [
        ("epoch", 1, 5),
        ("test/R_at_1", 0.25, 5),
        ("epoch", 2, 10),
        ("test/R_at_1", 0.5, 10),
    ]
    ((_, _, at, _), *_) = client.log_batch.call_args_list[1].kwargs["metrics"]
    assert began - 1 <= at <= 1000 * time.time()
    client.set_terminated.assert_called_once_with("id1", "FINISHED")
    # A resumed run continues the same run, and another tracker begins a new one.
    with pytest.raises(FloatingPointError):
        evaluate(folder, "mlflow:https://me:s%40cret@host", fails=True)
    client.set_terminated.assert_called_with("id1", "FAILED")
    assert client.create_run.call_count == 1
    evaluate(folder, "mlflow:")
    assert client.create_run.call_count == 2


def test_scores_that_a_tracker_refuses_are_sent_again(folder, client, caplog):
    client.log_batch.side_effect = [None, ConnectionError("unreachable"), None]
    with sending_scores("mlflow:x", folder):
        folder.write_history(ROWS[:1])
        while client.log_batch.call_count < 2:
            time.sleep(0.001)
        folder.write_history(ROWS)
    assert sent(client)[-4:] == [
        (name.replace("@", "_at_"), row[name], row["step"])
        for row in ROWS
        for name in ("epoch", "test/R@1")
    ]
    assert not caplog.messages


def test_a_failing_tracker_does_not_end_the_training(folder, client, caplog):
    error = ConnectionError("no answer of http://me:secret@host/a?token=secret")
    client.log_batch.side_effect = [None, *4 * [error]]
    evaluate(folder, "mlflow:http://me:secret@host")
    assert caplog.messages == [
        "log_to=mlflow:http://…@host did not get 2 of 2 evaluations (steps 5 to 10; all are in "
        "metrics.jsonl) and the end of the run: no answer of http://…@host/a?token=…"
    ]
    client.create_run.side_effect = error
    folder.file("tracker.json").unlink()
    with pytest.raises(UsageError, match="log_to must be .*no answer of") as refused:
        evaluate(folder, "mlflow:http://me:secret@host")
    assert "secret" not in str(refused.value)


@pytest.mark.parametrize("uri", ["http://me:sec/ret@host", "https://me:secret#@host"])
def test_a_password_that_no_client_reads_is_refused(folder, client, uri):
    with pytest.raises(ArgumentError, match="%2F") as refused:
        evaluate(folder, f"mlflow:{uri}")
    assert "sec" not in str(refused.value)


def test_a_silent_tracker_does_not_delay_the_training(folder, client, caplog):
    answers = threading.Event()
    client.log_batch.side_effect = lambda id, params=None, metrics=(): (
        None if params else answers.wait(60)
    )
    began = time.monotonic()
    with sending_scores("mlflow:x", folder, 0.3):
        for number in range(1, 2001):
            folder.watch({"step": number, "test/R@1": 0.5})
        assert time.monotonic() - began < 10
    assert time.monotonic() - began < 20
    (line,) = caplog.messages
    assert "2,000 of 2,000 evaluations (steps 1 to 2,000;" in line
    assert line.endswith("and the end of the run: no answer within 0.3 s")
    answers.set()
    # A tracker that never opens is an error before the training.
    client.get_experiment_by_name.side_effect = lambda name: time.sleep(1)
    with pytest.raises(UsageError, match=r"log_to must be .* \(no answer within 0.3 s\)"):
        evaluate(folder, "mlflow:y", seconds=0.3)


def test_wandb_gets_flags_and_scores(folder, monkeypatch):
    wandb = mock.MagicMock()
    monkeypatch.setitem(sys.modules, "wandb", wandb)
    run = wandb.init.return_value
    run.id = "w1"
    evaluate(folder, "wandb:team/project")
    given = wandb.init.call_args.kwargs
    assert (given["entity"], given["project"], given["name"]) == ("team", "project", "a run")
    assert given["config"] == {"loss": "triplet", "epochs": "2"} and given["id"] is None
    scores = [({"epoch": 1, "test/R@1": 0.25}, 5), ({"epoch": 2, "test/R@1": 0.5}, 10)]
    assert run.log.call_args_list == [call(row, step=step) for row, step in scores]
    run.finish.assert_called_once_with(exit_code=0)
    evaluate(folder, "wandb:team/project")
    given = wandb.init.call_args.kwargs
    assert given["id"] == "w1" and given["resume"] == "allow"


@pytest.mark.parametrize("name", ["mlflow", "wandb"])
def test_a_missing_package_names_its_extra(folder, name, monkeypatch):
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(MissingExtraError, match=rf"keras-dml\[{name}\]"):
        evaluate(folder, f"{name}:x")


@pytest.mark.slow
def test_mlflow_stores_the_curves_in_files(folder, tmp_path, monkeypatch):
    mlflow = pytest.importorskip("mlflow")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    uri = (tmp_path / "store").as_uri()
    evaluate(folder, f"mlflow:{uri}")
    evaluate(folder, f"mlflow:{uri}")
    client = mlflow.MlflowClient(uri)
    experiment = client.get_experiment_by_name("keras_dml").experiment_id
    (run,) = client.search_runs([experiment])
    assert run.data.params == {"loss": "triplet", "epochs": "2"}
    assert run.info.status == "FINISHED"
    points = client.get_metric_history(run.info.run_id, "test/R_at_1")
    assert {(point.step, point.value) for point in points} == {(5, 0.25), (10, 0.5)}


@pytest.mark.slow
def test_wandb_works_offline(folder, monkeypatch):
    pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    evaluate(folder, "wandb:project")
    assert json.loads(folder.file("tracker.json").read_text())["log_to"] == "wandb:project"
    assert list(folder.path.glob("wandb/offline-run-*/*.wandb"))


@pytest.mark.slow
def test_a_run_logs_each_evaluation(photos, tmp_path, client):
    output = tiny_run.finished_run(tmp_path / "run", photos, "--log_to=mlflow:somewhere")
    for row in tiny_run.history(output):
        assert ("epoch", row["epoch"], row["step"]) in sent(client)
    (params, *_) = client.log_batch.call_args_list
    assert ("backbone", "small_convnet") in params.kwargs["params"]
    client.set_terminated.assert_called_once_with("id1", "FINISHED")
    # An address can contain a password.
    for name in ("flags.txt", "report.html", "model_card.md"):
        assert "somewhere" not in (output / name).read_text()
