"""Start the workers of a cluster on this machine, one process each."""

import json
import socket

import processes
from processes import finish as finish


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
        processes.start(
            "-m",
            *(word.replace("@index", str(index)) for word in arguments),
            TF_CONFIG=tf_config(index, ports),
        )
        for index in range(count)
    ]
