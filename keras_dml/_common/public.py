"""The public names of a package whose `__init__` imports exactly these names."""

from collections.abc import Mapping
from types import ModuleType


def names(namespace: Mapping[str, object]) -> list[str]:
    """Return `__all__` for a package: all of its names except private ones and modules.

    Import each public name as itself, `from module import name as name`, which type checkers see as
    an export. A literal `__all__` would repeat the list.
    """
    return sorted(
        name
        for name, value in namespace.items()
        if not name.startswith("_") and not isinstance(value, ModuleType)
    )
