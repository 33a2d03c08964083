"""Run recipes in separate processes."""

import fnmatch
import pathlib
from collections.abc import Sequence

from experiments import recipes as packaged
from experiments.options.child_process import run_module
from experiments.options.errors import UsageError


def flag_files(names: Sequence[str]) -> list[pathlib.Path]:
    """Return the flag files of names and patterns.

    Raises:
        UsageError: if a pattern matches no recipe, or the list is empty or has two files of one
            name.
    """
    files: list[pathlib.Path] = []
    for name in names:
        matches = [name]
        if any(mark in name for mark in "*?["):
            matches = fnmatch.filter(
                packaged.names(), name if name.endswith(".flags") else f"{name}.flags"
            )
            if not matches:
                raise UsageError(f"recipes must match at least one recipe, but got {name}.")
        files += [packaged.find_recipe(match) for match in matches]
    if not files:
        raise UsageError("recipes must name at least one recipe, but got none.")
    stems = [path.stem for path in files]
    if len(set(stems)) < len(stems):
        raise UsageError(f"recipes must differ in name, but got {','.join(stems)}.")
    return files


def run_recipe(recipe: pathlib.Path, folder: pathlib.Path, forwarded: Sequence[str]) -> None:
    """Run a recipe, or continue its run.

    Args:
        recipe: the flag file.
        folder: the run's folder.
        forwarded: flags that override the recipe.

    Raises:
        UsageError: if the run refuses its options.
        RunError: if the run stops.
    """
    # A run sets TensorFlow's seed, precision, and devices for its whole process.
    words = (f"--flagfile={recipe}", *forwarded, f"--output_dir={folder}")
    run_module("experiments.run", *words, name=recipe.stem)
