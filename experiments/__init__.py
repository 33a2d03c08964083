"""Command-line programs around keras_dml and pipelines: flags, recipes, reports.

Only the commands are public: `keras-dml COMMAND` or `python -m experiments.COMMAND`. The modules
can change.
"""

import importlib.util
import os
import pathlib
import re
import sys
import warnings

__all__ = ["prepare_command", "typed"]

# Import names of the packages in the extra `run` that every command can need.
_NEEDED = ("absl", "filelock", "matplotlib", "PIL", "sklearn", "tensorflow", "tqdm")
_ROOT = pathlib.Path(__file__).resolve().parents[1]
# At the start of a command line in a message, not in a path.
_COMMAND = re.compile(r"(?<![\w./-])keras-dml (?=[a-z])")


def prepare_command() -> None:
    """Check the installation, and change inherited settings that would end a command.

    Every command calls this function before it imports a package. Its child processes inherit the
    settings.

    Raises:
        SystemExit: With code 2 after one line, if a package is missing, or if another package hides
            one of this project.
    """
    _check_not_hidden("keras_dml", "pipelines")
    missing = [name for name in _NEEDED if not _is_there(name)]
    if missing:
        what = ", ".join(missing)
        print(f"error: the commands need {what}: pip install 'keras-dml[run]'", file=sys.stderr)
        raise SystemExit(2)
    # No command displays figures. A notebook sets a backend that is only in Jupyter's environment.
    # Keras imports matplotlib.
    os.environ["MPLBACKEND"] = "agg"
    # The commands use Keras 3. With this setting, `tf.keras` would need another package.
    os.environ.pop("TF_USE_LEGACY_KERAS", None)
    # Warnings of third-party packages do not end a command. They are printed.
    if any(action == "error" for action, *_ in warnings.filters):
        warnings.simplefilter("default")
        os.environ["PYTHONWARNINGS"] = "default"


def typed(text: str) -> str:
    """Return a message in which `keras-dml COMMAND` begins as the user began this command.

    `.venv/bin/keras-dml search`, for example, or `python -m experiments.search`. The script and
    `python -m` set the environment variable, and child processes inherit it.
    """
    prefix = os.environ.get("KERAS_DML_PREFIX", "keras-dml ")
    return _COMMAND.sub(lambda found: prefix, text)


def _check_not_hidden(*packages: str) -> None:
    """Exit with code 2 and a line if another package or module hides a package of the commands.

    It can be in `PYTHONPATH`, or in the current folder, which `python -m` puts first.
    """
    for name in packages:
        spec = importlib.util.find_spec(name)
        if spec is None:
            continue
        folder, *_ = spec.submodule_search_locations or [spec.origin or ""]
        place = pathlib.Path(folder).resolve()
        if place == _ROOT / name:
            continue
        listed = map(os.path.realpath, os.environ.get("PYTHONPATH", "").split(os.pathsep))
        if str(place.parent) in listed:
            advice = f"Remove {place.parent} from PYTHONPATH"
        else:
            advice = "Run keras-dml COMMAND instead of python -m experiments.COMMAND"
        print(f"error: {place} hides the package {name} of the commands. {advice}", file=sys.stderr)
        raise SystemExit(2)


def _is_there(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except ImportError:
        return False


# While Python looks for the command of `python -m experiments.COMMAND`, argv[0] is "-m". Later, the
# first import of the command could end in a traceback.
if sys.argv[:1] == ["-m"]:
    os.environ.setdefault("KERAS_DML_PREFIX", f"{sys.orig_argv[0]} -m experiments.")  # in messages
    prepare_command()
