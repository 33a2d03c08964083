"""From a command line to a value, and back."""

from __future__ import annotations

import types
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, TypeVar

from experiments import recipes
from experiments.options.declaration import Flag, Options, declarations
from experiments.options.errors import HelpRequested, UsageError
from experiments.options.help import help_text, shown
from experiments.options.values import TRUE, UNSET, converted
from experiments.recipes.nearest import did_you_mean

_HELP = ("--help", "-h", "-help", "--helpfull", "--helpshort")
# Flags that do not change the results of a run.
_NOT_RESOLVED = (
    "flagfile", "debug", "help", "output_dir", "refit", "measured_in", "engine", "workers",
    "log_to",
)  # fmt: skip
AnyOptions = TypeVar("AnyOptions", bound=Options)


def parse(options: type[AnyOptions], argv: Sequence[str]) -> AnyOptions:
    """Return the options of a command line.

    `--flagfile=NAME` names a file in the current folder or a recipe. Other flags override the flag
    file, wherever they are on the line. Flag files cannot set flags that are declared as
    `command_line_only`: these lines are ignored.

    Args:
        options: The options of the command.
        argv: The command line, beginning with the name of the command.

    Raises:
        HelpRequested: The command line asks for the help.
        UsageError: A flag or value is invalid, a required flag is missing, or a word is not a flag.
        RecipeError: A flag file is missing or cannot be read.
    """
    if wants_help(argv):
        raise HelpRequested(help_text(options, full="--helpfull" in argv[1:]))
    line, files = recipes.without_flagfiles(argv[1:])
    # The flags of registries import Keras: first refuse values that are wrong without them.
    _read(options, _flags(options, registries=False), line, partial=True)
    in_files = options.of_flag_files()
    of_files: dict[str, Any] = {}
    recipe = None
    if files:
        known = {
            name: flag
            for name, flag in _flags(in_files).items()
            if name not in ("flagfile", "help", "debug")
        }
        words: list[str] = []
        for path in map(recipes.find_recipe, files):
            words += recipes.read_recipe(path, {*known, *_former_names(known)})
            recipe = path.stem
        never = {name for name, flag in known.items() if flag.command_line_only}
        allowed = [word for word in words if _name(word, known) not in never]
        of_files = _read(in_files, known, allowed)
    flags = _flags(options)
    on_line = _read(options, flags, line)
    of_files = {name: value for name, value in of_files.items() if name in flags}
    given = dict(options.followed(of_files, on_line))
    for name, value in on_line.items():
        given[name] = given.get(name, ()) + value if flags[name].repeated else value
    missing = [flag for name, flag in flags.items() if flag.required and name not in given]
    if missing:
        wanted = " and ".join(flag.name for flag in missing)
        example = " ".join(
            f"--{each.name}={'|'.join(each.choices or ('...',))}" for each in missing
        )
        raise UsageError(f"{wanted} must be set, but got none. Add {example}.")
    values: dict[str, Any] = {}
    for name, (field, key, flag) in declarations(options).items():
        value = given.get(name, flag.default)
        if not key:
            values[field] = value
        else:
            values.setdefault(field, {})
            if value is not None:
                values[field][key] = value
    for field, value in values.items():
        if isinstance(value, dict):
            values[field] = types.MappingProxyType(value)
    values["flagfile"] = tuple(files)
    names = frozenset(given), frozenset(on_line)
    return options(**values, given=names[0], on_command_line=names[1], recipe=recipe)


def resolved(options: Options, left_out: Collection[str] = _NOT_RESOLVED) -> str:
    """Return all options that have a value as the lines of a flag file, group by group."""
    names = [name for name in declarations(type(options)) if name not in left_out]
    return "".join(f"{word}\n" for word in words_of(options, names))


def words_of(options: Options, names: Iterable[str]) -> list[str]:
    """Return the options of these names that have a value as words of a command line."""
    declared = declarations(type(options))
    words = []
    for name in names:
        field, key, flag = declared[name]
        value = getattr(options, field)
        value = value.get(key) if key else value
        if value is None:
            continue
        if flag.repeated:
            words += [f"--{name}={one}" for one in value]
        elif flag.kind is bool:
            words.append(f"--{'' if value else 'no'}{name}")
        else:
            words.append(f"--{name}={shown(value)}")
    return words


def given_words(options: Options, names: Iterable[str]) -> list[str]:
    """Return the options of these names that are set as words of a command line."""
    names = [name for name in names if name in options.given]
    unset = [name for name in names if _value_of(options, name) is None]
    return [*words_of(options, names), *(f"--{name}={UNSET}" for name in unset)]


