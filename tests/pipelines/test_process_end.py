"""The exit of a process whose pipelines call Python."""

import threading
import time

import pytest
import tensorflow as tf

from pipelines import python_calls


def test_interrupt_during_the_exit_prints_no_traceback(monkeypatch):
    naps = []

    def interrupted(seconds):
        naps.append(seconds)
        if len(naps) == 1:
            raise KeyboardInterrupt

    monkeypatch.setattr(python_calls.time, "sleep", interrupted)
    monkeypatch.setattr(python_calls, "_exiting", threading.Event())
    monkeypatch.setattr(python_calls, "_QUIET", 0.05)
    monkeypatch.setattr(python_calls, "_last_call", [time.monotonic()])
    try:
        python_calls._wait_for_quiet()
    except KeyboardInterrupt:  # would also stop pytest
        pytest.fail("the interrupt came through")
    assert len(naps) > 1  # it has waited again
    rows = python_calls.map_numpy(tf.data.Dataset.range(1), lambda row: (row,), (tf.int64, []))
    with pytest.raises(tf.errors.InvalidArgumentError):
        next(iter(rows))
