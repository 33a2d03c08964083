"""Child processes that run modules of this package."""

import ctypes
import os
import pathlib
import signal
import site
import subprocess
import sys

from experiments.options.errors import MISTAKE, RunError, UsageError

_PARENT = "KERAS_DML_PARENT"
_PR_SET_PDEATHSIG = 1  # of <linux/prctl.h>


def child_command(module: str, *arguments: str) -> list[str]:
    """Return the command of `python -m module`, for use with `child_environment()`.

    `-P` excludes the current folder, which can contain other packages named `experiments` and
    `pipelines`.
    """
    return [sys.executable, "-P", "-m", module, *arguments]


def child_environment() -> dict[str, str]:
    """Return the environment in which a child finds this package and its parent process."""
    environment = {**os.environ, _PARENT: str(os.getpid())}
    root = str(pathlib.Path(__file__).resolve().parents[2])
    # A checkout is not on Python's path. Installed packages are: listed first, they would hide
    # modules of the standard library.
    if root not in map(os.path.realpath, [*site.getsitepackages(), site.getusersitepackages()]):
        paths = [root, environment.get("PYTHONPATH")]
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
    return environment


def run_module(module: str, *words: str, name: str, quiet: bool = True) -> None:
    """Run `python -m module` in a process, and wait for it.

    Args:
        module: Module of a command.
        *words: Its command line.
        name: Name of the process in messages.
        quiet: Whether to discard its output. Its errors are always printed.

    Raises:
        UsageError: The command refuses its command line.
        RunError: The command fails.
    """
    output = subprocess.DEVNULL if quiet else None
    done = subprocess.run(
        child_command(module, *words), env=child_environment(), stdout=output, check=False
    )
    if done.returncode:
        kind = UsageError if done.returncode == MISTAKE else RunError
        raise kind(f"{name} ended with code {done.returncode}; its message is above")


def end_with_parent() -> None:
    """End this process when its parent ends, also if the parent is killed.

    Otherwise a run could outlive its `compare` and keep its folder locked. Linux only.
    """
    # Removed, because this process is the parent of its children.
    parent = os.environ.pop(_PARENT, None)
    if parent is None or sys.platform != "linux":
        return
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != int(parent):  # the parent has ended already
        os.kill(os.getpid(), signal.SIGTERM)
