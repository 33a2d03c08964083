"""The registries of the library as flags: their words, and the arguments of their entries.

A registry is imported when a flag first needs it, because Keras and TensorFlow take seconds.
"""

from __future__ import annotations

import importlib
import inspect
import types
import typing
from collections.abc import Callable, Mapping
from typing import Any

from experiments.options.declared import Flag, documented, shown

# Arguments that every entry has, or that training sets.
_SET_BY_TRAINING = frozenset(
    {"reduction", "name", "dtype", "seed", "zero_at", "num_classes", "labels", "batch_size"}
    | {"learning_rate", "learning_rate_multipliers", "total_steps", "decayed"}
    | {"coupled_weight_decay", "decoupled_weight_decay", "encoding"}
)


def import_attribute(path: str) -> Any:
    """Import `MODULE.NAME`, such as `"keras_dml.optimizers.OPTIMIZERS"`."""
    module, _, name = path.rpartition(".")
    return getattr(importlib.import_module(module), name)


def words(path: str) -> Callable[[], tuple[str, ...]]:
    """Return a function that imports the words, or the keys, of the registry `MODULE.NAME`."""
    return lambda: tuple(import_attribute(path))


def summary(documented: object) -> str:
    """Return the first paragraph of a docstring on one line, or "" without a docstring."""
    first, *_ = (inspect.getdoc(documented) or "").split("\n\n")
    return " ".join(first.split())


def arguments(entry: Callable[..., Any]) -> dict[str, Flag]:
    """Return the arguments of a class or function that a command line can set, as flags by name.

    These are the arguments annotated with bool, int, float, str, or `Literal` of words, possibly
    `| None`. Objects and arguments that training sets, such as the seed, are excluded.
    Each needs a separate entry under "Args:". The flags have no heading yet.
    """
    texts = documented(entry)
    found = {}
    for parameter in inspect.signature(entry).parameters.values():
        if parameter.name in _SET_BY_TRAINING or parameter.kind in (
            parameter.VAR_KEYWORD,
            parameter.VAR_POSITIONAL,
        ):
            continue
        kind, choices = _kind(_evaluated(entry, parameter.annotation))
        if kind is None:
            continue
        required = parameter.default is parameter.empty
        default = None if required else parameter.default
        text = texts[parameter.name]
        flag = Flag(parameter.name, kind, default, "", text, words=choices, required=required)
        found[parameter.name] = flag
    return found


def flags_of_entries(
    entries: Mapping[str, Callable[..., Any]],
    group: str,
    prefix: str = "",
    optional: bool = True,
    common: bool = False,
) -> tuple[Flag, ...]:
    """Return one flag for each argument name, described for each entry of the registry.

    Args:
        entries: The registry.
        group: Heading of the flags.
        prefix: Start of the flags' names.
        optional: Whether the flags have no value until they are set. Otherwise they have the
            default of the first entry that has the argument.
        common: `Flag.common`.

    Raises:
        TypeError: Entries share a name, but not its type.
    """
    sharing: dict[str, dict[str, Flag]] = {}
    for entry, maker in entries.items():
        for name, argument in arguments(maker).items():
            flag = f"{prefix}{name.removeprefix(prefix)}"
            sharing.setdefault(flag, {})[entry] = argument
    # The choices of several entries can differ, so the chosen entry checks them.
    checked = not optional or len(entries) == 1
    found = []
    for name, by_entry in sharing.items():
        first = next(iter(by_entry.values()))
        if any(argument.kind is not first.kind for argument in by_entry.values()):
            raise TypeError(
                f"{name} must be of one type in all entries that take it, since it is one flag: "
                f"{', '.join(by_entry)}"
            )
        # Entries with the same description share a line.
        lines: dict[str, list[str]] = {}
        for entry, argument in by_entry.items():
            details = ""
            if argument.choices and not checked:
                details += f" One of {', '.join(argument.choices)}."
            if optional:
                details += f" Default: {shown(argument.default) or 'none'}."
            lines.setdefault(f"{argument.text}{details}", []).append(entry)
        text = "\n".join(f"{', '.join(names)}: {line}" for line, names in lines.items())
        default, choices = None if optional else first.default, first.choices if checked else None
        found.append(Flag(name, first.kind, default, group, text, words=choices, common=common))
    return tuple(found)


def _evaluated(entry: Callable[..., Any], annotation: Any) -> Any:
    """Evaluate an annotation that `from __future__ import annotations` left as text."""
    if not isinstance(annotation, str):
        return annotation
    function = entry.__init__ if isinstance(entry, type) else entry  # type: ignore[misc]
    try:
        return eval(annotation, inspect.unwrap(function).__globals__)
    except NameError:  # imported for type checkers only, so the type of an object
        return object


def _kind(annotation: Any) -> tuple[type | None, tuple[str, ...] | None]:
    """Return the type and the choices of an annotation. None for an object."""
    if typing.get_origin(annotation) in (types.UnionType, typing.Union):
        annotation, *others = typing.get_args(annotation)
        # A union of words and an object: a command line can set the words.
        if others != [types.NoneType] and typing.get_origin(annotation) is not typing.Literal:
            return None, None
    if typing.get_origin(annotation) is typing.Literal:
        return str, typing.get_args(annotation)
    return (annotation if annotation in (bool, int, float, str) else None), None
