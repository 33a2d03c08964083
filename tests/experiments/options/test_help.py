"""The help of every command lists exactly the flags that the command accepts."""

import importlib
import re

import pytest
import tiers
from processes import run_python

from experiments import benchmark
from experiments.__main__ import commands
from experiments.options import RunOptions, declarations, help_text, run_command
from experiments.options.parsing import parse


def options_of(module):
    """Return the options class of a command, or None for a command with subcommands."""
    found = [
        value
        for value in vars(module).values()
        if getattr(value, "command", None) == module.__name__ and isinstance(value, type)
    ]
    return found[0] if found else None


MODULES = {name: importlib.import_module(f"experiments.{name}") for name in commands()}
COMMANDS = {
    name: (module, options) for name, module in MODULES.items() if (options := options_of(module))
}
OPTIONS = [options for _, options in COMMANDS.values()]
OPTIONS += [options for options, _ in benchmark.BENCHMARKS.values()]


def shown(text):
    """Parse a help text: flag -> (default, description)."""
    found = re.findall(r"^  --(\w+)=(.*)\n((?:      .*\n)+)", text, re.MULTILINE)
    return {name: (default, " ".join(below.split())) for name, default, below in found}


@pytest.mark.parametrize("options", OPTIONS, ids=lambda options: options.command)
def test_every_flag_is_listed_with_its_default_and_limits(options):
    text = help_text(options, full=True)
    flags = shown(text)
    assert set(flags) == set(declarations(options))
    needed = [
        f"--{name}={flag.choices[0] if flag.choices else 'x'}"
        for name, (_, _, flag) in declarations(options).items()
        if flag.required
    ]
    for name, (_, _, flag) in declarations(options).items():
        default, below = flags[name]
        assert len(below) > 5
        assert f"\n{flag.group}\n" in text
        for choice in flag.choices or ():
            assert choice in below
        for bound in (flag.lower_bound, flag.upper_bound):
            assert bound is None or f"{int(bound)}" in below
        if flag.default is not None and name not in ("flagfile", "help"):
            # Setting a flag to its listed default changes nothing.
            line = ["command", *needed]
            given = parse(options, [*line, *([f"--{name}={default}"] if default else [])])
            assert getattr(given, name, None) in (getattr(parse(options, line), name, None),)


@pytest.mark.parametrize(
    ("name", "word"),
    [*((name, "--help") for name in COMMANDS), ("run", "-h"), ("run", "--helpfull")],
)
def test_a_command_prints_its_help(name, word, capsys):
    module, options = COMMANDS[name]
    assert run_command(module.main, [name, "--whatever", word]) == 0
    assert capsys.readouterr().out == f"{help_text(options, full=word == '--helpfull')}\n"


def test_the_benchmark_prints_the_help_of_one_or_all_benchmarks(capsys):
    assert run_command(benchmark.main, ["benchmark", "--help"]) == 0
    printed = capsys.readouterr().out
    for name, (options, _) in benchmark.BENCHMARKS.items():
        assert help_text(options) in printed
        assert run_command(benchmark.main, ["benchmark", name, "--help"]) == 0
        assert capsys.readouterr().out == f"{help_text(options)}\n"


LIGHT = [
    name
    for name, (_, options) in COMMANDS.items()
    if not any(key for _, key, _ in declarations(options).values())
]


@tiers.parametrize("name", LIGHT, LIGHT[:1])
def test_help_and_mistyped_flags_do_not_import_keras(name):
    """Import losses, samplers, and optimizers only for commands with their flags."""
    words = ["--help", "--epoch"] if name != "export" else ["--epoch"]
    check(name, words)


def test_the_help_of_a_run_does_not_import_tensorflow():
    program = (
        "import sys; sys.argv = ['run', '--help']\n"
        "from experiments.run import main; from experiments.options import run_command\n"
        "run_command(main); sys.exit('tensorflow' in sys.modules)"
    )
    assert "--loss=multi_similarity" in run_python("-c", program)


def test_a_wrong_value_is_refused_before_keras_is_imported():
    check("run", ["--epochs=many"])


def check(name, words):
    program = (
        f"import sys; from experiments.{name} import main\n"
        "from experiments.options import run_command\n"
        f"codes = [run_command(main, ['{name}', word]) for word in {words}]\n"
        "loaded = {'keras', 'tensorflow'} & set(sys.modules)\n"
        "sys.exit(f'{codes} {loaded}' if loaded else 0)"
    )
    run_python("-c", program)


def test_the_short_help_of_a_run_has_the_common_flags():
    text = help_text(RunOptions)
    flags = re.findall(r"^  --(\w+)=", text, re.MULTILINE)
    assert 20 <= len(flags) <= 36
    assert {"dataset", "loss", "backbone", "epochs", "output_dir", "images_per_class"} <= set(flags)
    assert "lora_layers" not in flags and f"describes all {len(declarations(RunOptions))}" in text
    assert max(map(len, text.splitlines())) <= 100
