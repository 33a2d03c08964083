"""Start the workers of a cluster on this machine, one process each."""

import json
import os
import pathlib
import socket
import subprocess
import sys

ROOT = pathlib.Path(__file__).parents[2]


def tf_config(index, ports):
    """Return `TF_CONFIG` of a worker on loopback."""
    workers = [f"127.0.0.1:{port}" for port in ports]
    return json.dumps({"cluster": {"worker": workers}, "task": {"type": "worker", "index": index}})


def free_ports(count):
    """Return free ports."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [server.getsockname()[1] for server in sockets]
    for server in sockets:
        server.close()
    return ports


def start(count, *arguments):
    """Start `python -m ...` once for each worker; `@index` stands for the worker's number."""
    ports = free_ports(count)
    return [
        subprocess.Popen(
            [sys.executable, "-m", *(word.replace("@index", str(index)) for word in arguments)],
            cwd=ROOT,
            env={**os.environ, "TF_CONFIG": tf_config(index, ports)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for index in range(count)
    ]


def finish(processes, timeout=300):
    """Return the output of each process; all must succeed within a time limit in seconds."""
    try:
        ended = [process.communicate(timeout=timeout) for process in processes]
    finally:
        for process in processes:
            process.kill()
    for process, (_, err) in zip(processes, ended):
        assert process.returncode == 0, err[-3000:]
    return [out for out, _ in ended]
