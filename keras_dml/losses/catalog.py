"""The arguments of the loss constructors, read from their source without importing them.

A constructor's signature and docstring are the only description of its arguments. Flags, their
help, the guide's table, and tests use this module. It imports neither Keras nor the rest of this
package, so that a command line shows its help without delay. The file can also be loaded separately
by its path.
"""

from __future__ import annotations

import ast
import dataclasses
import functools
import pathlib
import re
import sys
from typing import Any

__all__ = ["Argument", "arguments", "attribute", "names", "summary", "table", "trained_by"]

_PACKAGE = "keras_dml"
_ROOT = pathlib.Path(__file__).resolve().parents[1]
_KINDS: dict[str, type] = {kind.__name__: kind for kind in (bool, int, float, str)}
# Arguments that every loss has, and arguments that training sets: its seed, the number of classes,
# and V's first zero, which is the first β.
_NOT_GIVEN = ("reduction", "name", "dtype", "seed", "zero_at", "num_classes")
_OF_EVERY_LOSS = ("reduction", "name", "dtype")


@dataclasses.dataclass(frozen=True)
class Argument:
    """A constructor argument that a command line can set.

    Attributes:
        name: Name in the signature.
        kind: `bool`, `int`, `float` or `str`.
        default: Default value. None if the default is None or the argument is required.
        text: Entry under "Args:" in the docstring, as one line.
        choices: Valid words, or None.
    """

    name: str
    kind: type
    default: Any
    text: str
    choices: tuple[str, ...] | None = None


def names() -> tuple[str, ...]:
    """Return the names of the losses in alphabetical order."""
    return tuple(sorted(_losses()))


def arguments(loss: type | str) -> tuple[Argument, ...]:
    """Return the constructor arguments that a command line can set, in signature order.

    These are the arguments annotated with bool, int, float, str, or `Literal` of words, possibly
    `| None`. Arguments that every loss has (`reduction`, `name`, `dtype`), the seed, and objects
    are excluded.

    Args:
        loss: A class of this package, the name of a loss, or the module and name of a class, such
            as `"keras_dml.models.rankmi.RankMI"`. Names are not imported.

    Raises:
        LookupError: The loss, module, or class does not exist.
        TypeError: An argument has no annotation, or no separate entry under "Args:".
    """
    definition = _definition(loss)
    texts = _entries(_docstring(definition))
    taken = []
    for parameter, default in _parameters(definition):
        where = f"{definition.name}({parameter.arg})"
        if parameter.arg in _NOT_GIVEN:
            continue
        if parameter.annotation is None:
            raise TypeError(f"{where} must be annotated with its type")
        kind, choices = _kind(parameter.annotation)
        if kind is None:
            continue
        if parameter.arg not in texts:
            raise TypeError(f"{where} must have an entry of its own under Args: in the docstring")
        value = None if default is None else ast.literal_eval(default)
        taken.append(Argument(parameter.arg, kind, value, texts[parameter.arg], choices))
    return tuple(taken)


def trained_by(loss: str) -> str:
    """Return whose arguments a command line sets: the loss, or the model that trains it.

    The model's class is the loss's attribute `trained_by`, as in `arguments`.

    Raises:
        LookupError: The loss does not exist.
    """
    return attribute(loss, "trained_by") or loss


def attribute(loss: str, name: str) -> str | None:
    """Return the string that a loss's class assigns to a class attribute.

    An inherited attribute is not found: None.

    Raises:
        LookupError: The loss does not exist.
    """
    for node in _definition(loss).body:
        match node:
            case ast.Assign(targets=[ast.Name(id=target)], value=ast.Constant(value=str(value))):
                if target == name:
                    return value
    return None


def summary(loss: type | str) -> str:
    """Return the first line of a class's docstring. Arguments and errors are as in `arguments`."""
    definition = _definition(loss)
    first, *_ = _docstring(definition).splitlines() or [""]
    if not first:
        raise TypeError(f"{definition.name} must have a docstring")
    return first


def table() -> str:
    """Return a Markdown table of all losses: description, `--loss`, and class with arguments."""
    rows = ["| loss | `--loss` | class in `keras_dml.losses` |", "| --- | --- | --- |"]
    for name in names():
        definition = _definition(name)
        given = ", ".join(
            parameter.arg if default is None else f"{parameter.arg}={_shown(default)}"
            for parameter, default in _parameters(definition)
            if parameter.arg not in _OF_EVERY_LOSS and not _is_no_mining(parameter, default)
        )
        what = summary(name).rstrip(".").replace("|", "\\|")
        rows.append(f"| {what} | `{name}` | `{definition.name}({given})` |")
    return "\n".join(rows) + "\n"


