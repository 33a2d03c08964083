"""Read a variable of a MATLAB file and print it as JSON: `python read_mat.py FILE VARIABLE`.

A process of its own, because one flipped byte ends it: SciPy's reader is compiled code that trusts
the file. Knows none of our packages, so that it runs wherever its file lies.
"""

import json
import sys
from typing import Any

_MOST_MEMORY = 4 * 2**30  # bytes


def variable_of(file: str, variable: str) -> dict[str, Any]:
    """What is printed.

    Returns:
        {"fields": names or None, "rows": the entries, each a list where there are fields}; {} where
        the file has no such variable. Numbers and text are themselves, all else is None.
    """
    import numpy as np
    from scipy.io import loadmat

    content = loadmat(file, squeeze_me=True, variable_names=[variable])
    if variable not in content:
        return {}
    entries = np.atleast_1d(content[variable])
    fields = entries.dtype.names
    if fields is None:
        return {"fields": None, "rows": [_plain(value) for value in entries.tolist()]}
    columns = [[_plain(value) for value in entries[name].tolist()] for name in fields]
    return {"fields": fields, "rows": list(zip(*columns))}


def _plain(value: Any) -> int | float | str | None:
    value = value.item() if hasattr(value, "dtype") and not value.shape else value
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    return value


def main(file: str, variable: str) -> str | None:
    """Print it; returns the reason why it cannot be read, or None."""
    import resource

    resource.setrlimit(resource.RLIMIT_AS, (_MOST_MEMORY, _MOST_MEMORY))
    try:
        json.dump(variable_of(file, variable), sys.stdout)
    except Exception as error:  # it raises whatever its parser stumbled over
        return " ".join(str(error).split()) or type(error).__name__
    return None


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
