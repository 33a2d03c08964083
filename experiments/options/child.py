"""Our own modules as child processes, whatever a user's project calls its folders."""

import os
import pathlib
import site
import sys

__all__ = ["child_command", "child_environment"]


def child_command(module: str, *arguments: str) -> list[str]:
    """What starts `python -m module`, with `child_environment()`.

    Not from the current folder: a project may have folders `experiments` and `pipelines` of its own
    there, which `-m` alone would prefer.
    """
    return [sys.executable, "-P", "-m", module, *arguments]


def child_environment() -> dict[str, str]:
    """The environment in which a child finds the packages that this process runs."""
    environment = dict(os.environ)
    root = str(pathlib.Path(__file__).resolve().parents[2])
    # A checkout may be on nobody's path but that of the current folder. Where packages are
    # installed Python looks anyway, and put first they would hide parts of its own library.
    if root not in map(os.path.realpath, [*site.getsitepackages(), site.getusersitepackages()]):
        paths = [root, environment.get("PYTHONPATH")]
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
    return environment
