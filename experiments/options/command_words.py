"""From the words of a command line to options, and back."""

from __future__ import annotations

import contextlib
import dataclasses
import difflib
import itertools
import pathlib
import types
from collections.abc import Collection, Iterable, Sequence
from typing import Any, TypeVar

from absl import flags

from experiments import recipes
from experiments.options.absl_flags import UNSET, filled, flag_values, help_text
from experiments.options.declared import Options, declarations, value_of
from experiments.options.errors import HelpRequested, UsageError
from experiments.recipes.nearest import did_you_mean

_HELP = ("--help", "-h", "-help", "--helpfull", "--helpshort")
_OF_EVERY_COMMAND = frozenset(field.name for field in dataclasses.fields(Options))
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
    # Finds most mistakes before the registries import Keras, which takes seconds.
    early = flag_values(options, registries=False)
    on_line = argv[1:]
    _read(options, early, on_line, known_only=True)
    files = tuple(early["flagfile"].value or ())
    paths = [recipes.find_recipe(file) for file in files]
    values, declared = flag_values(options), declarations(options)
    _read(options, values, _words_of_files(options, paths, on_line) if paths else [])
    in_files = {name: values[name].value for name in declared if values[name].present}
    before = {name: values[name].present for name in declared}
    _read(options, values, on_line)
    set_on_line = {name for name in declared if values[name].present > before[name]} - {"flagfile"}
    changed = options.followed(in_files, {name: values[name].value for name in set_on_line})
    for name in changed.keys() - set_on_line:
        values[name].value = changed[name]
    return options(
        **_fields(options, values),
        given=frozenset(in_files) | set_on_line,
        on_command_line=frozenset(set_on_line),
        recipe=paths[-1].stem if paths else None,
    )


def _words_of_files(
    options: type[Options], paths: Sequence[pathlib.Path], on_line: Sequence[str]
) -> list[str]:
    """Return the words of flag files that set a flag of the command.

    Raises:
        RecipeError: A line is not a flag of `of_flag_files`, nor named by `--undefok`.
    """
    accepted = {
        each
        for word, following in itertools.zip_longest(on_line, on_line[1:], fillvalue="")
        if _name(word) == "undefok"
        for each in (word.partition("=")[2] or following).replace(" ", "").split(",")
    }
    known = flag_values(options.of_flag_files())
    words = [
        word
        for path in paths
        for word in recipes.read_recipe(path, {*known, *accepted} - _OF_EVERY_COMMAND)
    ]
    ours = [flag for _, _, flag in declarations(options).values() if not flag.command_line_only]
    taken = {flag.name for flag in ours}
    return [word for word in words if {_name(word), _name(word).removeprefix("no")} & taken]


def _fields(options: type[Options], values: flags.FlagValues) -> dict[str, Any]:
    """Return the fields of the options.

    Raises:
        UsageError: A required flag is not set.
    """
    declared = declarations(options)
    missing = [
        flag
        for name, (_, _, flag) in declared.items()
        if flag.required and not values[name].present
    ]
    if missing:
        wanted = " and ".join(flag.name for flag in missing)
        example = " ".join(
            f"--{each.name}={'|'.join(each.choices or ('...',))}" for each in missing
        )
        raise UsageError(f"{wanted} must be set, but got none. Add {example}.")
    found: dict[str, Any] = {}
    mappings: dict[str, dict[str, Any]] = {}
    for name, (field, key, flag) in declared.items():
        value = values[name].value
        value = tuple(value or ()) if flag.repeated else value
        if not key:
            found[field] = value
        elif value is not None:
            mappings.setdefault(field, {})[key] = value
    return found | {field: types.MappingProxyType(mapping) for field, mapping in mappings.items()}


def _read(
    options: type[Options], values: flags.FlagValues, words: Sequence[str], known_only: bool = False
) -> None:
    """Set the values of words. Raise `UsageError` for a mistake."""
    try:
        _, *left_over = values(["", *words], known_only)
    except flags.UnrecognizedFlagError as error:
        raise UsageError(_unknown(options, error.flagname, error.flagvalue)) from error
    except flags.Error as error:
        raise UsageError(f"{error}.") from error
    except UsageError:
        raise
    except ValueError as error:  # --noNAME=VALUE
        raise UsageError(f"{error}.") from error
    if left_over and not known_only:
        files = [word for word in left_over if word.endswith(recipes.ENDING)]
        hint = f" Did you mean --flagfile={files[0]}?" if files else ""
        raise UsageError(f"Flags must start with --, but got {' '.join(left_over)}.{hint}")


def _name(word: str) -> str:
    return word.lstrip("-").partition("=")[0] if word.startswith("-") else ""


def _unknown(options: type[Options], name: str, word: str) -> str:
    """Return the message for an unknown flag."""
    declared = declarations(options)
    switches = [f"no{name}" for name, (_, _, flag) in declared.items() if flag.kind is bool]
    hint = did_you_mean(name, [*declared, *switches])
    for other in _commands(Options):
        # Without the flags of registries, which import Keras.
        theirs = declarations(other, registries=False)
        if other is not options and name.removeprefix("no") in theirs:
            hint += f" It is a flag of {_as_typed(other)}."
            break
    return (
        f"Every flag must belong to {_as_typed(options)}, but got {word}.{hint} --help lists the "
        "flags."
    )


def _commands(options: type[Options]) -> list[type[Options]]:
    """Return the imported options classes that are commands."""
    found = [options] if options.command else []
    return [*found, *(each for child in options.__subclasses__() for each in _commands(child))]


def _as_typed(options: type[Options]) -> str:
    return options.command.replace("experiments.", "keras-dml ")


def wants_help(argv: Sequence[str]) -> bool:
    """Return whether the command line asks for the help."""
    return any(word in _HELP for word in argv[1:])


def wants_debug(argv: Sequence[str]) -> bool:
    """Return whether `--debug` is among the words, which can be invalid."""
    values = flag_values(Options)
    with contextlib.suppress(UsageError):
        _read(Options, values, [word for word in argv[1:] if "debug" in _name(word)], True)
    return bool(values["debug"].value)


def resolved(options: Options, left_out: Collection[str] | None = None) -> str:
    """Return all options that have a value as the lines of a flag file, group by group.

    Args:
        options: The options.
        left_out: Names to leave out. Default: the flags that are not `recorded`.
    """
    if left_out is None:
        declared = declarations(type(options)).values()
        left_out = {flag.name for _, _, flag in declared if not flag.recorded}
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
    values = filled(options)
    words = []
    for flag in (values[name] for name in names):
        value = flag.value
        each = [[one] for one in value or ()] if isinstance(flag, flags.MultiFlag) else [value]
        for flag.value in each:
            words.append(flag.serialize())
    return [word for word in words if word]


def given_words(options: Options, names: Iterable[str]) -> list[str]:
    """Return the options of these names that are set as words of a command line."""
    names = [name for name in names if name in options.given]
    unset = [name for name in names if value_of(options, name) is None]
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
    """Return the options that are set and that a flag file cannot pass on, as words.

    Flags that are not `recorded` belong to one run, such as a tracker, whose address can contain a
    password.
    """
    declared = declarations(type(options))
    own = [name for name, (_, _, flag) in declared.items() if flag.command_line_only]
    return given_words(options, [name for name in own if declared[name][2].recorded])
