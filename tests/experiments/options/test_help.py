"""The flags of every command: their help, their defaults, and values that they refuse."""

import importlib
import re

import pytest
import tiers
from processes import run_python
from tiny_run import command_of

from experiments import benchmark
from experiments.__main__ import commands
from experiments.options import (
    Options,
    RunOptions,
    UsageError,
    declarations,
    help_text,
    parse,
)
from experiments.options.visible import visible
from experiments.recipes import RecipeError


def subclasses(kind):
    return [each for child in kind.__subclasses__() for each in (child, *subclasses(child))]


for module in commands():
    importlib.import_module(f"experiments.{module}")
OPTIONS = {
    kind.command: kind
    for kind in subclasses(Options)
    if kind.__module__.startswith("experiments.") and vars(kind).get("command")
}
"""The options class of each command and benchmark, by the command's name."""
COMMANDS = {
    name: OPTIONS[f"experiments.{name}"] for name in commands() if f"experiments.{name}" in OPTIONS
}


def shown(text):
    """Parse a help text: flag -> (default, description)."""
    found = re.findall(r"^  --(?:\[no\])?(\w+): (.*\n(?:    .*\n)*)", text, re.MULTILINE)
    flags = {name: " ".join(below.split()) for name, below in found}
    defaults = {name: re.search(r"\(default: '(.*?)'\)", below) for name, below in flags.items()}
    return {name: (found[1] if (found := defaults[name]) else "", flags[name]) for name in flags}


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_every_flag_is_listed_with_its_default_and_limits(options):
    text = help_text(options, full=True)
    flags = shown(text)
    assert set(flags) == set(declarations(options))
    needed = [
        f"--{name}={flag.choices[0] if flag.choices else 'x'}"
        for name, (_, _, flag) in declarations(options).items()
        if flag.required
    ]
    bare = parse(options, ["command", *needed])
    for name, (_, _, flag) in declarations(options).items():
        default, below = flags[name]
        assert len(below) > 5
        assert f"\n{flag.group}:\n" in text
        for choice in flag.choices or ():
            assert choice in below.replace(" ", "")
        if flag.lower_bound is not None or flag.upper_bound is not None:
            assert re.search(r"positive |non-negative | >= | in the range ", below)
        if flag.default is not None and name not in ("flagfile", "help"):
            # Setting a flag to its listed default changes nothing.
            words = [f"--{name}={default}"] if default else []
            given = parse(options, ["command", *needed, *words])
            assert getattr(given, name, None) in (getattr(bare, name, None),)


def test_the_help_lists_every_loss_without_importing_them():
    from keras_dml import losses

    assert f"Loss: {', '.join(sorted(losses.LOSSES))}." in " ".join(help_text(RunOptions).split())


@pytest.mark.parametrize(
    ("name", "word"),
    [*((name, "--help") for name in COMMANDS), ("run", "-h"), ("run", "--helpfull")],
)
def test_a_command_prints_its_help(name, word, capsys):
    assert command_of(name)("--whatever", word) == 0
    expected = help_text(COMMANDS[name], full=word == "--helpfull")
    assert capsys.readouterr().out == f"{expected}\n"


def test_the_benchmark_prints_the_help_of_one_or_all_benchmarks(capsys):
    command = command_of("benchmark")
    assert command("--help") == 0
    printed = capsys.readouterr().out
    for name, (options, _) in benchmark.BENCHMARKS.items():
        assert help_text(options) in printed
        assert command(name, "--help") == 0
        assert capsys.readouterr().out == f"{help_text(options)}\n"


LIGHT = [
    name
    for name, options in COMMANDS.items()
    if not any(key for _, key, _ in declarations(options).values())
]


WITHOUT_KERAS = {name: ["--help"] for name in COMMANDS}
WITHOUT_KERAS |= {name: ["--help", "--epoch"] for name in LIGHT}
WITHOUT_KERAS |= {"run": ["--help", "--epochs=many", "--flagfile=no.flags"]}


@tiers.parametrize("name", WITHOUT_KERAS, [LIGHT[0], "run"])
def test_help_and_mistakes_do_not_import_keras(name):
    """Import losses and optimizers only to parse the flags of their arguments."""
    program = (
        f"import sys; from experiments.{name} import main\n"
        "from experiments.options import run_command\n"
        f"codes = [run_command(main, ['{name}', word]) for word in {WITHOUT_KERAS[name]}]\n"
        "loaded = {'keras', 'tensorflow'} & set(sys.modules)\n"
        "sys.exit(f'{codes} {loaded}' if loaded else 0)"
    )
    run_python("-c", program)


def test_the_short_help_of_a_run_has_the_common_flags():
    text = help_text(RunOptions)
    flags = re.findall(r"^  --(?:\[no\])?(\w+):", text, re.MULTILINE)
    assert 20 <= len(flags) <= 36
    assert {"dataset", "loss", "backbone", "epochs", "output_dir", "images_per_class"} <= set(flags)
    assert "lora_layers" not in flags and "--helpfull describes all flags" in text
    assert max(map(len, text.splitlines())) <= 100


NO_NUMBERS = ["nan", "inf", "1e999", "x", "1,1", "²", "None", "--", "", " "]
WRONG = {
    int: [*NO_NUMBERS, "1.5", "1e3", str(2**70), str(-(2**70)), "9" * 5000, "True"],
    float: [*NO_NUMBERS, "1e308", "-1e308", "9" * 5000, "True"],
    bool: ["maybe", "", "2", "nan", "-1", "1,1"],
}
"""Type of a flag -> values that no flag of the type accepts."""


def wrong_values(flag, is_first):
    """Return values that the flag's declaration excludes; all of them for the first of its type."""
    may_be_empty = flag.repeated or (flag.kind is tuple and flag.default == ())
    if flag.choices:
        several = [] if flag.kind is tuple else [",".join(flag.choices * 2)]
        empty = [] if may_be_empty else [""]
        return [*empty, "x", "nan", flag.choices[0].upper() + "_", *several]
    values = WRONG.get(flag.kind, [])[: None if is_first else 1]
    if flag.lower_bound is not None:
        values += [str(flag.lower_bound - 1)] + ["-1"] * (flag.lower_bound > -1)
    if flag.upper_bound is not None:
        values.append(str(flag.upper_bound + 1))
    return values if flag.kind in WRONG or may_be_empty else [*values, ""]


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_values_outside_the_declaration_of_a_flag_are_refused(options):
    # The flags of another command, to which this command forwards them, are tested there.
    bases = [base for base in options.__mro__[1:] if vars(base).get("command")]
    theirs = {name: flag for base in bases for name, flag in declarations(base).items()}
    own = {name: one for name, one in declarations(options).items() if theirs.get(name) != one}
    own.pop("help", None)
    kinds = set()
    for name, (_, _, flag) in own.items():
        for value in wrong_values(flag, flag.kind not in kinds):
            with pytest.raises((UsageError, RecipeError)) as refused:
                parse(options, ["command", f"--{name}={value}"])
            said = " ".join(str(refused.value).split())
            # The message shows the first characters of the value.
            assert name in said and visible(" ".join(value.split()))[:60].strip() in said
        if not flag.choices:
            kinds.add(flag.kind)
