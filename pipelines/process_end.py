"""Process exit while tf.data pipelines that call Python still fill their buffers.

A tf.data thread that waits for Python's lock during interpreter shutdown never gets it, and the
interpreter waits for the thread, so about one process in five would hang. At exit, calls therefore
raise an error. This fills the buffers with errors immediately. The shutdown continues after a short
time without calls.
"""

import atexit
import threading
import time
from collections.abc import Callable
from typing import TypeVar

Result = TypeVar("Result")

_QUIET = 0.5  # seconds without a call, after which no further call is expected
_LONGEST = 5.0  # seconds
_ending = threading.Event()
_last_call = [float("-inf")]


def refused_at_the_end(function: Callable[..., Result]) -> Callable[..., Result]:
    """Return the function with a check that raises StopIteration after the process starts to
    exit."""

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
            pass  # The process exits already.
