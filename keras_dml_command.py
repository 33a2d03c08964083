"""The script `keras-dml`.

It is outside the packages so that another package named `experiments` cannot hide it.
"""

import importlib.util
import os
import pathlib
import shlex
import shutil
import sys

_ROOT = pathlib.Path(__file__).resolve().parent


def main() -> int | None:
    """Run `experiments.__main__` of this project."""
    check_not_hidden("experiments")
    if sys.argv[0] != shutil.which("keras-dml"):
        os.environ["KERAS_DML_PREFIX"] = f"{shlex.quote(sys.argv[0])} "  # for messages
    from experiments.__main__ import main as run

    return run()


def check_not_hidden(*packages: str) -> None:
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
