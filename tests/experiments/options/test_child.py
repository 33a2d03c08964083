"""Modules of the project as child processes."""

import os
import signal
import subprocess
import sys
import time

import pytest

CHILD = """
import os, sys, time
from experiments.options.child import end_with_parent
end_with_parent()
print(os.getpid(), flush=True)
time.sleep(60)
"""
PARENT = f"""
import subprocess, sys
from experiments.options.child import child_environment
subprocess.run([sys.executable, "-c", {CHILD!r}], env=child_environment())
"""


def is_alive(pid):
    try:
        with open(f"/proc/{pid}/stat") as stream:
            return stream.read().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


@pytest.mark.skipif(sys.platform != "linux", reason="needs Linux")
def test_a_child_ends_with_its_killed_parent():
    parent = subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE, text=True)
    with parent:
        child = int(parent.stdout.readline())
        assert is_alive(child)
        parent.kill()
        parent.wait(10)
        for _ in range(100):
            if not is_alive(child):
                return
            time.sleep(0.05)
        os.kill(child, signal.SIGKILL)
    pytest.fail("the child was still there five seconds later")
