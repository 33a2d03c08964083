"""Workers find each other, and notice when one is lost: small processes without TensorFlow."""

import socket
import subprocess
import sys
import time

import local_workers
import pytest

WORKER = """
import sys, time
from experiments.options.command_line import run_command
from experiments.training import meeting
from experiments.training.cluster import Cluster

def main(argv):
    index, addresses = int(argv[1]), tuple(argv[3].split(","))
    with meeting.Meeting(Cluster(index, addresses)):
        print("met", flush=True)
        if argv[2] == "fail":
            raise RuntimeError("broken")
        time.sleep({"done": 0, "late": 1.0}.get(argv[2], 60))
    if argv[2] == "done":
        time.sleep(0.5)

meeting.GRACE, meeting._RETRY, meeting._NOTE_EVERY = 0.3, 0.05, 0.5
sys.exit(run_command(main))
"""


def addresses(count):
    return [f"127.0.0.1:{port}" for port in local_workers.free_ports(count)]


def start(index, what, where):
    return subprocess.Popen(
        [sys.executable, "-c", WORKER, str(index), what, ",".join(where)],
        cwd=local_workers.ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def ended(process):
    try:
        out, err = process.communicate(timeout=30)
    finally:
        process.kill()
    return process.returncode, out, err


@pytest.mark.slow
def test_they_meet_and_leave_in_peace_whenever_each_is_done():
    where = addresses(3)
    processes = [start(*worker, where) for worker in ((1, "done"), (2, "late"), (0, "done"))]
    for code, out, err in map(ended, processes):
        assert (code, err) == (0, "")
        assert "met" in out


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("victim", [0, 2])
def test_when_one_is_killed_the_others_end_and_say_who(victim):
    where = addresses(3)
    processes = [start(index, "stay", where) for index in range(3)]
    for process in processes:
        while process.stdout.readline() not in ("met\n", ""):
            pass
    processes.pop(victim).kill()
    for code, _, err in map(ended, processes):
        assert code == 1
        assert f"stopped: worker {victim} ({where[victim]}) is gone; the same command" in err


@pytest.mark.slow
def test_when_one_fails_the_others_end():
    where = addresses(2)
    first, second = start(0, "stay", where), start(1, "fail", where)
    assert "RuntimeError: broken" in ended(second)[2]
    code, _, err = ended(first)
    assert (code, "stopped: worker 1" in err) == (1, True)


@pytest.mark.slow
def test_who_is_waited_for_is_said_and_who_comes_again_is_welcome():
    where = addresses(3)
    first, second = start(0, "done", where), start(1, "stay", where)
    said = first.stderr.readline()
    assert "waiting for worker " in said
    assert f"2 ({where[2]}); start the same command there" in said
    second.kill()
    others = [start(1, "done", where), start(2, "done", where)]
    assert [ended(process)[0] for process in (first, *others)] == [0, 0, 0]


@pytest.mark.slow
def test_others_that_speak_to_the_port_are_not_taken_for_workers():
    where = addresses(2)
    first = start(0, "done", where)
    host, _, port = where[0].rpartition(":")
    for words in (b"GET / HTTP/1.1\r\n\r\n", b"keras_dml worker\nx\n7".ljust(96), b""):
        for _ in range(100):
            try:
                stranger = socket.create_connection((host, int(port)))
                break
            except OSError:
                time.sleep(0.05)
        stranger.sendall(words)
        stranger.close()
    assert ended(start(1, "done", where))[0] == 0
    assert ended(first)[0] == 0


@pytest.mark.slow
def test_workers_of_another_list_are_refused():
    where = addresses(3)
    first, other = start(0, "done", where[:2]), start(1, "done", [where[0], where[2]])
    code, _, err = ended(other)
    assert code == 2
    assert "error: TF_CONFIG must name the same workers in the same order on each" in err
    assert ended(start(1, "done", where[:2]))[0] == 0
    assert ended(first)[0] == 0


@pytest.mark.slow
def test_a_worker_of_a_run_that_goes_on_without_it_waits():
    where = addresses(2)
    with socket.create_server(("127.0.0.1", int(where[0].rpartition(":")[2]))) as server:
        late = start(1, "done", where)
        link, _ = server.accept()
        link.sendall(b"\0\0\x18\4\0\0\0\0\0")  # what TensorFlow's own server says first
        assert "worker 1, " in late.stderr.readline()
        link.close()
    first = start(0, "done", where)
    assert [ended(first)[0], ended(late)[0]] == [0, 0]
