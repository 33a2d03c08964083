"""Runs of several recipes, each in a process of its own."""

import fnmatch
import pathlib
import subprocess
from collections.abc import Sequence

from experiments import recipes as packaged
from experiments.options.child import child_command, child_environment
from experiments.options.command_line import MISTAKE
from experiments.options.errors import RunError, UsageError

__all__ = ["flag_files", "run_recipe"]


def flag_files(names: Sequence[str]) -> list[pathlib.Path]:
    """The flag files that the names and patterns stand for.

    Raises:
        UsageError: none, two of one name, a pattern that no recipe matches.
    """
    files: list[pathlib.Path] = []
    for name in names:
        matches = [name]
        if any(mark in name for mark in "*?["):
            matches = fnmatch.filter(
                packaged.names(), name if name.endswith(".flags") else f"{name}.flags"
            )
            if not matches:
                raise UsageError(f"recipes has a pattern that no recipe matches. Received: {name}")
        files += [packaged.find_recipe(match) for match in matches]
    if not files:
        raise UsageError("recipes must name at least one recipe. Received: no recipes")
    stems = [path.stem for path in files]
    if len(set(stems)) < len(stems):
        raise UsageError(f"recipes must differ in name. Received: recipes={','.join(stems)}")
    return files


def run_recipe(recipe: pathlib.Path, folder: pathlib.Path, forwarded: Sequence[str]) -> None:
    """Run what is not finished of a recipe.

    Args:
        recipe: its flag file.
        folder: the run's.
        forwarded: more flags, which override the recipe's.

    Raises:
        UsageError: the run was given something wrong.
        RunError: it had to stop.
    """
    # In a process of its own: a run sets TensorFlow's seed, precision and devices for good.
    words = (f"--flagfile={recipe}", *forwarded, f"--output_dir={folder}")
    done = subprocess.run(
        child_command("experiments.run", *words),
        env=child_environment(),
        stdout=subprocess.DEVNULL,
        check=False,
    )
    if done.returncode:
        # A mistake in what the run was given is one in what the comparison was given.
        kind = UsageError if done.returncode == MISTAKE else RunError
        raise kind(f"{recipe.stem} ended with code {done.returncode}; what it said is above")
