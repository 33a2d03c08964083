"""Which processes train together: `TF_CONFIG`, read and checked before TensorFlow is started."""

import dataclasses
import json
import os
import re
import socket

from experiments.options.errors import UsageError

EXAMPLE = (
    '{"cluster": {"worker": ["host0:2222", "host1:2222"]}, "task": {"type": "worker", "index": 0}}'
)
_JOBS = ("chief", "worker")


@dataclasses.dataclass(frozen=True)
class Cluster:
    """The place of this process among those that train together; the first is in charge.

    Attributes:
        index: of this process, from 0.
        addresses: host:port of each; of one process alone nothing.
    """

    index: int = 0
    addresses: tuple[str, ...] = ()

    @property
    def size(self) -> int:
        """How many processes there are."""
        return max(len(self.addresses), 1)

    @property
    def first(self) -> bool:
        """Whether this process prints, and writes the run's folder."""
        return self.index == 0


def read_cluster(strategy: str) -> Cluster:
    """The cluster that `TF_CONFIG` describes; for any strategy but multi_worker this process alone.

    Raises:
        ValueError: `TF_CONFIG` is not there, cannot be parsed, does not say which worker this is,
            or names a port of this machine that is taken.
    """
    if strategy != "multi_worker":
        return Cluster()
    text = os.environ.get("TF_CONFIG", "")
    try:
        config = json.loads(text)
    except ValueError as error:
        raise _wrong("must be JSON" if text else "must be set", text) from error
    cluster = config.get("cluster") if isinstance(config, dict) else None
    if not isinstance(cluster, dict) or not any(cluster.get(job) for job in _JOBS):
        raise _wrong("must hold cluster with the addresses of all workers", text)
    for job, addresses in cluster.items():
        if job not in _JOBS:
            raise _wrong(f"must have no tasks in its cluster but chief and worker, not {job}", text)
        if not isinstance(addresses, list) or not all(map(is_address, addresses)):
            raise _wrong(f"must give cluster.{job} as a list of host:port", text)
    addresses = [address for job in _JOBS for address in cluster.get(job, [])]
    if len(set(addresses)) < len(addresses) or len(cluster.get("chief", [])) > 1:
        raise _wrong("must give every worker an address of its own, and have one chief", text)
    task = config.get("task")
    job, index = (task.get("type"), task.get("index")) if isinstance(task, dict) else (None, None)
    if job not in cluster:
        raise _wrong(f"must hold task with type {' or '.join(cluster)}", text)
    if isinstance(index, bool) or not isinstance(index, int):
        raise _wrong("must hold task with a number as index", text)
    if not 0 <= index < len(cluster[job]):
        raise _wrong(f"must have task.index below {len(cluster[job])}", text)
    own = cluster[job][index]
    _check_free(own, text)
    return Cluster(addresses.index(own), tuple(addresses))


def _wrong(what: str, text: str) -> UsageError:
    return UsageError(
        f"TF_CONFIG {what} for --strategy=multi_worker, such as {EXAMPLE} with another index on "
        f"each worker. Received: TF_CONFIG={text or 'nothing'}"
    )


def is_address(address: object) -> bool:
    """Whether it is host:port."""
    match = re.fullmatch(r"\S+:(\d+)", address) if isinstance(address, str) else None
    return match is not None and 0 < int(match[1]) < 2**16


def _check_free(address: str, text: str) -> None:
    # TensorFlow would share a port with another server that allows it, and then hang.
    port = int(address.rpartition(":")[2])
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as server:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            server.bind(("", port))
        except OSError as error:
            raise UsageError(
                f"TF_CONFIG must give this worker a free port of its machine: {port} cannot be "
                f"used ({error.strerror}). Received: TF_CONFIG={text}"
            ) from error
