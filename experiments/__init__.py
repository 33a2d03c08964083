"""Command-line programs around keras_dml and pipelines: flags, recipes, reports.

The commands are what is public, `keras-dml COMMAND` or `python -m experiments.COMMAND`; the modules
behind them may change.
"""

import importlib.util
import sys

__all__ = ["check_installed"]

# By the names that they are imported by: those of the extra `run` that every command may need.
_NEEDED = ("matplotlib", "PIL", "sklearn", "tensorflow", "tqdm")


def check_installed() -> None:
    """Unless what the commands need is installed: one line that names the extra, exit code 2."""
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


# While Python looks for the command of `python -m experiments.COMMAND`, argv[0] is "-m"; the
# command's own first import would end in a traceback.
if sys.argv[:1] == ["-m"]:
    check_installed()
