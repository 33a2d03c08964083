"""The words of a registry, read from its source: importing it would bring TensorFlow first."""

from __future__ import annotations

import ast
import functools
import importlib.util
import pathlib

__all__ = ["commands_with", "number", "summary", "words"]


def words(module: str, name: str) -> tuple[str, ...]:
    """The strings of a module's tuple or list, or the keys of its dict, without importing it.

    Names stand for what the module assigns to them or imports from a package beside it.

    Raises:
        LookupError: no such name, or one that cannot be read like this.
    """
    found = _value(*_assigned(module, name))
    return (found,) if isinstance(found, str) else tuple(found)


def number(module: str, name: str) -> int:
    """The whole number that a module assigns to a name, without importing it.

    Raises:
        LookupError: no such name, or none that is a number.
    """
    module, node = _assigned(module, name)
    if isinstance(node, ast.Constant) and isinstance(node.value, int):
        return node.value
    raise LookupError(f"{name} of {module} is no number")


def summary(module: str, function: str) -> str:
    """The docstring of a module's function on one line; "" without one."""
    for node in _parsed(module).body:
        if isinstance(node, ast.FunctionDef) and node.name == function:
            return " ".join((ast.get_docstring(node) or "").split())
    raise LookupError(f"{module} has no function {function}")


def commands_with(flag: str) -> list[str]:
    """The commands whose own options declare a flag: `experiments.search`, say."""
    found = []
    spec = importlib.util.find_spec("experiments")
    (root,) = (spec and spec.submodule_search_locations) or (".",)
    for path in sorted(pathlib.Path(root).glob("*.py")):
        module = f"experiments.{path.stem}"
        declared = (
            statement.target.id
            for node in _parsed(module).body
            if isinstance(node, ast.ClassDef)
            for statement in node.body
            if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name)
            if isinstance(statement.value, ast.Call)
        )
        if flag in declared:
            found.append(module)
    return found


@functools.cache
def _parsed(module: str) -> ast.Module:
    package, *parts = module.split(".")
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise LookupError(f"There is no package {package}")
    path = pathlib.Path(next(iter(spec.submodule_search_locations)), *parts)
    path = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    return ast.parse(path.read_text(encoding="utf-8"), str(path))


def _assigned(module: str, name: str) -> tuple[str, ast.expr]:
    """The module that says what a name is, and what it says."""
    for node in _parsed(module).body:
        match node:
            case ast.Assign(targets=[ast.Name(id=target)], value=value) if target == name:
                return module, value
            case ast.AnnAssign(target=ast.Name(id=target), value=ast.expr() as value) if (
                target == name
            ):
                return module, value
            case ast.ImportFrom(module=str(other), names=names):
                for alias in names:
                    if name == (alias.asname or alias.name):
                        return _assigned(other, alias.name)
    raise LookupError(f"{module} assigns no {name}")


def _value(module: str, node: ast.expr) -> str | list[str]:
    match node:
        case ast.Constant(value=str(text)):
            return text
        case ast.Name(id=name):
            return _value(*_assigned(module, name))
        case ast.Tuple(elts=parts) | ast.List(elts=parts):
            return _all(module, parts)
        case ast.Dict(keys=keys):
            return _all(module, [key for key in keys if key is not None])
    raise LookupError(f"{ast.unparse(node)} of {module} cannot be read without importing it")


def _all(module: str, parts: list[ast.expr]) -> list[str]:
    found: list[str] = []
    for part in parts:
        value = _value(module, part.value if isinstance(part, ast.Starred) else part)
        found += [value] if isinstance(value, str) else value
    return found
