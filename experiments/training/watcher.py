"""Ends a worker whose run has lost another: a small process beside each worker of a cluster.

Not a thread: TensorFlow holds Python's lock while it waits for a worker that may never come. The
process holds the connections, and its input is a pipe from the worker: when the worker is killed
the pipe ends, then this process, then its connections, and so the others know.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import selectors
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence

from experiments.options.child import child_command, child_environment
from experiments.options.command_line import lost_worker, say

__all__ = ["end_watch", "watch_links"]

# A machine that is gone without a word is noticed after 5 + 3 · 4 seconds.
_KEEP_ALIVE = {"IDLE": 5, "INTVL": 4, "CNT": 3}
_DONE, _FAILED, _LOST = b"d", b"f", b"l"


def watch_links(
    links: Mapping[int, socket.socket], addresses: Sequence[str], grace: float
) -> subprocess.Popen[bytes]:
    """Start watching; the sockets are closed here.

    Args:
        links: connections to other workers, by their places.
        addresses: of all workers.
        grace: how many seconds a worker may take to end by itself after another is lost.

    Returns:
        the process, which `end_watch` ends.
    """
    for link in links.values():
        link.setblocking(True)
        link.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in _KEEP_ALIVE.items():
            option = getattr(socket, f"TCP_KEEP{name}", None)  # Linux has all three
            if option is not None:
                link.setsockopt(socket.IPPROTO_TCP, option, value)
    # From the signal, `_exit(1)`, in C: Python's own handlers run when nothing holds its lock.
    libc = ctypes.CDLL(None)
    libc.signal(int(signal.SIGHUP), libc._exit)
    numbers = [f"{index}={link.fileno()}" for index, link in links.items()]
    process = subprocess.Popen(
        child_command("experiments.training.watcher", ",".join(addresses), str(grace), *numbers),
        env=child_environment(),
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        pass_fds=[link.fileno() for link in links.values()],
    )
    for link in links.values():
        link.close()
    return process


def end_watch(process: subprocess.Popen[bytes], in_peace: bool) -> None:
    """Stop watching; unless this is in peace the other workers will end."""
    with contextlib.suppress(OSError):  # it may have ended
        process.communicate(_DONE if in_peace else _FAILED)


def _watch(links: Mapping[int, socket.socket], addresses: Sequence[str], grace: float) -> None:
    with selectors.DefaultSelector() as selector:
        selector.register(sys.stdin.fileno(), selectors.EVENT_READ)
        for index, link in links.items():
            selector.register(link, selectors.EVENT_READ, index)
        while True:
            for key, _ in selector.select():
                if key.data is None:
                    _send(links, os.read(sys.stdin.fileno(), 1))
                    return
                lost = _lost(links[key.data], key.data, len(addresses))
                if lost is None:
                    selector.unregister(key.fileobj)
                    continue
                others = {index: link for index, link in links.items() if index != lost}
                _send(others, _LOST + lost.to_bytes(4, "big"))
                if not _ends_by_itself(grace):
                    say(lost_worker(f"worker {lost} ({addresses[lost]})"))
                    os.kill(os.getppid(), signal.SIGHUP)
                return


def _send(links: Mapping[int, socket.socket], word: bytes) -> None:
    for link in links.values():
        with contextlib.suppress(OSError):
            link.sendall(word)


def _lost(link: socket.socket, index: int, size: int) -> int | None:
    """The worker that is lost, by what came from one; None if that one is done."""
    try:
        word = link.recv(5)
    except OSError:
        word = b""
    if word[:1] == _DONE:
        return None
    told = int.from_bytes(word[1:], "big")
    return told if word[:1] == _LOST and len(word) == 5 and told < size else index


def _ends_by_itself(grace: float) -> bool:
    """Whether the worker does: TensorFlow may tell it what is lost, too."""
    with selectors.DefaultSelector() as selector:
        selector.register(sys.stdin.fileno(), selectors.EVENT_READ)
        return bool(selector.select(grace))


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # of the terminal: the worker decides
    held = (word.partition("=") for word in sys.argv[3:])
    _watch(
        {int(index): socket.socket(fileno=int(number)) for index, _, number in held},
        sys.argv[1].split(","),
        float(sys.argv[2]),
    )
