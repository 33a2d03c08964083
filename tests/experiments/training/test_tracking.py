"""`--log_to`: the calls of the trackers, with stand-ins and with installed packages."""

import json
import sys
from unittest import mock
from unittest.mock import call

import pytest
import tiny_run

from experiments.options.errors import UsageError
from experiments.training.run_folder import RunFolder
from experiments.training.tracking import tracked
from keras_dml._common.extras import MissingExtraError

FLAGS = "--loss=triplet\n--epochs=2\n"
ROWS = [{"epoch": 1, "step": 5, "test/R@1": 0.25}, {"epoch": 2, "step": 10, "test/R@1": 0.5}]


@pytest.fixture
def folder(tmp_path):
    folder = RunFolder(tmp_path / "a run", FLAGS)
    folder.path.mkdir()
    return folder


def evaluate(folder, log_to, *, fails=False):
    """Write the rows of two evaluations, as a run does."""
    with tracked(log_to, folder):
        for number in range(len(ROWS)):
            folder.write_history(ROWS[: number + 1])
        if fails:
            raise FloatingPointError


@pytest.fixture
def client(monkeypatch):
    """Stand-in for `mlflow.MlflowClient`."""
    package = mock.MagicMock()
    monkeypatch.setitem(sys.modules, "mlflow", package)
    client = package.MlflowClient.return_value
    client.get_experiment_by_name.return_value = None
    client.create_experiment.return_value = "7"
    client.create_run.return_value.info.run_id = "id1"
    return client


def test_mlflow_gets_flags_and_scores(folder, client):
    evaluate(folder, "mlflow:https://me:secret@host")
    sys.modules["mlflow"].MlflowClient.assert_called_once_with("https://me:secret@host")
    assert "secret" not in folder.file("tracker.json").read_text()
    client.create_run.assert_called_once_with("7", tags={"mlflow.runName": "a run"})
    params = [call("id1", "loss", "triplet"), call("id1", "epochs", "2")]
    assert client.log_param.call_args_list == params
    assert client.log_metric.call_args_list == [
        call("id1", "epoch", 1, step=5),
        call("id1", "test/R_at_1", 0.25, step=5),
        call("id1", "epoch", 2, step=10),
        call("id1", "test/R_at_1", 0.5, step=10),
    ]
    client.set_terminated.assert_called_once_with("id1", "FINISHED")
    # A resumed run continues the same run, and another tracker begins a new one.
    with pytest.raises(FloatingPointError):
        evaluate(folder, "mlflow:https://me:secret@host", fails=True)
    client.set_terminated.assert_called_with("id1", "FAILED")
    assert client.create_run.call_count == 1
    evaluate(folder, "mlflow:")
    assert client.create_run.call_count == 2


def test_a_failing_tracker_does_not_end_the_training(folder, client, caplog):
    client.log_metric.side_effect = ConnectionError("unreachable")
    evaluate(folder, "mlflow:x")
    assert caplog.messages == ["log_to=mlflow:x stopped: unreachable"]
    client.create_run.side_effect = ConnectionError("unreachable")
    folder.file("tracker.json").unlink()
    with pytest.raises(UsageError, match="log_to must be .*unreachable"):
        evaluate(folder, "mlflow:x")


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
        client.log_metric.assert_any_call("id1", "epoch", row["epoch"], step=row["step"])
    client.log_param.assert_any_call("id1", "backbone", "small_convnet")
    client.set_terminated.assert_called_once_with("id1", "FINISHED")
    # An address can contain a password.
    for name in ("flags.txt", "report.html", "model_card.md"):
        assert "somewhere" not in (output / name).read_text()
