"""Two workers give the result of one process, also after `kill -9`; `TF_CONFIG` and Slurm."""

import json
import os
import socket
import time
from types import SimpleNamespace

import local_workers
import numpy as np
import pytest
import tensorflow as tf
import tiers
from local_workers import free_ports, tf_config
from tiny_run import (
    TINY_GLYPHS,
    assert_same_runs,
    command,
    final_weights,
    finish,
    history,
    kill_when,
)
from tiny_run import start as start_run

from experiments.options import RunOptions, UsageError, parse
from experiments.training.cluster import Cluster, naming_missing_workers, read_cluster
from experiments.training.devices import devices

TINY = [*TINY_GLYPHS, "--dropout=0.5", "--optimizer=adam", "--deterministic"]
TINY += ["--epochs=4", "--steps_per_epoch=3", "--eval_every=2"]


def start(folder, *more):
    words = ["experiments.run", *TINY, "--strategy=multi_worker", f"--output_dir={folder}"]
    return local_workers.start(2, *words, *more)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "whole"
    first, second = local_workers.finish(start(folder))
    assert "report.html" in first
    assert second == ""
    return folder


@pytest.mark.slow
def test_two_workers_give_the_result_of_one_process(whole, tmp_path):
    alone = tmp_path / "alone"
    assert command(*TINY, f"--output_dir={alone}") == 0
    expected, found = final_weights(alone), final_weights(whole)
    for name, array in expected.items():
        largest = max(np.abs(array).max(), 1e-3)
        np.testing.assert_allclose(found[name], array, atol=1e-5 * largest, err_msg=name)
    arrays = [np.load(folder / "test_embeddings.npz")["embeddings"] for folder in (whole, alone)]
    assert arrays[0].shape == (132, 8)
    np.testing.assert_allclose(*arrays, rtol=1e-4, atol=1e-5)
    for ours, theirs in zip(history(whole), history(alone)):
        assert ours["train/loss"] == pytest.approx(theirs["train/loss"], rel=1e-5)
    kept = [{path.name for path in folder.iterdir()} for folder in (whole, alone)]
    assert kept[0] == kept[1]


@tiers.thorough
def test_workers_and_devices_train_on_the_same_hard_classes(tmp_path):
    more = ["--sampler=hard_classes", "--images_per_class=2", "--hardness=1"]
    several, alone, mirrored = (tmp_path / name for name in ("several", "alone", "mirrored"))
    local_workers.finish(start(several, *more))
    assert command(*TINY, *more, f"--output_dir={alone}") == 0
    devices_of = ["--strategy=mirrored", "--logical_devices=2", f"--output_dir={mirrored}"]
    finish(start_run("experiments.run", *TINY, *more, *devices_of))
    tables = [np.load(each / "checkpoint.npz") for each in (alone, several, mirrored)]
    assert tables[0]["sampler_first_steps"].tolist() == [0, 3, 6, 9]
    for each in tables[1:]:
        np.testing.assert_array_equal(each["sampler_neighbors"], tables[0]["sampler_neighbors"])
    for folder in (several, mirrored):
        for ours, theirs in zip(history(folder), history(alone)):
            assert ours["train/loss"] == pytest.approx(theirs["train/loss"], rel=1e-5)


@tiers.thorough
@pytest.mark.parametrize("victim", [0, 1])
def test_a_run_resumes_identically_after_a_worker_is_killed(whole, tmp_path, victim):
    folder = tmp_path / "killed"
    processes = start(folder)
    kill_when((folder / "checkpoint.npz").is_file, processes[victim], folder)
    _, err = processes[1 - victim].communicate(timeout=300)
    assert processes[1 - victim].returncode == 1
    assert "stopped: another worker is gone" in err and "Traceback" not in err

    first, _ = local_workers.finish(start(folder))
    assert "continued after epoch" in first
    assert_same_runs(whole, folder)


