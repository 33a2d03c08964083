"""`keras-dml COMMAND`: the commands by their names, from any folder."""

import os
import pathlib
import re
import runpy
import shlex
import shutil
import sys

from experiments import prepare_command, typed
from experiments.recipes.nearest import did_you_mean

__all__ = ["commands", "main"]

_ROOT = pathlib.Path(__file__).parent


def commands() -> dict[str, str]:
    """Return the commands and the first lines of their docstrings.

    The commands are the modules in this folder, and `recipes`. They are not imported.
    """
    paths = {path.stem: path for path in _ROOT.glob("[!_]*.py")}
    paths["recipes"] = _ROOT / "recipes" / "__main__.py"
    return {name: _summary(path) for name, path in sorted(paths.items())}


def main() -> int | None:
    """Run the command that the command line names, as `python -m experiments.COMMAND` does.

    Returns:
        0 for the overview, 2 for an unknown command. A command ends the process with its exit code.
    """
    # For messages, also of child processes.
    if pathlib.Path(sys.argv[0]).name == "__main__.py":
        prefix = f"{shlex.quote(sys.orig_argv[0])} -m experiments "
    else:
        on_path = sys.argv[0] == shutil.which("keras-dml")
        prefix = "keras-dml " if on_path else f"{shlex.quote(sys.argv[0])} "
    os.environ["KERAS_DML_PREFIX"] = prefix
    name, *arguments = sys.argv[1:] or ["--help"]
    known = commands()
    if name in ("--help", "-h", "help"):
        width = max(map(len, known))
        lines = [f"  {command:<{width}}  {summary}" for command, summary in known.items()]
        try:
            print("keras-dml COMMAND [--flag=value ...]\n", *lines, sep="\n")
            first = "keras-dml run --flagfile=glyphs.flags"
            print(typed(f"\nA first run, which needs no files: {first}"))
            print("keras-dml COMMAND --help prints the flags of a command.", flush=True)
        except BrokenPipeError:  # the reader of the output, such as `head`, has ended
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    if name not in known:
        print(
            f"error: The command must be one of {', '.join(known)}, but got {name}."
            f"{did_you_mean(name, known)}",
            file=sys.stderr,
        )
        return 2
    prepare_command()
    sys.argv = [sys.argv[0], *arguments]
    runpy.run_module(f"experiments.{name}", run_name="__main__", alter_sys=True)
    return None


def _summary(path: pathlib.Path) -> str:
    """Return the first line of a module's docstring, without the command that it can begin with."""
    with path.open(encoding="utf-8") as file:
        first = file.readline().strip().strip('"')
    return re.sub(r"^`[^`]*`: ", "", first)


if __name__ == "__main__":
    sys.exit(main())
