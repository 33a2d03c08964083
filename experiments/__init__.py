"""Command-line programs around keras_dml and pipelines: flags, recipes, reports.

Only the commands are public: `keras-dml COMMAND` or `python -m experiments.COMMAND`. The modules
can change.
"""

import importlib.util
import pathlib
import sys

__all__ = ["check_installed", "check_not_hidden"]

# Import names of the packages in the extra `run` that every command can need.
_NEEDED = ("filelock", "matplotlib", "PIL", "sklearn", "tensorflow", "tqdm")


def check_installed() -> None:
    """Exit with code 2 and a line that names the extra, unless its packages are installed."""
    missing = [name for name in _NEEDED if not _is_there(name)]
    if missing:
        what = ", ".join(missing)
        print(f"error: the commands need {what}: pip install 'keras-dml[run]'", file=sys.stderr)
        raise SystemExit(2)


def check_not_hidden() -> None:
    """Exit with code 2 and a line if another package hides `keras_dml` or `pipelines`.

    `python -m` puts the current folder first on Python's path.
    """
    root = pathlib.Path(__file__).resolve().parents[1]
    for name in ("keras_dml", "pipelines"):
        spec = importlib.util.find_spec(name)
        found = pathlib.Path(spec.origin or "").resolve().parents if spec else ()
        if spec and spec.origin and root not in found:
            print(
                f"error: {spec.origin} hides the package {name} of the commands. Run "
                "keras-dml COMMAND instead of python -m experiments.COMMAND",
                file=sys.stderr,
            )
            raise SystemExit(2)


def _is_there(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except ImportError:
        return False


# While Python looks for the command of `python -m experiments.COMMAND`, argv[0] is "-m". Without
# this check, the first import of the command ends in a traceback.
if sys.argv[:1] == ["-m"]:
    check_installed()
    check_not_hidden()
