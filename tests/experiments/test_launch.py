"""`experiments.launch`: which workers a machine starts, and what becomes of them."""

import os
import pathlib
import re
import shlex
import signal
import socket
import subprocess
import sys
import time

import local_workers
import pytest

from experiments import launch
from experiments.launch import own_indices, worker_addresses
from experiments.options import parse, run_command

ROOT = pathlib.Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def no_engine(monkeypatch):
    for name in (*launch.INDEX_VARIABLES, "SLURM_JOB_NODELIST"):
        monkeypatch.delenv(name, raising=False)


def test_hosts_have_a_port_each():
    assert worker_addresses(["a", "b:7"]) == [f"a:{launch.DEFAULT_PORT}", "b:7"]


def test_which_of_the_hosts_this_machine_is(monkeypatch):
    addresses = ["localhost:1", "elsewhere:1", f"{socket.gethostname()}:2", "127.0.0.1:3"]
    assert own_indices(addresses, None) == [0, 2, 3]
    assert own_indices(addresses, 1) == [1]
    for variable in launch.INDEX_VARIABLES:
        with monkeypatch.context() as patch:
            patch.setenv(variable, "1")
            assert own_indices(addresses, None) == [1]
            assert own_indices(addresses, 2) == [2]


def test_the_hosts_of_a_slurm_job(monkeypatch, tmp_path):
    program = tmp_path / "scontrol"
    program.write_text('#!/bin/sh\nset "$3"\nfor i in 0 1; do echo "${1%%\\[*}$i"; done\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setenv("SLURM_JOB_NODELIST", "gpu[0-1]")
    assert worker_addresses(["slurm"]) == ["gpu0:2222", "gpu1:2222"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "hosts must name the machines"),
        (["--hosts=a,a"], "hosts must differ.*Received: hosts=a,a"),
        (["--hosts=a:b"], "hosts must be host or host:port, each. Received: a:b"),
        (["--hosts=slurm"], "hosts=slurm is for a Slurm job"),
        (["--hosts=nowhere.invalid"], "index must say which of the hosts this machine is"),
        (["--hosts=a,b", "--index=2"], "index must be below the number of hosts, 2.*index=2"),
        (["--hosts=a,b", "--strategy=auto"], "strategy of several machines is multi_worker"),
        (["--hosts=a,b", "--recipe=x"], "recipe"),
    ],
)
def test_bad_input(words, message, capsys):
    assert run_command(launch.main, ["launch", *words]) == 2
    assert re.search(message, capsys.readouterr().err)


class _Child:
    """What a worker's process does, in the order of its starts."""

    def __init__(self, codes):
        self.codes, self.started = list(codes), []

    def __call__(self, command, env):
        self.started.append((command, env["TF_CONFIG"]))
        code = self.codes.pop(0)
        return type("Process", (), {"poll": lambda _: code, "terminate": None, "wait": None})()


@pytest.fixture
def children(monkeypatch):
    def give(*codes):
        child = _Child(codes)
        monkeypatch.setattr(launch.subprocess, "Popen", child)
        monkeypatch.setattr(launch, "_LONGEST_WAIT", 0.0)
        monkeypatch.setattr(launch, "_POLL", 0.0)
        return child

    return give


WORDS = ["launch", "--hosts=localhost:1,elsewhere:1", "--flagfile=glyphs.flags", "--epochs=3"]


def test_a_worker_that_dies_is_started_again_with_the_same_words(children, capsys):
    child = children(-9, 1, 0)
    assert run_command(launch.main, WORDS) == 0
    assert len(child.started) == 3
    assert len(set(map(str, child.started))) == 1
    command, config = child.started[0]
    assert command[-3:] == ["--flagfile=glyphs.flags", "--epochs=3", "--strategy=multi_worker"]
    assert config == (
        '{"cluster": {"worker": ["localhost:1", "elsewhere:1"]}, '
        '"task": {"type": "worker", "index": 0}}'
    )
    said = capsys.readouterr().out
    assert "worker 0 killed by signal 9; started again in 0 s, 1 of 20" in said
    assert "worker 0 ended with code 1; started again in 0 s, 2 of 20" in said