@functools.cache
def _losses() -> dict[str, str]:
    """Return each loss's class, by module and name, under its registered name."""
    found: dict[str, str] = {}
    for node in _parsed(f"{_PACKAGE}.losses").body:
        if not isinstance(node, ast.ImportFrom) or node.module is None:
            continue
        for definition in _classes(node.module).values():
            for decorator in definition.decorator_list:
                match decorator:
                    case ast.Call(
                        func=ast.Name(id="register"), args=[ast.Constant(value=str(name))]
                    ):
                        found[name] = f"{node.module}.{definition.name}"
    return found


@functools.cache
def _parsed(module: str) -> ast.Module:
    package, *parts = module.split(".")
    if package == _PACKAGE:
        path = _ROOT.joinpath(*parts)
        path = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    else:
        path = pathlib.Path(getattr(sys.modules.get(module), "__file__", None) or "")
    if not path.is_file():
        raise LookupError(f"There is no source of a module {module}")
    return ast.parse(path.read_text(encoding="utf-8"), str(path))


def _classes(module: str) -> dict[str, ast.ClassDef]:
    return {node.name: node for node in _parsed(module).body if isinstance(node, ast.ClassDef)}


def _definition(loss: type | str) -> ast.ClassDef:
    if isinstance(loss, type):
        module, name = loss.__module__, loss.__qualname__
    elif "." in loss:
        module, _, name = loss.rpartition(".")
    elif loss in _losses():
        module, _, name = _losses()[loss].rpartition(".")
    else:
        raise LookupError(f"loss must be one of {', '.join(names())}. Received: loss={loss!r}")
    if name not in _classes(module):
        raise LookupError(f"There is no class {name} in {module}")
    return _classes(module)[name]


def _docstring(definition: ast.ClassDef) -> str:
    return ast.get_docstring(definition) or ""


def _parameters(definition: ast.ClassDef) -> list[tuple[ast.arg, ast.expr | None]]:
    """Return the parameters except `self` and `**kwargs`, with the source of their defaults."""
    for node in definition.body:
        if isinstance(node, ast.FunctionDef) and node.name == "__init__":
            taken = node.args
            named = [*taken.posonlyargs, *taken.args]
            missing: list[ast.expr | None] = [None] * (len(named) - len(taken.defaults))
            defaults = [*missing, *taken.defaults, *taken.kw_defaults]
            return list(zip([*named, *taken.kwonlyargs], defaults))[1:]
    return []


def _kind(annotation: ast.expr) -> tuple[type | None, tuple[str, ...] | None]:
    """Return the type and the choices of an annotation. None for an object."""
    match annotation:
        case ast.BinOp(left=left, op=ast.BitOr(), right=ast.Constant(value=None)):
            return _kind(left)
        case ast.BinOp(left=left, op=ast.BitOr()):
            # Words or an object: a command line can set the words.
            kind, choices = _kind(left)
            return (kind, choices) if choices else (None, None)
        case ast.Name(id=name):
            return _KINDS.get(name), None
        case ast.Subscript(value=ast.Name(id="Literal"), slice=words):
            listed = ast.literal_eval(words)
            return str, listed if isinstance(listed, tuple) else (listed,)
    return None, None


def _entries(docstring: str) -> dict[str, str]:
    """Return the text of each argument with a separate entry under "Args:"."""
    section = re.search(r"^Args:\n((?:[ ]+.*\n?|\n)*)", docstring, re.MULTILINE)
    entries: dict[str, str] = {}
    if section is None:
        return entries
    for entry in re.split(r"^ {4}(?=\S)", section[1], flags=re.MULTILINE):
        name, colon, text = entry.partition(":")
        if colon and name.isidentifier():
            entries[name] = " ".join(text.split())
    return entries


def _is_no_mining(parameter: ast.arg, default: ast.expr | None) -> bool:
    # A dozen losses share this argument, and a row of the table shows only specific arguments.
    return parameter.arg == "mining" and ast.unparse(default or parameter) == "None"


def _shown(default: ast.expr) -> str:
    value = ast.literal_eval(default)
    return f'"{value}"' if isinstance(value, str) else repr(value)
