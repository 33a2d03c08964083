"""From a command line to a value. The only place that knows absl, whose flags are the syntax."""

from __future__ import annotations

import math
import pathlib
import re
import types
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, TypeVar

from absl import flags as absl_flags

from experiments import recipes
from experiments.options import registries
from experiments.options.declaration import Flag, Options, declarations
from experiments.options.errors import HelpRequested, UsageError, one_line
from experiments.options.help import help_text
from experiments.options.values import absolute
from experiments.recipes.nearest import did_you_mean

__all__ = [
    "command_line_only_words",
    "given_words",
    "parse",
    "resolved",
    "wants_debug",
    "wants_help",
    "words_of",
]

_HELP = ("--help", "-h", "-help", "--helpfull", "--helpshort")
# Read before the others are, by `parse` itself.
_READ_FIRST = ("flagfile", "help")
# What says nothing of what is done.
_NOT_RESOLVED = (
    "flagfile", "debug", "help", "output_dir", "refit", "measured_in", "engine", "workers",
)  # fmt: skip

# What absl says of a value: our own parsers' message, or its own of words and switches.
_WRONG = re.compile(
    r"flag --(\w+)=(.*): (must be .*|value should be one of .*|\('Non-boolean .*)", re.DOTALL
)
# Nothing here counts further, and what is computed is float32.
_MOST_WHOLE, _MOST_NUMBER = 2**31 - 1, 3.4e38

AnyOptions = TypeVar("AnyOptions", bound=Options)


class _WholeParser(absl_flags.IntegerParser):
    """Plain digits: Python reads `1_000`, `0x10` and the digits of all scripts as well."""

    def convert(self, argument: Any) -> int:
        """A whole number; ValueError of all else."""
        if isinstance(argument, str) and not re.fullmatch("[+-]?[0-9]{1,18}", argument):
            raise ValueError("must be a whole number")
        return int(argument)


class _NumberParser(absl_flags.FloatParser):
    """A finite number in plain digits, one that float32 holds."""

    def convert(self, argument: Any) -> float:
        """A number; ValueError of all else."""
        plain = not isinstance(argument, str) or (argument.isascii() and "_" not in argument)
        try:
            number = float(argument) if plain else math.nan
        except ValueError:
            number = math.nan
        if not abs(number) <= _MOST_NUMBER:
            raise ValueError("must be a finite number")
        return number


def parse(options: type[AnyOptions], argv: Sequence[str]) -> AnyOptions:
    """The options that a command line gives; a new value each time, and nothing else is changed.

    `--flagfile=NAME` is looked for in the current folder, then among the packaged recipes. Other
    flags override it wherever they stand on the line. Flag files cannot set flags that are declared
    as `command_line_only`: those lines are ignored.

    Raises:
        HelpRequested: the command line asks for the flags.
        UsageError: unknown flags or values, left-over words.
        RecipeError: a flag file that is not there or cannot be read.
    """
    if wants_help(argv):
        raise HelpRequested(help_text(options))
    line, files = recipes.without_flagfiles(argv[1:])
    in_files = options.of_flag_files()
    known = [name for name in declarations(in_files) if name not in (*_READ_FIRST, "debug")]
    of_recipes: list[str] = []
    recipe = None
    for path in map(recipes.find_recipe, files):
        of_recipes += recipes.read_recipe(path, known)
        recipe = path.stem
    of_files = {name: flag for name, (_, _, flag) in declarations(in_files).items()}
    never = [name for name, flag in of_files.items() if flag.command_line_only]
    of_recipes = [word for word in of_recipes if _name(word, known) not in never]
    flags = {name: flag for name, (_, _, flag) in declarations(options).items()}
    on_line = _present(_read(options, flags, line))
    if in_files is not options and of_recipes:
        _read(in_files, of_files, of_recipes)
        of_recipes = [word for word in of_recipes if _name(word, of_files) in flags]
    read = _read(options, flags, [*of_recipes, *line])
    values: dict[str, Any] = {}
    for name, (field, key, flag) in declarations(options).items():
        value = _value(flag, read[name].value) if name not in _READ_FIRST else flag.default
        if not key:
            values[field] = value
        elif value is not None:
            values.setdefault(field, {})[key] = value
    for field, value in values.items():
        if isinstance(value, dict):
            values[field] = types.MappingProxyType(value)
    values["flagfile"] = tuple(files)
    return options(**values, given=_present(read), on_command_line=on_line, recipe=recipe)


def resolved(options: Options, left_out: Collection[str] = _NOT_RESOLVED) -> str:
    """All options that have a value as the lines of a flag file, group by group."""
    names = [name for name in declarations(type(options)) if name not in left_out]
    return "".join(f"{word}\n" for word in words_of(options, names))


def words_of(options: Options, names: Collection[str]) -> list[str]:
    """The options of these names that have a value, as words of a command line."""
    held = declarations(type(options))
    values = _flag_values({name: held[name][2] for name in names})
    words = []
    for name in names:
        field, key, flag = held[name]
        value = getattr(options, field)
        value = value.get(key) if key else value
        if value is None:
            continue
        if flag.repeated:
            words += [f"--{name}={one}" for one in value]
            continue
        values[name].value = list(value) if flag.kind is tuple else value
        words.append(values[name].serialize())
    return words


def given_words(options: Options, names: Iterable[str]) -> list[str]:
    """Those of these options that were given, as words of a command line, to be passed on."""
    return words_of(options, [name for name in names if name in options.given])