@pytest.mark.parametrize(
    ("codes", "expected", "message"),
    [
        ([2], 2, "worker 0 ended with code 2; what it said is above"),
        ([130], 130, "interrupted"),
        ([1, 1, -9], 1, "stopped: worker 0 killed by signal 9, after 2 restarts"),
    ],
)
def test_when_a_worker_is_given_up(children, capsys, codes, expected, message):
    children(*codes)
    assert run_command(launch.main, [*WORDS, "--restarts=2"]) == expected
    assert message in capsys.readouterr().err


def _block(language, containing):
    """A block of the guide."""
    guide = (ROOT / "docs/pages/guides/devices.md").read_text(encoding="utf-8")
    blocks = re.findall(rf"```{language}\n(.*?)```", guide, re.DOTALL)
    (found,) = [block for block in blocks if containing in block]
    return found


def test_the_kubernetes_job_of_the_documentation(monkeypatch):
    yaml = pytest.importorskip("yaml")
    service, job = yaml.safe_load_all(_block("yaml", "kind: Job"))
    pod = job["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    words = container["command"] + container["args"]
    assert words[:3] == ["python", "-m", "experiments.launch"]
    options = parse(launch.LaunchOptions, words[2:])
    addresses = worker_addresses(options.hosts)
    for index in range(job["spec"]["completions"]):
        monkeypatch.setenv("JOB_COMPLETION_INDEX", str(index))
        assert own_indices(addresses, options.index) == [index]
        # A pod's name in its service: the job's and its index.
        name = f"{job['metadata']['name']}-{index}.{pod['subdomain']}"
        assert addresses[index] == f"{name}:{launch.DEFAULT_PORT}"
    assert pod["subdomain"] == service["metadata"]["name"]


def test_the_slurm_job_of_the_documentation(tmp_path):
    script = _block("sh", "#SBATCH")
    lines = script.replace("\\\n", " ").splitlines()
    (command,) = [shlex.split(line) for line in lines if line.startswith("srun")]
    assert command[1:4] == ["python", "-m", "experiments.launch"]
    assert parse(launch.LaunchOptions, command[3:]).hosts == ("slurm",)
    subprocess.run(["bash", "-n"], input=script, text=True, check=True)


@pytest.mark.slow
@pytest.mark.thorough
def test_a_killed_worker_comes_back_and_the_run_ends(tmp_path):
    ports = local_workers.free_ports(2)
    folder = tmp_path / "run"
    words = [
        *("--dataset=glyphs", "--train_classes=8", "--test_classes=4", "--image_size=16"),
        *("--resize=18", "--crop=fixed", "--batch_size=8", "--backbone=small_convnet"),
        *("--filters=8", "--weights=none", "--frozen_batch_norm", "--embedding_size=8"),
        *("--loss=contrastive", "--epochs=3", "--steps_per_epoch=3", "--recall_at=1"),
    ]
    hosts = ",".join(f"localhost:{port}" for port in ports)
    command = [sys.executable, "-m", "experiments.launch", f"--hosts={hosts}", *words]
    launcher = subprocess.Popen(
        [*command, f"--output_dir={folder}"],
        cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        deadline = time.monotonic() + 120
        while not (folder / "checkpoint.npz").is_file() and time.monotonic() < deadline:
            time.sleep(0.01)
        children = pathlib.Path(f"/proc/{launcher.pid}/task/{launcher.pid}/children")
        os.kill(int(children.read_text().split()[1]), signal.SIGKILL)
        out, err = launcher.communicate(timeout=200)
    finally:
        launcher.kill()
    assert launcher.returncode == 0, err
    assert "worker 1 killed by signal 9; started again" in out
    assert "continued after epoch" in out
    assert (folder / "result.json").is_file()
