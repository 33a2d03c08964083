"""Invalid values of every flag of every command: exit code 2 and one clear line."""

import importlib

import numpy as np
import pytest
from photo_search import make_index, write_photos
from tiny_run import TINY
from trials import Tally, seeds

from experiments.__main__ import commands
from experiments.options import Options, declarations, parse, run_command
from experiments.options.loss_flags import taken_by
from experiments.options.visible import visible
from keras_dml.losses import LOSSES

MODULES = {name: importlib.import_module(f"experiments.{name}") for name in commands()}
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

WORDS = [
    "", " ", "x", "nan", "-1", "1e308", "1,1", "0", "١,٢", "inf,1", "1,,2", "1,2,3,4,5", ",", "a,b",
    str(2**70), f"{2**70},1", "x" * 300, "\x1b[31m", "a\nb", "../..", "hub:x", "x.keras", "1x1x1",
    "²", "-1,-1", "1,1,1,1", "9x", "tfds:x", "1,nan", "0,0", "0x0", "2,1",
]  # fmt: skip
"""Values of text flags: valid for some flags, invalid for others."""

FREE = {
    "allowed_host", "cache_dir", "output", "output_dir",
}  # fmt: skip
"""Flags that accept any text that is not empty."""


def all_options():
    """Return the options class of each command and benchmark, by the command's name."""
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
        return ["", "x", "nan", flag.choices[0].upper() + "_", ",".join(flag.choices)]
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


class _Began(BaseException):
    """The command accepted its flags and is about to start."""


class Commands:
    """Commands with a valid command line each. Training commands stop before they train."""

    def __init__(self, folder, monkeypatch):
        photos = write_photos(
            folder / "photos", [f"{kind}/{n}.png" for kind in "abcdefgh" for n in range(4)]
        )
        index = make_index(folder / "index")
        self._folder, self._number = folder, 0
        self._lines = {
            "run": [*TINY, f"--data_dir={photos}"],
            "preview": [*TINY, f"--data_dir={photos}", f"--output={folder / 'x.png'}"],
            "search": [f"--index={index}", f"--query={photos / 'a/0.png'}",
                       f"--output={folder / 'x.html'}"],
            "index": [f"--saved_model={index.parent / 'model'}", f"--images={photos}"],
        }  # fmt: skip
        from experiments.training import fit
        from keras_dml import export

        def begin(*arguments):
            raise _Began

        monkeypatch.setattr(fit, "restored", begin)
        monkeypatch.setattr(export, "check_export", lambda *arguments: None)
        monkeypatch.chdir(folder)

    @property
    def names(self):
        """Names of the commands."""
        return list(self._lines)

    def end_of(self, name, words, capsys):
        """Run a command with extra arguments. Return its exit code and stderr.

        The exit code is 0 if the command accepts its flags.
        """
        self._number += 1
        line = [*self._lines[name], *words]
        if name in ("run", "index") and not any(word.startswith("--output") for word in words):
            output = "output_dir" if name == "run" else "output"
            line.insert(0, f"--{output}={self._folder / f'{name}{self._number}'}")
        capsys.readouterr()
        try:
            code = run_command(MODULES[name].main, [name, *line])
        except _Began:
            code = 0
        return code, capsys.readouterr().err


def drawn(name, rng):
    """Draw a flag of a command, an invalid or doubtful value, and the flags that it needs."""
    held = declarations(all_options()[f"experiments.{name}"])
    flags = [flag for flag in held if flag not in ("help", "flagfile", "debug")]
    flag = held[flags[rng.integers(len(flags))]][2]
    values = wrong_values(flag)
    if flag.kind in (int, float) and not flag.choices:
        values += ["0", "-1", "-0.5", "1e30", "2147483647", "1e-30"] if flag.kind is float else [
            "0", "-1", "-2147483648", "2147483647"]  # fmt: skip
    if flag.kind not in WRONG and not flag.choices:
        values += WORDS
    losses = [loss for loss in LOSSES if flag.name in taken_by(loss)] if "loss" in held else []
    others = [f"--loss={losses[rng.integers(len(losses))]}"] if losses else []
    if flag.name.startswith("proxies_"):
        others = ["--loss=norm_softmax"]
    if flag.name.startswith("statistics_"):
        others = ["--loss=rankmi"]
    if flag.name.startswith("memory_"):
        of_memory = {"memory_size": 16, "memory_start_step": 0}
        others = [f"--{name}={value}" for name, value in of_memory.items() if name != flag.name]
    return flag, values[rng.integers(len(values))] if values else "x", others


def fault_of(flag, value, code, said):
    """Return the fault in a command's exit code or output, or None."""
    lines = [
        line for line in said.splitlines() if line.startswith(("error:", "stopped:", "internal"))
    ]
    if code == 0:
        meaningless = value in wrong_values(flag)
        return "taken" if meaningless else None
    if code != 2 or len(lines) != 1 or not lines[0].startswith("error: ") or "Traceback" in said:
        return f"exit code {code}: {said[-400:]}"
    if len(lines[0]) > 3000 + len(value):
        return f"a line of {len(lines[0])} characters: {lines[0][:200]}"
    # For a list, the message shows the parsed value, not the value from the command line.
    listed = flag.kind is tuple and f"{flag.name} must" in lines[0] and "Received: " in lines[0]
    if listed or names_both(lines[0], flag.name, value) or flag.name in FREE:
        return None
    return f"does not name both: {lines[0][:300]}"


def fuzz(count, folder, monkeypatch, capsys):
    commands = Commands(folder, monkeypatch)
    tally = Tally("commands with a wrong flag")
    for seed in seeds(count):
        rng = np.random.default_rng([seed, 19])
        name = str(rng.choice(commands.names, p=[0.6, 0.2, 0.1, 0.1]))
        flag, value, others = drawn(name, rng)
        code, said = commands.end_of(name, [*others, f"--{flag.name}={value}"], capsys)
        fault = fault_of(flag, value, code, said)
        if fault:
            tally.fail(seed, f"{name} {' '.join(others)} --{flag.name}={value[:40]!r}: {fault}")
        else:
            tally.add("refused in one line" if code else "taken")
    return tally


@pytest.mark.slow
@pytest.mark.thorough
def test_whole_commands_refuse_wrong_flags(tmp_path, monkeypatch, capsys):
    fuzz(1200, tmp_path, monkeypatch, capsys).check(capsys)