def command_line_only_words(options: Options) -> list[str]:
    """Return the given options that a flag file cannot pass on, as words of a command line."""
    held = declarations(type(options))
    return given_words(options, [name for name in held if held[name][2].command_line_only])


def wants_help(argv: Sequence[str]) -> bool:
    """Whether the command line asks for the flags."""
    return any(word in _HELP for word in argv[1:])


def wants_debug(argv: Sequence[str]) -> bool:
    """Whether `--debug` is among the words, also where they cannot be parsed."""
    last = ""
    for word in argv[1:]:
        name, _, value = word.lstrip("-").partition("=")
        if word.startswith("-") and name in ("debug", "nodebug"):
            last = "false" if name == "nodebug" else value.lower() or "true"
    return last in ("true", "t", "1", "yes", "y")


def _read(
    options: type[Options], flags: Mapping[str, Flag], words: Sequence[str]
) -> absl_flags.FlagValues:
    values = _flag_values(flags)
    # absl's own --undefok would let unknown flags pass, and none of ours is mistyped on purpose.
    names = [_name(word, ()) for word in words if word.startswith("-")]
    try:
        if "undefok" in names:
            raise absl_flags.UnrecognizedFlagError("undefok")
        left_over = values([options.command, *words])[1:]
    except absl_flags.UnrecognizedFlagError as error:
        name = error.flagname
        word = next((word for word in words if _name(word, ()) == name), f"--{name}")
        raise UsageError(options.refusal(name, word) or _unknown(options, name, word)) from error
    except absl_flags.Error as error:
        raise UsageError(_refused(flags, one_line(error))) from error
    for name, flag in flags.items():
        # A shell's variable that is not set. (A list may say that there is nothing of its kind.)
        empty = name not in _READ_FIRST and values[name].present and values[name].value in ("", [])
        if empty and not (flag.kind is tuple and flag.default == ()):
            raise UsageError(f"{name} must not be empty. Received: {name}=")
    if left_over:
        received = " ".join(left_over)
        refusal = options.refusal(None, received)
        files = [word for word in left_over if word.endswith(recipes.ENDING)]
        hint = f" Did you mean --flagfile={files[0]}?" if files else ""
        raise UsageError(refusal or f"flags start with --.{hint} Received: {received}")
    return values


def _unknown(options: type[Options], name: str, word: str) -> str:
    """What is said of a flag that there is not: which may have been meant, and whose it is."""
    from experiments.options.run_options import RunOptions  # which knows this module's neighbors

    held = declarations(options)
    known = [*held, *(f"no{each}" for each, (_, _, flag) in held.items() if flag.kind is bool)]
    commands = registries.commands_with(name)
    if name in declarations(RunOptions):
        commands = [RunOptions.command, *commands]
    others = f" It is one of {' and '.join(commands[:3])}." if commands else ""
    return (
        f"{name} is no flag of {options.command}.{did_you_mean(name, known)}{others} --help lists "
        f"them. Received: {word}"
    )


def _refused(flags: Mapping[str, Flag], text: str) -> str:
    """What absl says of a value, in our form where that says more."""
    wrong = _WRONG.fullmatch(text)
    if wrong is None or wrong[1] not in flags:
        return text
    (name, value, why), flag = wrong.groups(), flags[wrong[1]]
    hint = ""
    if flag.choices:
        why = f"must be one of {', '.join(flag.choices)}"
        hint = did_you_mean(value, flag.choices)
    elif flag.kind is bool:
        why = "must be true or false"
    return f"{name} {why}.{hint} Received: {name}={value}"


def _flag_values(flags: Mapping[str, Flag]) -> absl_flags.FlagValues:
    values = absl_flags.FlagValues()
    for name, flag in flags.items():
        if name in _READ_FIRST and name != "help":
            continue
        text = ""  # absl's help is never shown
        default: Any = flag.default
        if flag.kind is tuple and default:
            default = list(default)
        if flag.repeated:
            absl_flags.DEFINE_multi_string(name, default or [], text, flag_values=values)
        elif flag.kind is tuple:
            absl_flags.DEFINE_list(name, default, text, flag_values=values)
        elif flag.choices:
            absl_flags.DEFINE_enum(name, default, flag.choices, text, flag_values=values)
        elif flag.kind is bool:
            absl_flags.DEFINE_bool(name, default, text, flag_values=values)
        elif flag.kind in (int, float):
            low, high = flag.lower_bound, flag.upper_bound
            parser: absl_flags.ArgumentParser
            if flag.kind is int:
                least = None if low is None else int(low)
                parser = _WholeParser(least, _MOST_WHOLE if high is None else int(high))
            else:
                parser = _NumberParser(low, high)
            absl_flags.DEFINE(parser, name, default, text, values, absl_flags.ArgumentSerializer())
        else:
            absl_flags.DEFINE_string(name, default, text, flag_values=values)
    return values


def _value(flag: Flag, value: Any) -> Any:
    if flag.kind is tuple and value is not None:
        return tuple(value)
    if flag.kind is pathlib.Path:
        return absolute(value) if value else None
    return flag.convert(value) if flag.convert and value else value


def _present(values: absl_flags.FlagValues) -> frozenset[str]:
    return frozenset(name for name in values if values[name].present)


def _name(word: str, known: Collection[str]) -> str:
    """The flag that a word names; with `known`, also as --noNAME."""
    name = word.lstrip("-").partition("=")[0]
    return name if not known or name in known else name.removeprefix("no")
