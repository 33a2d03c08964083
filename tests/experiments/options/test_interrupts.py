"""A first Ctrl-C, and a second Ctrl-C at any time before the command has ended."""

import signal
import subprocess
import sys
import time

import pytest

COMMAND = """
import atexit, os, signal, sys, threading, time
from experiments.options import run_command

class InCallback:
    def __del__(self):
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0.01)

def main(words):
    atexit.register(time.sleep, 0.1)
    threading.Thread(target=time.sleep, args=[0.6]).start()
    print("began", flush=True)
    if "callback" in WORDS:
        InCallback()
    try:
        time.sleep(20)
    except KeyboardInterrupt:
        if "replaced" in WORDS:
            raise RuntimeError("active exception types: REPLACED BY KeyboardInterrupt")
        raise
    finally:
        time.sleep(0.2)  # cleans up

WORDS = sys.argv.copy()
sys.argv = sys.argv[:1]
sys.exit(run_command(main, goes_on="the same command continues"))
"""
LINE = "interrupted: the same command continues\n"


def started(*words):
    process = subprocess.Popen(
        [sys.executable, "-c", COMMAND, *words],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdout.readline() == "began\n"
    return process


def test_a_second_interrupt_at_any_moment_ends_the_process_with_one_line():
    # During the command's cleanup, while Python waits for threads, and in the exit handlers.
    delays = (0.0, 0.195, 0.205, 0.55, 0.65)
    processes = [started() for _ in delays]
    began = time.monotonic()
    for process in processes:
        process.send_signal(signal.SIGINT)
    for delay, process in zip(delays, processes):
        time.sleep(max(0.0, began + delay - time.monotonic()))
        process.send_signal(signal.SIGINT)
    ends = [(process.communicate(timeout=20)[1], process.returncode) for process in processes]
    assert ends == [(LINE, 130)] * len(delays)


@pytest.mark.parametrize("word", ["callback", "replaced"])
def test_an_interrupt_that_python_drops_or_tensorflow_replaces(word):
    """Python drops an exception in a callback. C++ code raises another exception in its place."""
    process = started(word)
    if word != "callback":
        process.send_signal(signal.SIGINT)
    assert (process.communicate(timeout=20)[1], process.returncode) == (LINE, 130)


def test_a_process_that_ignores_interrupts_continues_to_ignore_them():
    ignoring = ["sh", "-c", 'trap "" INT; exec "$0" "$@"', sys.executable, "-c"]
    code = COMMAND.replace("time.sleep(20)", "time.sleep(0.5)")
    with subprocess.Popen([*ignoring, code], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "began\n"
        process.send_signal(signal.SIGINT)
        assert process.wait(20) == 0
