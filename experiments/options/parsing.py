"""From a command line to a value, and back."""

from __future__ import annotations

import contextlib
import dataclasses
import difflib
import logging
import types
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, TypeVar

from experiments import recipes
from experiments.options.declaration import Flag, Options, declarations
from experiments.options.errors import HelpRequested, UsageError
from experiments.options.help import help_text, shown
from experiments.options.values import UNSET, converted
from experiments.recipes.nearest import did_you_mean

_HELP = ("--help", "-h", "-help", "--helpfull", "--helpshort")
# Flags that do not change the results of a run.
_NOT_RESOLVED = (
    "flagfile", "debug", "help", "output_dir", "refit", "measured_in", "engine", "workers",
    "log_to",
)  # fmt: skip
AnyOptions = TypeVar("AnyOptions", bound=Options)
_LOGGER = logging.getLogger("experiments")


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
    _check_values(options, argv[1:])
    flags = _flags(options)
    on_line = _read(options, flags, argv[1:])
    files = on_line.pop("flagfile", ())
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
        of_files = _read(in_files, known, words)
    of_files = {
        name: value
        for name, value in of_files.items()
        if name in flags and not flags[name].command_line_only
    }
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
        elif value is not None:
            values.setdefault(field, {})[key] = value
    for field, value in values.items():
        if isinstance(value, dict):
            values[field] = types.MappingProxyType(value)
    values["flagfile"] = files
    names = frozenset(given), frozenset(on_line)
    return options(**values, given=names[0], on_command_line=names[1], recipe=recipe)


def _check_values(options: type[Options], words: Sequence[str]) -> None:
    """Refuse wrong values before the registries of flags import Keras, which takes seconds."""
    plain = declarations(options, registries=False)
    for word in words:
        name, equals, text = word.lstrip("-").partition("=")
        if equals and word.startswith("-") and name in plain:
            _, _, flag = plain[name]
            if not callable(flag.words):
                converted(flag, text)


def resolved(options: Options, left_out: Collection[str] = _NOT_RESOLVED) -> str:
    """Return all options that have a value as the lines of a flag file, group by group."""
    names = [name for name in declarations(type(options)) if name not in left_out]
    return "".join(f"{word}\n" for word in words_of(options, names))


def differences(there: Sequence[str], here: Sequence[str]) -> str:
    """Return the lines that differ in words, "" without a difference."""
    return ", ".join(
        f"{'there' if line[0] == '-' else 'now'} {line[2:]}"
        for line in difflib.ndiff(there, here)
        if line[0] in "+-"
    )


def words_of(options: Options, names: Iterable[str]) -> list[str]:
    """Return the options of these names that have a value as words of a command line."""
    declared = declarations(type(options))
    words = []
    for name in names:
        flag, value = declared[name][2], value_of(options, name)
        if value is None:
            continue
        if flag.repeated:
            words += [f"--{name}={one}" for one in value]
        elif flag.kind is bool:
            words.append(f"--{'' if value else 'no'}{name}")
        else:
            words.append(f"--{name}={shown(value)}")
    return words


def value_of(options: Options, name: str) -> Any:
    """Return the value of a flag. None if it has none."""
    field, key, _ = declarations(type(options))[name]
    value = getattr(options, field)
    return value.get(key) if key else value


def given_words(options: Options, names: Iterable[str]) -> list[str]:
    """Return the options of these names that are set as words of a command line."""
    names = [name for name in names if name in options.given]
    unset = [name for name in names if value_of(options, name) is None]
    return [*words_of(options, names), *(f"--{name}={UNSET}" for name in unset)]


def given_for_run(options: Options, left_out: Collection[str] = ()) -> list[str]:
    """Return the flags of a run that are set, except its folder, as words of a command line.

    Args:
        options: Options with the flags of a run.
        left_out: Further names to leave out.
    """
    from experiments.options.run_options import RunOptions  # which imports this module's neighbors

    not_passed_on = {"flagfile", "debug", "help", "output_dir", *left_out}
    names = [name for name in declarations(RunOptions) if name not in not_passed_on]
    return given_words(options, names)


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
    words = [word for word in argv[1:] if word.lstrip("-").startswith(("debug", "nodebug"))]
    with contextlib.suppress(UsageError):
        return bool(_read(Options, _flags(Options), words).get("debug"))
    return False


def _flags(options: type[Options]) -> dict[str, Flag]:
    return {name: flag for name, (_, _, flag) in declarations(options).items()}


def _read(
    options: type[Options], flags: Mapping[str, Flag], words: Sequence[str]
) -> dict[str, Any]:
    """Return the values of the flags that are set.

    Args:
        options: The options of the command.
        flags: The flags by name.
        words: The words of a command line or flag file.
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
            _LOGGER.warning(
                "--%s is now --%s. The next version does not take --%s", name, former[name], name
            )
            name = former[name]
        elif name not in flags and not equals and _is_switch(name.removeprefix("no"), flags):
            name, equals, text = name.removeprefix("no"), "=", "false"
        if name not in flags:
            raise UsageError(_unknown(options, name, word))
        if not equals:
            text = "true" if flags[name].kind is bool else next(rest, "")
        value = converted(flags[name], text)
        values[name] = values.get(name, ()) + value if flags[name].repeated else value
    if left_over:
        received = " ".join(left_over)
        files = [word for word in left_over if word.endswith(recipes.ENDING)]
        hint = f" Did you mean --flagfile={files[0]}?" if files else ""
        raise UsageError(f"Flags must start with --, but got {received}.{hint}")
    return values


def _former_names(flags: Mapping[str, Flag]) -> dict[str, str]:
    return {flag.former: name for name, flag in flags.items() if flag.former}


def _is_switch(name: str, flags: Mapping[str, Flag]) -> bool:
    return name in flags and flags[name].kind is bool


def _unknown(options: type[Options], name: str, word: str) -> str:
    """Return the message for an unknown flag."""
    from experiments.options.run_options import RunOptions  # which imports this module's neighbors

    declared = _flags(options)
    known = [*declared, *(f"no{each}" for each, flag in declared.items() if flag.kind is bool)]
    # Without the flags of registries, which import Keras.
    of_a_run = name.removeprefix("no") in {field.name for field in dataclasses.fields(RunOptions)}
    other = f" It is a flag of {_as_typed(RunOptions)}." if of_a_run else ""
    return (
        f"Every flag must belong to {_as_typed(options)}, but got {word}."
        f"{did_you_mean(name, known)}{other} --help lists the flags."
    )


def _as_typed(options: type[Options]) -> str:
    return options.command.replace("experiments.", "keras-dml ")
