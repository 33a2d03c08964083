"""The command that repeats a run, and the versions that made it."""

import importlib.metadata
import pathlib
import platform
import shlex
import shutil
import subprocess
from collections.abc import Sequence

import keras_dml

__all__ = ["made_by"]

# Packages that the numbers depend on, if they are installed.
_PACKAGES = ("keras", "tensorflow", "jax", "torch", "numpy")


def made_by(flags: pathlib.Path, more: Sequence[str] = ()) -> str:
    """Return the command and the versions, two lines.

    Args:
        flags: File of the run's resolved flags.
        more: Flags that a flag file cannot set.
    """
    words = [f"--flagfile={flags}", *more, "--output_dir=AGAIN"]
    command = f"python -m experiments.run {shlex.join(words)}"
    return f"{command}\n{', '.join([_ours(), f'Python {platform.python_version()}', *_others()])}"


def _others() -> list[str]:
    found = []
    for name in _PACKAGES:
        try:
            found.append(f"{name} {importlib.metadata.version(name)}")
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def _ours() -> str:
    version = f"keras_dml {keras_dml.__version__}"
    root = pathlib.Path(keras_dml.__file__).resolve().parents[1]
    git = shutil.which("git")
    # An installed package may be inside another repository.
    if git is None or not (root / ".git").exists():
        return version
    commit, changed = (
        subprocess.run([git, "-C", root, *words], capture_output=True, text=True, check=False)
        for words in (("rev-parse", "--short=12", "HEAD"), ("status", "--porcelain", "-uno"))
    )
    if commit.returncode:
        return version
    dirty = " with local changes" if changed.stdout.strip() else ""
    return f"{version}, commit {commit.stdout.strip()}{dirty}"
