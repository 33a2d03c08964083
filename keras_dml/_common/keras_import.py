"""A function that runs once, as soon as Keras is imported, without importing it."""

import importlib.abc
import importlib.util
import sys
from collections.abc import Callable
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from keras_dml._common.extras import import_keras


class AfterKeras(importlib.abc.MetaPathFinder):
    """A finder for `sys.meta_path` that calls a function after the first import of Keras.

    If a module of the package comes first, the function runs after that module. It would otherwise
    run in the middle of it, where the module imports Keras.

    Args:
        package: Name of our package.
        without: Modules of the package that do not import Keras.
        then: The function. It is called again after the next import if it, or the import, fails.
    """

    def __init__(self, package: str, without: tuple[str, ...], then: Callable[[], None]) -> None:
        self._package, self._without, self._then = package, without, then
        self._is_searching = False

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        """Return the spec of Keras or a module, whose execution the function follows."""
        is_ours = fullname.startswith(f"{self._package}.")
        if self._is_searching or fullname.startswith(self._without):
            return None
        if not is_ours and fullname != "keras":
            return None
        self._is_searching = True
        try:
            spec = importlib.util.find_spec(fullname)
        finally:
            self._is_searching = False
        if spec is None or spec.loader is None:
            return None
        loader: Any = spec.loader
        execute = loader.exec_module

        def execute_and_follow(module: ModuleType) -> None:
            del loader.exec_module  # the method of the class again
            if self not in sys.meta_path:  # another thread or spec came first
                execute(module)
                return
            sys.meta_path.remove(self)
            try:
                if is_ours:
                    import_keras()
                execute(module)
                self._then()
            except BaseException:
                sys.meta_path.insert(0, self)
                raise

        # Not here, because a spec is also found to see whether Keras is installed.
        loader.exec_module = execute_and_follow
        return spec
