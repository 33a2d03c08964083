"""The public names of a module, and submodules that load on first access."""

import importlib
import sys
from collections.abc import Callable, Iterable, Sequence
from types import ModuleType

from keras_dml._common.nearest import did_you_mean


def public_names(module: str) -> list[str]:
    """Return the functions and classes of a module, without those with an underscore.

    In a package, these are the functions and classes that it imports from its modules.

        __all__ = public_names(__name__)  # at the end of the module
    """

    def belongs(value: object) -> bool:
        return f"{getattr(value, '__module__', '')}.".startswith(f"{module}.")

    names = vars(sys.modules[module]).items()
    return sorted(name for name, value in names if name[0] != "_" and belongs(value))


def missing_attribute(
    module: str, name: str, known: Iterable[str], ours: str | None = None
) -> AttributeError:
    """Return the error of a module's `__getattr__`, with the most similar known names.

    Args:
        module: Full name of the module.
        name: The name that it does not have.
        known: The names that it has.
        ours: The known name that replaces it. None: the most similar ones.
    """
    hint = "" if name.startswith("_") else did_you_mean(ours or name, [ours] if ours else known)
    return AttributeError(f"module {module!r} has no attribute {name!r}.{hint}")


def lazy_modules(
    package: str, names: Sequence[str]
) -> tuple[Callable[[str], ModuleType], Callable[[], list[str]]]:
    """Return `__getattr__` and `__dir__` of a package that imports submodules on first access.

    Args:
        package: Full name of the package.
        names: Names of the submodules.
    """

    def attribute(name: str) -> ModuleType:
        if name in names:
            return importlib.import_module(f"{package}.{name}")
        raise missing_attribute(package, name, names)

    def directory() -> list[str]:
        return sorted({*vars(sys.modules[package]), *names})

    return attribute, directory