@tiers.thorough
def test_each_worker_names_flags_that_differ(tmp_path):
    for process in start(tmp_path / "run", "--seed=@index"):
        _, err = process.communicate(timeout=300)
        assert process.returncode == 2
        assert "error: flags must be the same on all workers" in err
    assert not (tmp_path / "run").exists()


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
    assert f"got {text}." in str(raised.value)
    assert '{"cluster": {"worker": ["host0:2222"' in str(raised.value)


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


def test_a_missing_variable_of_a_slurm_job_is_named(monkeypatch):
    for name in ("TF_CONFIG", "SLURM_PROCID"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("SLURM_STEP_NODELIST", "gpu1")
    with pytest.raises(UsageError, match="SLURM_PROCID"):
        read_cluster("multi_worker")


def test_workers_are_not_reached_through_a_proxy(monkeypatch):
    """gRPC sends every connection to `http_proxy` that `no_proxy` does not exclude."""
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    monkeypatch.setenv("no_proxy", "intranet")
    monkeypatch.delenv("no_grpc_proxy", raising=False)
    own, other = free_ports(2)
    workers = [f"127.0.0.1:{own}", f"host1:{other}", f"[::1]:{other}"]
    task = {"type": "worker", "index": 0}
    monkeypatch.setenv("TF_CONFIG", json.dumps({"cluster": {"worker": workers}, "task": task}))
    read_cluster("multi_worker")
    assert os.environ["no_proxy"] == "intranet,127.0.0.1,host1,::1"
    monkeypatch.delenv("no_proxy")
    monkeypatch.setenv("NO_PROXY", "elsewhere")
    read_cluster("multi_worker")
    assert os.environ["no_proxy"].startswith("elsewhere,127.0.0.1")
    assert "no_grpc_proxy" not in os.environ


def test_a_missing_worker_is_named(caplog):
    with socket.create_server(("127.0.0.1", 0)) as server:
        there, missing = server.getsockname()[1], free_ports(1)[0]
        addresses = ["host0:1", f"127.0.0.1:{there}", f"127.0.0.1:{missing}"]
        with naming_missing_workers(Cluster(0, tuple(addresses)), patience=0.05):
            for _ in range(100):
                if caplog.records:
                    break
                time.sleep(0.05)
    assert caplog.records[0].getMessage() == f"waiting for 127.0.0.1:{missing}"


def test_a_used_port_is_named(monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        monkeypatch.setenv("TF_CONFIG", tf_config(0, [port, *free_ports(1)]))
        with pytest.raises(UsageError, match=f"TF_CONFIG must name a free port .*{port}"):
            read_cluster("multi_worker")


@pytest.mark.skipif(bool(tf.config.list_physical_devices("GPU")), reason="there is a GPU")
def test_auto_is_one_device_without_a_gpu():
    options = parse(RunOptions, ["run", "--strategy=auto", "--batch_size=3"])
    assert devices(options) is tf.distribute.get_strategy()


@pytest.mark.parametrize(
    ("gpus", "batch_size", "used"), [(2, 6, 2), (8, 60, 6), (4, 7, 1), (1, 6, 1)]
)
def test_auto_takes_the_most_gpus_that_divide_the_batch(
    gpus, batch_size, used, monkeypatch, capsys
):
    """The list of GPUs is faked, and the strategy receives the names of the GPUs."""
    found = [SimpleNamespace(name=f"/device:GPU:{number}") for number in range(gpus)]
    monkeypatch.setattr(tf.config, "list_physical_devices", lambda kind=None: found)
    monkeypatch.setattr(tf.config, "list_logical_devices", lambda kind=None: found)
    monkeypatch.setattr(tf.config.experimental, "set_memory_growth", lambda *_: None)
    taken = []

    def mirrored(names):
        taken.extend(names)
        return SimpleNamespace(num_replicas_in_sync=len(names))

    monkeypatch.setattr(tf.distribute, "MirroredStrategy", mirrored)
    devices(parse(RunOptions, ["run", f"--batch_size={batch_size}"]))
    assert taken == [each.name for each in found[:used] if used > 1]
    said = capsys.readouterr().out
    assert (f"training on {used} of {gpus} GPUs" in said) == (gpus > 1)
