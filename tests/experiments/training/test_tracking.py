"""`--log_to`: the calls of the trackers, with stand-ins and with installed packages."""

import json
import sys
import types

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


class FakeClient:
    """Stands for `mlflow.MlflowClient`."""

    calls = None

    def __init__(self, uri):
        self.calls.append(("client", uri))

    def get_experiment_by_name(self, name):
        return None

    def create_experiment(self, name):
        return "7"

    def create_run(self, experiment, tags):
        self.calls.append(("run", experiment, tags["mlflow.runName"]))
        return types.SimpleNamespace(info=types.SimpleNamespace(run_id="id1"))

    def log_param(self, *arguments):
        self.calls.append(("param", *arguments))

    def log_metric(self, *arguments, step):
        self.calls.append(("metric", *arguments, step))

    def set_terminated(self, *arguments):
        self.calls.append(("end", *arguments))


@pytest.fixture
def mlflow_calls(monkeypatch):
    FakeClient.calls = []
    monkeypatch.setitem(sys.modules, "mlflow", types.SimpleNamespace(MlflowClient=FakeClient))
    return FakeClient.calls


def test_mlflow_gets_flags_and_scores(folder, mlflow_calls):
    evaluate(folder, "mlflow:http://host")
    assert mlflow_calls == [
        ("client", "http://host"),
        ("run", "7", "a run"),
        ("param", "id1", "loss", "triplet"),
        ("param", "id1", "epochs", "2"),
        ("metric", "id1", "epoch", 1, 5),
        ("metric", "id1", "test/R_at_1", 0.25, 5),
        ("metric", "id1", "epoch", 2, 10),
        ("metric", "id1", "test/R_at_1", 0.5, 10),
        ("end", "id1", "FINISHED"),
    ]
    mlflow_calls.clear()
    # A resumed run continues the same run, and another tracker begins a new one.
    with pytest.raises(FloatingPointError):
        evaluate(folder, "mlflow:http://host", fails=True)
    assert mlflow_calls[1][0] == "metric" and mlflow_calls[-1] == ("end", "id1", "FAILED")
    mlflow_calls.clear()
    evaluate(folder, "mlflow:")
    assert mlflow_calls[:2] == [("client", None), ("run", "7", "a run")]


def test_a_failing_tracker_does_not_end_the_training(folder, mlflow_calls, monkeypatch, caplog):
    def fail(*arguments, **more):
        raise ConnectionError("unreachable")

    monkeypatch.setattr(FakeClient, "log_metric", fail)
    evaluate(folder, "mlflow:x")
    assert [record.getMessage() for record in caplog.records] == [
        "log_to=mlflow:x stopped: unreachable"
    ]
    monkeypatch.setattr(FakeClient, "create_run", fail)
    folder.file("tracker.json").unlink()
    with pytest.raises(UsageError, match="log_to must be .*unreachable"):
        evaluate(folder, "mlflow:x")


def test_a_password_in_an_address_is_not_written(folder, mlflow_calls):
    for _ in range(2):
        evaluate(folder, "mlflow:https://me:secret@host/mlflow")
    assert "secret" not in folder.file("tracker.json").read_text()
    assert sum(call[0] == "run" for call in mlflow_calls) == 1  # the second call continues the run


def test_wandb_gets_flags_and_scores(folder, monkeypatch):
    calls = []

    def init(**arguments):
        calls.append(arguments)
        return types.SimpleNamespace(
            id=arguments["id"] or "w1",
            log=lambda scores, step: calls.append((scores, step)),
            finish=lambda exit_code: calls.append(exit_code),
        )

    monkeypatch.setitem(sys.modules, "wandb", types.SimpleNamespace(init=init))
    evaluate(folder, "wandb:team/project")
    begun, first, second, ended = calls
    assert (begun["entity"], begun["project"], begun["name"]) == ("team", "project", "a run")
    assert begun["config"] == {"loss": "triplet", "epochs": "2"} and begun["id"] is None
    assert first == ({"epoch": 1, "test/R@1": 0.25}, 5) and second[1] == 10 and ended == 0
    evaluate(folder, "wandb:team/project")
    assert calls[4]["id"] == "w1" and calls[4]["resume"] == "allow"


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
def test_a_run_logs_each_evaluation(photos, tmp_path, mlflow_calls):
    output = tiny_run.finished_run(tmp_path / "run", photos, "--log_to=mlflow:somewhere")
    steps = [call[3:] for call in mlflow_calls if call[:3] == ("metric", "id1", "epoch")]
    rows = tiny_run.history(output)
    assert [value for value, _ in steps] == [row["epoch"] for row in rows] == [1, 2]
    assert [step for _, step in steps] == [row["step"] for row in rows]
    assert ("param", "id1", "backbone", "small_convnet") in mlflow_calls
    assert mlflow_calls[-1] == ("end", "id1", "FINISHED")
    # An address can contain a password.
    for name in ("flags.txt", "report.html", "model_card.md"):
        assert "somewhere" not in (output / name).read_text()


def test_another_tracker_is_a_usage_error(capsys):
    assert tiny_run.command(*tiny_run.TINY, "--log_to=tensorboard:x") == 2
    assert "log_to must be mlflow:URI or wandb:PROJECT" in capsys.readouterr().err
