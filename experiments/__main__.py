"""`keras-dml COMMAND`: the commands by their names, from any folder."""

import ast
import difflib
import pathlib
import re
import runpy
import sys

from experiments import check_installed

__all__ = ["commands", "main"]


def commands() -> dict[str, str]:
    """The commands and the first line of what each says of itself: the modules of this folder."""
    modules = sorted(pathlib.Path(__file__).parent.glob("[!_]*.py"))
    return {path.stem: _summary(path) for path in modules}


def main() -> int | None:
    """Run the command that the command line names, as `python -m experiments.COMMAND` does.

    Returns:
        0 for help, 2 for a mistake; a command itself ends the process by its own exit code.
    """
    name, *arguments = sys.argv[1:] or [""]
    known = commands()
    if name in ("--help", "-h", "help"):
        width = max(map(len, known))
        lines = [f"  {command:<{width}}  {summary}" for command, summary in known.items()]
        print("keras-dml COMMAND [--flag=value ...]\n", *lines, sep="\n")
        print("\nkeras-dml COMMAND --help says what each takes.")
        return 0
    if name not in known:
        near = difflib.get_close_matches(name, known, n=1)
        hint = f" Did you mean {near[0]}?" if near else ""
        print(
            f"error: the command must be one of {', '.join(known)}.{hint} "
            f"Received: {name or 'nothing'}",
            file=sys.stderr,
        )
        return 2
    check_installed()
    sys.argv = [sys.argv[0], *arguments]
    runpy.run_module(f"experiments.{name}", run_name="__main__", alter_sys=True)
    return None


def _summary(path: pathlib.Path) -> str:
    """The first line of a module's docstring, less the command itself that it may begin with."""
    # Read, not imported: TensorFlow takes seconds.
    text = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    return re.sub(r"^`[^`]*`: ", "", text.partition("\n")[0])


if __name__ == "__main__":
    sys.exit(main())
