"""The lines of a progress bar in a log file, and its rate."""

import io
import sys
import time

import pytest

from keras_dml._common.progress import Bar


def test_no_control_characters_in_a_log(capsys):
    with Bar(total=6, desc="reading", unit="image", mininterval=0, leave=False) as bar:
        for _ in range(6):
            bar.update()
            with Bar(total=2, desc="within", mininterval=0, leave=False) as inner:
                inner.update()
    said = capsys.readouterr().err
    assert all(line.isprintable() and line.strip() for line in said.splitlines())
    assert "reading: 100%" in said
    assert "6/6" in said


def test_a_short_bar_writes_no_line_to_a_log(capsys):
    with Bar(total=6, desc="reading", unit="image", leave=True) as bar:
        for step in range(6):
            bar.set_description(f"part {step}")
            bar.update()
            bar.refresh()
    assert capsys.readouterr().err == ""


def test_a_long_bar_writes_a_line_to_a_log_each_minute(capsys, monkeypatch):
    with Bar(total=600, desc="reading", unit="image", leave=True) as bar:
        began = bar.start_t
        for second in range(1, 601):
            monkeypatch.setattr(bar, "_time", lambda now=began + second: now)
            bar.set_postfix_str(f"loss {second}", refresh=False)
            bar.update()
    lines = capsys.readouterr().err.splitlines()
    assert 10 <= len(lines) <= 11
    assert "60/600" in lines[0] and "600/600" in lines[-1]


def test_bar_redraws_itself_on_a_terminal(monkeypatch):
    terminal = io.StringIO()
    terminal.isatty = lambda: True
    monkeypatch.setattr(sys, "stderr", terminal)
    with Bar(total=2, mininterval=0) as bar:
        bar.update()
    assert "\r" in terminal.getvalue()


def test_first_step_is_not_in_the_rate(capsys):
    with Bar(total=100, mininterval=0, unit="image") as bar:
        time.sleep(0.3)
        bar.begin_counting(10)
        time.sleep(0.02)
        bar.update(10)
        rate = bar.format_dict["n"] - bar.format_dict["initial"], bar.format_dict["elapsed"]
    assert rate[0] == 10
    assert rate[1] < 0.25
    assert capsys.readouterr().err


@pytest.mark.parametrize("by_variable", [False, True])
def test_disabled_bar_still_counts(by_variable, monkeypatch, capsys):
    if by_variable:  # set after tqdm has read it
        monkeypatch.setenv("TQDM_DISABLE", "1")
    with Bar(total=3, **({} if by_variable else {"disable": True})) as bar:
        bar.begin_counting(1)
        bar.update()
    assert capsys.readouterr().err == ""
