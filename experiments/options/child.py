"""Our own modules as child processes, whatever a user's project calls its folders."""

import ctypes
import os
import pathlib
import signal
import site
import sys

__all__ = ["child_command", "child_environment", "end_with_parent"]

_PARENT = "KERAS_DML_PARENT"
_PR_SET_PDEATHSIG = 1  # of <linux/prctl.h>


def child_command(module: str, *arguments: str) -> list[str]:
    """What starts `python -m module`, with `child_environment()`.

    Not from the current folder: a project may have folders `experiments` and `pipelines` of its own
    there, which `-m` alone would prefer.
    """
    return [sys.executable, "-P", "-m", module, *arguments]


def child_environment() -> dict[str, str]:
    """The environment in which a child finds our packages, and knows whose child it is."""
    environment = {**os.environ, _PARENT: str(os.getpid())}
    root = str(pathlib.Path(__file__).resolve().parents[2])
    # A checkout may be on nobody's path but that of the current folder. Where packages are
    # installed Python looks anyway, and put first they would hide parts of its own library.
    if root not in map(os.path.realpath, [*site.getsitepackages(), site.getusersitepackages()]):
        paths = [root, environment.get("PYTHONPATH")]
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
    return environment


def end_with_parent() -> None:
    """Let this process end when the one that started it as its child does, killed or not.

    A run that outlived its `compare` would hold its folder, and nobody would know. Where the system
    cannot do that (others than Linux), nothing happens.
    """
    # Taken away: children of this process have this one for a parent.
    parent = os.environ.pop(_PARENT, None)
    if parent is None or sys.platform != "linux":
        return
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != int(parent):  # it ended before that was said
        os.kill(os.getpid(), signal.SIGTERM)
