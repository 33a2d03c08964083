"""The registries of the library as flags: their words, and the arguments of their entries.

A registry is imported when a flag first needs it, because Keras and TensorFlow take seconds.
"""

from __future__ import annotations

import importlib
import inspect
import types
import typing
from collections.abc import Callable, Collection, Mapping
from typing import Any

from experiments.options.declaration import Flag, documented
from experiments.options.errors import UsageError
from experiments.options.help import shown

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


def arguments(entry: Callable[..., Any]) -> tuple[Flag, ...]:
    """Return the arguments of a class or function that a command line can set, as flags.

    These are the arguments annotated with bool, int, float, str, or `Literal` of words, possibly
    `| None`. Objects and arguments that training sets, such as the seed, are excluded.
    Each needs a separate entry under "Args:". The flags have no heading yet.
    """
    texts = documented(entry)
    found = []
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
        found.append(flag)
    return tuple(found)


def flags_of_entries(
    entries: Mapping[str, Mapping[str, Flag]], group: str, optional: bool = True
) -> tuple[Flag, ...]:
    """Return one flag for each argument name, described for each entry of the registry.

    Args:
        entries: The arguments of each entry, by name.
        group: Heading of the flags.
        optional: Whether the flags have no value until they are set. Otherwise they have the
            default of the first entry that has the argument.

    Raises:
        TypeError: Entries share a name, but not its type.
    """
    sharing: dict[str, dict[str, Flag]] = {}
    for entry, taken in entries.items():
        for name, argument in taken.items():
            sharing.setdefault(name, {})[entry] = argument
    return tuple(_flag(name, by_entry, group, optional) for name, by_entry in sharing.items())


def taken_arguments(
    choice: str, entries: Mapping[str, Callable[..., Any]], chosen: str, given: Mapping[str, Any],
    overridable: Collection[str] = (), prefix: str = "",
) -> dict[str, Any]:  # fmt: skip
    """Return the values that the chosen entry of a registry takes.

    Args:
        choice: Flag that chooses the entry.
        entries: The registry.
        chosen: Name of the entry.
        given: Values that are set, by argument name.
        overridable: Arguments that are ignored if the entry does not take them: a recipe sets them
            for the entry that it chooses, and the command line chooses another entry.
        prefix: Start of the flags' names, which the argument names lack.

    Raises:
        UsageError: The entry does not take an argument.
    """
    taken = {argument.name: argument for argument in arguments(entries[chosen])}
    for name, argument in taken.items():
        if argument.required and given.get(name) is None:
            raise UsageError(
                f"{prefix}{name} must be set for {choice}={chosen}, but got none. Add "
                f"--{prefix}{name}=N."
            )
    for name in given:
        if name in taken or name in overridable:
            continue
        takers = [
            entry
            for entry, maker in entries.items()
            if name in {argument.name for argument in arguments(maker)}
        ]
        raise UsageError(
            f"{choice} must be {' or '.join(takers)} with --{prefix}{name}, but got {chosen}."
        )
    return {name: value for name, value in given.items() if name in taken}


def _flag(name: str, by_entry: Mapping[str, Flag], group: str, optional: bool) -> Flag:
    kinds = {argument.kind for argument in by_entry.values()}
    if len(kinds) > 1:
        raise TypeError(
            f"{name} must be of one type in all entries that take it, since it is one flag: "
            f"{', '.join(by_entry)}"
        )
    # Entries with the same description share a line.
    lines: dict[str, list[str]] = {}
    for entry, argument in by_entry.items():
        details = ""
        if optional:
            details = f" One of {', '.join(argument.choices)}." if argument.choices else ""
            details += f" Default: {shown(argument.default) or 'none'}."
        lines.setdefault(f"{argument.text}{details}", []).append(entry)
    text = "\n".join(f"{', '.join(names)}: {line}" for line, names in lines.items())
    first = next(iter(by_entry.values()))
    # The choices of losses differ, so `loss_flags.checked` checks them.
    choices = None if optional else first.choices
    default = None if optional else first.default
    return Flag(name, kinds.pop(), default, group, text, words=choices)


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
