"""Read a variable of a MATLAB file and print it as JSON: `python read_mat.py FILE VARIABLE`.

This is a separate process because SciPy's compiled reader trusts the file, and one flipped byte can
crash it. It imports none of our packages, so that it runs wherever its file is.
"""

import json
import sys
from typing import Any

_MOST_MEMORY = 4 * 2**30  # bytes


def variable_of(file: str, variable: str) -> dict[str, Any]:
    """Return the content of a variable.

    Returns:
        {"fields": names or None, "rows": the entries, as lists if there are fields}, or {} if the
        file does not contain the variable. Numbers and text are unchanged, everything else is None.
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
    """Print the variable. Return the reason if it cannot be read, or None."""
    import resource

    resource.setrlimit(resource.RLIMIT_AS, (_MOST_MEMORY, _MOST_MEMORY))
    try:
        json.dump(variable_of(file, variable), sys.stdout)
    except Exception as error:  # SciPy's parser raises any exception
        return " ".join(str(error).split()) or type(error).__name__
    return None


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
