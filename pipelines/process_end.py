"""Lets a process end while a tf.data pipeline that calls Python is still filling its buffers.

A thread of tf.data that wants Python's lock while the interpreter shuts down never gets it, and
the interpreter waits for that thread: the process would hang, about one time in five. So at the end
the calls are first made to fail, which fills the buffers with errors at once, and the shutdown
begins when no call has come for a while.
"""

import atexit
import threading
import time
from collections.abc import Callable
from typing import TypeVar

Result = TypeVar("Result")

_QUIET = 0.5  # seconds without a call after which none is expected
_LONGEST = 5.0
_ending = threading.Event()
_last_call = [float("-inf")]


def refused_at_the_end(function: Callable[..., Result]) -> Callable[..., Result]:
    """`function`, which raises StopIteration instead once the process has begun to end."""

    def call(*arguments: object) -> Result:
        _last_call[0] = time.monotonic()
        if _ending.is_set():
            raise StopIteration
        return function(*arguments)

    return call


@atexit.register
def _wait_for_quiet() -> None:
    _ending.set()
    began = time.monotonic()
    while True:
        try:
            while (now := time.monotonic()) - _last_call[0] < _QUIET and now - began < _LONGEST:
                time.sleep(0.02)
            return
        except KeyboardInterrupt:
            pass  # it asks for what is under way
