"""Command-line programs around keras_dml and pipelines: flags, recipes, reports.

Only the commands are public: `keras-dml COMMAND` or `python -m experiments.COMMAND`. The modules
can change.
"""

import importlib.util
import sys

__all__ = ["check_installed"]

# Import names of the packages in the extra `run` that every command can need.
_NEEDED = ("filelock", "matplotlib", "PIL", "sklearn", "tensorflow", "tqdm")


def check_installed() -> None:
    """Exit with code 2 and a line that names the extra, unless its packages are installed."""
    missing = [name for name in _NEEDED if not _is_there(name)]
    if missing:
        what = ", ".join(missing)
        print(f"error: the commands need {what}: pip install 'keras-dml[run]'", file=sys.stderr)
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
