"""The processes of a cluster find each other before training, and notice when one is lost.

TensorFlow sees a lost worker within seconds while it trains, but not before all are there, and not
while one of them builds, evaluates or writes alone. So the workers keep a connection of their own,
to the first one's port of `TF_CONFIG`, opened before TensorFlow listens there: nothing but that
port needs to be reachable.
"""

from __future__ import annotations

import contextlib
import hashlib
import select
import socket
import subprocess
import time
from types import TracebackType

from experiments.options.command_line import say
from experiments.options.errors import RunError, UsageError
from experiments.training.cluster import Cluster
from experiments.training.watcher import end_watch, watch_links

__all__ = ["GRACE", "Meeting"]

# So long a worker may take to end by itself, and to say why, after another is lost.
GRACE = 8.0
_PATIENCE = 3600.0
_NOTE_EVERY = 60.0
_RETRY = 0.3
_HELLO, _WELCOME, _OTHER = b"keras_dml worker", b"keras_dml welcome", b"keras_dml another cluster"
_LENGTH = 96


class Meeting:
    """A context in which every worker of a cluster is there; for one process alone nothing happens.

    Entering returns when all have come. Where one of them ends inside without having left the
    context in peace, the others end within 30 seconds, by exit code 1 and a line that says
    who.

    Args:
        cluster: this process' place among them.

    Raises:
        UsageError: on entering, where the workers were not given the same addresses.
        RunError: on entering, where somebody does not come within an hour.
    """

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        # The first worker's: of each other one. Theirs: of the first.
        self._links: dict[int, socket.socket] = {}
        self._watcher: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Meeting:
        if self._cluster.size > 1:
            if self._cluster.first:
                print(f"worker 0 of {self._cluster.size}, waiting for the others", flush=True)
                self._gather()
            else:
                self._links[0] = self._joined()
            self._watcher = watch_links(self._links, self._cluster.addresses, GRACE)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._watcher is not None:
            end_watch(self._watcher, in_peace=kind is None)

    def _gather(self) -> None:
        host_port = self._cluster.addresses[0]
        expected = set(range(1, self._cluster.size))
        began = noted = time.monotonic()
        with socket.create_server(("", int(host_port.rpartition(":")[2]))) as server:
            server.settimeout(1.0)
            while missing := expected - self._links.keys():
                noted = self._wait(began, noted, self._named(missing))
                with contextlib.suppress(TimeoutError):
                    link, _ = server.accept()
                    self._welcome(link)
                # Somebody who came may be gone again, and come back.
                self._links = {i: link for i, link in self._links.items() if not _closed(link)}
            for link in self._links.values():
                link.sendall(_padded(_WELCOME))

    def _welcome(self, link: socket.socket) -> None:
        link.settimeout(5.0)
        try:
            hello, cluster, index = _received(link).split(b"\n")
            known = hello == _HELLO and index.isdigit() and 0 < int(index) < self._cluster.size
            if known and cluster != self._fingerprint():
                link.sendall(_padded(_OTHER))
                known = False
        except (OSError, ValueError):
            known = False
        if not known:  # not one of ours: whatever else speaks to a port
            link.close()
            return
        link.settimeout(None)
        old = self._links.pop(int(index), None)
        if old is not None:
            old.close()
        self._links[int(index)] = link

    def _joined(self) -> socket.socket:
        host, _, port = self._cluster.addresses[0].rpartition(":")
        began = noted = time.monotonic()
        hello = b"\n".join([_HELLO, self._fingerprint(), str(self._cluster.index).encode()])
        while True:
            noted = self._wait(began, noted, self._named({0}))
            try:
                link = socket.create_connection((host.strip("[]"), int(port)), timeout=5.0)
            except OSError:  # not there yet
                time.sleep(_RETRY)
                continue
            try:
                link.sendall(_padded(hello))
                while not select.select([link], [], [], 1.0)[0]:
                    noted = self._wait(began, noted, "those that worker 0 waits for")
                answer = _received(link)
            except OSError:
                answer = b""
            if answer == _WELCOME:
                link.settimeout(None)
                return link
            link.close()
            if answer == _OTHER:
                raise UsageError(
                    "TF_CONFIG must name the same workers in the same order on each. "
                    f"Received: others than worker 0's, {','.join(self._cluster.addresses)}"
                )
            # The first worker is in a run from which this one was lost, and will stop.
            time.sleep(_RETRY)

    def _named(self, workers: set[int]) -> str:
        names = [f"{index} ({self._cluster.addresses[index]})" for index in sorted(workers)]
        return f"worker {', '.join(names)}; start the same command there"

    def _wait(self, began: float, noted: float, who: str) -> float:
        """When was last noted who is waited for; says so each minute."""
        now = time.monotonic()
        if now - began > _PATIENCE:
            raise RunError(f"waited {_PATIENCE / 60:.0f} minutes for {who}")
        if now - noted < _NOTE_EVERY:
            return noted
        say(f"worker {self._cluster.index}, {now - began:.0f} s: waiting for {who}")
        return now

    def _fingerprint(self) -> bytes:
        return hashlib.sha256(",".join(self._cluster.addresses).encode()).hexdigest()[:32].encode()


def _closed(link: socket.socket) -> bool:
    try:
        return link.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT) == b""
    except BlockingIOError:
        return False
    except OSError:
        return True


def _padded(words: bytes) -> bytes:
    return words.ljust(_LENGTH)


def _received(link: socket.socket) -> bytes:
    """One message; ConnectionError where the other side ends it, or says something else."""
    found = b""
    while len(found) < _LENGTH:
        part = link.recv(_LENGTH - len(found))
        if not part:
            raise ConnectionError("no whole message")
        found += part
        if not found.startswith(_HELLO[:8]):
            raise ConnectionError("not one of ours")
    return found.rstrip()
