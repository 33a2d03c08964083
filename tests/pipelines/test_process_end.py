"""The end of a process whose pipelines call Python."""

import threading
import time

import pytest

from pipelines import process_end


def test_who_interrupts_the_end_sees_no_traceback(monkeypatch):
    naps = []

    def interrupted(seconds):
        naps.append(seconds)
        if len(naps) == 1:
            raise KeyboardInterrupt

    monkeypatch.setattr(process_end.time, "sleep", interrupted)
    monkeypatch.setattr(process_end, "_ending", threading.Event())
    monkeypatch.setattr(process_end, "_QUIET", 0.05)
    monkeypatch.setattr(process_end, "_last_call", [time.monotonic()])
    call = process_end.refused_at_the_end(lambda: 1)
    try:
        process_end._wait_for_quiet()
    except KeyboardInterrupt:  # which would end the tests, too
        pytest.fail("the interrupt came through")
    assert len(naps) > 1  # it has waited on
    with pytest.raises(StopIteration):
        call()
