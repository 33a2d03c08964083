"""`TF_CONFIG`: the workers of a cluster, and one clear line for invalid values."""

import json
import socket

import pytest
import tensorflow as tf
from local_workers import free_ports, tf_config

from experiments import run
from experiments.options import RunOptions, UsageError, parse
from experiments.options.command_line import run_command
from experiments.training.cluster import Cluster, read_cluster
from experiments.training.devices import devices


def config(cluster, task):
    return json.dumps({"cluster": cluster, "task": task})


def test_other_strategies_ignore_tf_config(monkeypatch):
    monkeypatch.setenv("TF_CONFIG", "{")
    for strategy in ("one", "auto", "mirrored"):
        assert read_cluster(strategy) == Cluster()


def test_a_chief_comes_before_the_workers(monkeypatch):
    ports = free_ports(3)
    addresses = [f"localhost:{port}" for port in ports]
    named = {"worker": addresses[1:], "chief": addresses[:1]}
    for job, index, place in (("chief", 0, 0), ("worker", 0, 1), ("worker", 1, 2)):
        monkeypatch.setenv("TF_CONFIG", config(named, {"type": job, "index": index}))
        cluster = read_cluster("multi_worker")
        assert (cluster.index, cluster.size, cluster.first) == (place, 3, place == 0)


TWO = {"worker": ["host0:2222", "host1:2222"]}
FIRST = {"type": "worker", "index": 0}
BAD = [
    "",
    "[]",
    json.dumps({"cluster": TWO}),
    config({"worker": ["host0:70000"]}, FIRST),
    config(TWO, {"type": "chief", "index": 0}),
    config(TWO, {"type": "worker", "index": 2}),
]


@pytest.mark.parametrize("text", BAD)
def test_bad_configurations(text, monkeypatch):
    monkeypatch.setenv("TF_CONFIG", text)
    with pytest.raises(UsageError, match="TF_CONFIG must have the addresses") as raised:
        read_cluster("multi_worker")
    assert f"got {text or 'nothing'}." in str(raised.value)
    assert '{"cluster": {"worker": ["host0:2222"' in str(raised.value)


def refused(tmp_path, capsys, *arguments):
    """Return the error line of a run."""
    words = ["run", "--dataset=glyphs", f"--output_dir={tmp_path / 'run'}", *arguments]
    assert run_command(run.main, words) == 2
    err = capsys.readouterr().err
    assert err.startswith("error: ")
    assert err.count("\n") == 1
    assert not (tmp_path / "run").exists()
    return err


@pytest.mark.parametrize("task", range(3))
def test_a_slurm_job_needs_no_tf_config(monkeypatch, task):
    monkeypatch.setenv("TF_CONFIG", "")  # so that monkeypatch restores the variable
    monkeypatch.delenv("TF_CONFIG")
    variables = {
        "SLURM_PROCID": task,
        "SLURM_LOCALID": 0,
        "SLURM_STEP_NUM_TASKS": 3,
        "SLURM_STEP_NODELIST": "gpu[1-2,10]",
        "SLURM_STEP_TASKS_PER_NODE": "1(x3)",
        "SLURMD_NODENAME": ["gpu1", "gpu2", "gpu10"][task],
    }
    for name, value in variables.items():
        monkeypatch.setenv(name, str(value))
    cluster = read_cluster("multi_worker")
    assert sorted(cluster.addresses) == ["gpu10:2222", "gpu1:2222", "gpu2:2222"]
    assert cluster.addresses[cluster.index] == f"{variables['SLURMD_NODENAME']}:2222"


def test_missing_variables_of_a_slurm_job_are_named(monkeypatch, tmp_path, capsys):
    monkeypatch.delenv("TF_CONFIG", raising=False)
    monkeypatch.delenv("SLURM_PROCID", raising=False)
    monkeypatch.setenv("SLURM_STEP_NODELIST", "gpu1")
    assert "SLURM_PROCID" in refused(tmp_path, capsys, "--strategy=multi_worker")


def test_a_run_without_tf_config_ends_with_one_line(monkeypatch, tmp_path, capsys):
    monkeypatch.delenv("TF_CONFIG", raising=False)
    assert "got nothing" in refused(tmp_path, capsys, "--strategy=multi_worker")


def test_a_used_port_is_named(monkeypatch, tmp_path, capsys):
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        monkeypatch.setenv("TF_CONFIG", tf_config(0, [port, *free_ports(1)]))
        message = refused(tmp_path, capsys, "--strategy=multi_worker")
    assert "TF_CONFIG must name a free port" in message
    assert str(port) in message


@pytest.mark.skipif(bool(tf.config.list_physical_devices("GPU")), reason="there is a GPU")
def test_auto_is_one_device_without_a_gpu():
    options = parse(RunOptions, ["run", "--strategy=auto", "--batch_size=3"])
    assert devices(options) is tf.distribute.get_strategy()
