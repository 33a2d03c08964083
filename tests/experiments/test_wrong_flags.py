"""Invalid values of every flag of every command: one clear line."""

import importlib

import pytest
from trials import Tally

from experiments.__main__ import commands
from experiments.options import Options, declarations, parse
from experiments.options.visible import visible

NO_NUMBERS = [
    "",
    "nan",
    "inf",
    "-inf",
    "1e999",
    "x",
    "1,1",
    "١٢",
    "²",
    "1_0",
    "0x10",
    "None",
    " ",
    "--",
]
WRONG = {
    int: [*NO_NUMBERS, "1.5", "1e3", str(2**70), str(-(2**70)), "9" * 5000, "True"],
    float: [*NO_NUMBERS, "1e308", "-1e308", "9" * 5000, "True"],
    bool: ["", "maybe", "2", "nan", "-1", "1,1"],
}
"""Type of a flag -> values that no flag of the type accepts."""


def all_options():
    """Return the options class of each command and benchmark, by the command's name."""
    for name in commands():
        importlib.import_module(f"experiments.{name}")
    found, waiting = {}, [Options]
    while waiting:
        for kind in waiting.pop().__subclasses__():
            waiting.append(kind)
            if kind.__module__.startswith("experiments.") and "command" in vars(kind):
                found.setdefault(kind.command, kind)
    return {command: kind for command, kind in found.items() if command}


def wrong_values(flag):
    """Return values that the flag's declaration excludes."""
    if flag.choices:
        several = [] if flag.kind is tuple else [",".join(flag.choices * 2)]
        return ["", "x", "nan", flag.choices[0].upper() + "_", *several]
    values = list(WRONG.get(flag.kind, []))
    if flag.lower_bound is not None:
        values += [str(flag.lower_bound - 1)] + ["-1"] * (flag.lower_bound > -1)
    if flag.upper_bound is not None:
        values.append(str(flag.upper_bound + 1))
    if (
        flag.kind not in WRONG
        and not flag.repeated
        and not (flag.kind is tuple and flag.default == ())
    ):
        values.append("")
    return values


def names_both(said, name, value):
    """Return whether a message names a flag and shows the first 60 characters of its value."""
    shown = visible(" ".join(value.split()))[:60]
    return name in said and (shown in said or shown.strip() in said)


def parsed_wrongly(options, name, value):
    """Return the fault in how a wrong value is handled, or None."""
    try:
        parse(options, ["command", f"--{name}={value}"])
    except ValueError as error:
        said = " ".join(str(error).split())
        if type(error).__name__ not in ("UsageError", "RecipeError"):
            return f"{type(error).__name__}: {said[:200]}"
        return None if names_both(said, name, value) else f"said {said[:200]}"
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "taken"


def declared_there(options):
    """Return a command's flags, except flags that it forwards to another command."""
    bases = [base for base in options.__mro__[1:] if vars(base).get("command")]
    theirs = {name: flag for base in bases for name, flag in declarations(base).items()}
    return {name: one for name, one in declarations(options).items() if theirs.get(name) != one}


@pytest.mark.parametrize("command", all_options())
def test_values_outside_the_declaration_of_a_flag_are_refused(command, capsys):
    options = all_options()[command]
    tally = Tally(f"wrong values of flags of {command}")
    for name, (_, _, flag) in declared_there(options).items():
        for value in wrong_values(flag):
            fault = None if name == "help" else parsed_wrongly(options, name, value)
            if fault:
                tally.fail(0, f"--{name}={value[:30]}: {fault}")
            else:
                tally.add("refused in one line that names the flag")
    tally.check(capsys)
