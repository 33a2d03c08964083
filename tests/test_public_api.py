"""The public API: `__all__` of each package, and documentation of all names in it."""

import ast
import functools
import importlib
import inspect
import itertools
import pathlib
import pkgutil

import pytest

ROOT = pathlib.Path(__file__).parents[1]
TOP = ("keras_dml", "pipelines")
PACKAGES = [
    *TOP,
    *(
        module.name
        for name in TOP
        for module in pkgutil.walk_packages([str(ROOT / name)], f"{name}.")
        if module.ispkg
    ),
]
MODULES = ["keras_dml.callbacks", "keras_dml.export", "keras_dml.optimizers"]


@functools.cache
def _documented_constants():
    """Return the names of the modules' constants that have a docstring."""
    found = set()
    for path in [path for name in TOP for path in (ROOT / name).rglob("*.py")]:
        for statement, after in itertools.pairwise(ast.parse(path.read_text("utf-8")).body):
            match statement, after:
                case (
                    ast.Assign(targets=[ast.Name(id=name), *_])
                    | ast.AnnAssign(target=ast.Name(id=name)),
                    ast.Expr(value=ast.Constant(value=str())),
                ):
                    found.add(name)
    return found


def _undocumented(owner, name, value):
    """Return what lacks a docstring: a public name, or the methods that it defines."""
    if inspect.ismodule(value) or not callable(value):
        return []
    lacking = [] if inspect.getdoc(value) else [f"{owner}.{name}"]
    if inspect.isclass(value):
        lacking += [
            f"{owner}.{name}.{method}"
            for method, member in vars(value).items()
            if not method.startswith("_")
            and (callable(member) or isinstance(member, (property, classmethod, staticmethod)))
            and not inspect.getdoc(getattr(value, method))
        ]
    return lacking


@pytest.mark.parametrize("package", PACKAGES + MODULES)
def test_all_public_names_exist_and_are_documented(package):
    module = importlib.import_module(package)
    assert inspect.getdoc(module)
    assert isinstance(module.__all__, list)
    assert len(set(module.__all__)) == len(module.__all__)
    lacking = []
    constants = _documented_constants()
    for name in module.__all__:
        value = getattr(module, name)  # AttributeError names it
        lacking += _undocumented(package, name, value)
        if not callable(value) and not inspect.ismodule(value):
            lacking += [] if name in constants else [f"{package}.{name}"]
    assert lacking == []