def refuse_unused(options: Options, names: Iterable[str], why: str) -> None:
    """Raise `UsageError` for the first of these options on the command line.

    Args:
        options: The options.
        names: Names of options without effect.
        why: What they have no effect on.
    """
    for name in names:
        if name in options.on_command_line:
            (received,) = given_words(options, [name])
            raise UsageError(f"{name} has no effect on {why}, but got {received}.")


def command_line_only_words(options: Options) -> list[str]:
    """Return the options that are set and that a flag file cannot pass on, as words."""
    declared = declarations(type(options))
    names = [name for name in declared if declared[name][2].command_line_only]
    # A tracker belongs to one run, and its address can contain a password.
    return given_words(options, [name for name in names if name not in _NOT_RESOLVED])


def wants_help(argv: Sequence[str]) -> bool:
    """Return whether the command line asks for the help."""
    return any(word in _HELP for word in argv[1:])


def wants_debug(argv: Sequence[str]) -> bool:
    """Return whether `--debug` is among the words, which can be invalid."""
    debug = False
    for word in argv[1:]:
        name, _, value = word.lstrip("-").partition("=")
        if word.startswith("-") and name in ("debug", "nodebug"):
            debug = name == "debug" and (value.lower() or "true") in TRUE
    return debug


def _flags(options: type[Options], registries: bool = True) -> dict[str, Flag]:
    return {name: flag for name, (_, _, flag) in declarations(options, registries).items()}


def _value_of(options: Options, name: str) -> Any:
    field, key, _ = declarations(type(options))[name]
    value = getattr(options, field)
    return value.get(key) if key else value


def _read(
    options: type[Options], flags: Mapping[str, Flag], words: Sequence[str], partial: bool = False
) -> dict[str, Any]:
    """Return the values of the flags that are set.

    Args:
        options: The options of the command.
        flags: The flags by name.
        words: The words of a command line or flag file.
        partial: Whether there can be other flags.
    """
    former = _former_names(flags)
    values: dict[str, Any] = {}
    left_over = []
    rest = iter(words)
    for word in rest:
        if not word.startswith("-") or word == "--":
            left_over.append(word)
            continue
        name, equals, text = word.lstrip("-").partition("=")
        if name in former:
            _warn_of_former_name(name, former[name], partial)
            name = former[name]
        elif name not in flags and not equals and _is_switch(name.removeprefix("no"), flags):
            name, equals, text = name.removeprefix("no"), "=", "false"
        if name not in flags:
            if not partial:
                raise UsageError(_unknown(options, name, word))
            continue
        if not equals:
            text = "true" if flags[name].kind is bool else next(rest, "")
        value = converted(flags[name], text)
        values[name] = values.get(name, ()) + value if flags[name].repeated else value
    if left_over and not partial:
        received = " ".join(left_over)
        files = [word for word in left_over if word.endswith(recipes.ENDING)]
        hint = f" Did you mean --flagfile={files[0]}?" if files else ""
        raise UsageError(f"Flags must start with --, but got {received}.{hint}")
    return values


def _former_names(flags: Mapping[str, Flag]) -> dict[str, str]:
    return {flag.former: name for name, flag in flags.items() if flag.former}


def _is_switch(name: str, flags: Mapping[str, Flag]) -> bool:
    return name in flags and flags[name].kind is bool


def _warn_of_former_name(former: str, name: str, partial: bool) -> None:
    if partial:  # the words are read again
        return
    import logging

    logging.getLogger("experiments").warning(
        "--%s is now --%s. The next version does not take --%s", former, name, former
    )


def _unknown(options: type[Options], name: str, word: str) -> str:
    """Return the message for an unknown flag."""
    from experiments.options.run_options import RunOptions  # which imports this module's neighbors

    declared = _flags(options)
    known = [*declared, *(f"no{each}" for each, flag in declared.items() if flag.kind is bool)]
    of_a_run = name in declarations(RunOptions, registries=options is RunOptions)
    other = f" It is a flag of {RunOptions.command}." if of_a_run else ""
    return (
        f"Every flag must belong to {options.command}, but got {word}.{did_you_mean(name, known)}"
        f"{other} --help lists the flags."
    )


def _name(word: str, known: Collection[str]) -> str:
    """Return the flag that a word names, also as --noNAME."""
    name = word.lstrip("-").partition("=")[0]
    return name if name in known else name.removeprefix("no")
