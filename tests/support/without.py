"""Run Python programs in processes that cannot import some packages."""

import os
import subprocess
import sys

from processes import ROOT

# As sitecustomize.py on the child's path, this code runs before all other imports.
BLOCKER = """
from importlib.machinery import PathFinder

found = PathFinder.find_spec

def find_spec(name, path=None, target=None):
    return None if name.partition(".")[0] in {blocked!r} else found(name, path, target)

PathFinder.find_spec = find_spec
"""


def run_without(blocked, words, folder, **environment):
    """Run `python WORDS` as if none of `blocked` were installed.

    Args:
        blocked: names of top-level modules.
        words: arguments of `python`.
        folder: an empty folder; the child's current folder is `folder / "project"`.
        environment: environment variables.

    Returns:
        `subprocess.CompletedProcess` with text.
    """
    site = folder / "site"
    site.mkdir()
    (site / "sitecustomize.py").write_text(BLOCKER.format(blocked=tuple(blocked)))
    return run_in(folder / "project", words, site, **environment)


def run_in(project, words, *paths, **environment):
    """Run `python WORDS` in a user's folder, with our packages and `paths` on its path."""
    project.mkdir(exist_ok=True)
    path = os.pathsep.join(map(str, [*paths, ROOT]))
    return subprocess.run(
        [sys.executable, *words],
        cwd=project,
        env={**os.environ, "PYTHONPATH": path, **environment},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
