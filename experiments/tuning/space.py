"""What is searched: hyper-parameters by the flags of a run, each with its bounds or its choices."""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Mapping, Sequence
from typing import TypeAlias

from experiments.options import Flag, RunOptions, UsageError, declarations
from experiments.options import run_options as groups
from experiments.options.loss_flags import taken_by
from experiments.recipes.nearest import did_you_mean

__all__ = [
    "Parameter",
    "Trial",
    "Value",
    "check_recipes",
    "own_values",
    "read_space",
    "without_password",
    "words_of_trial",
]

Value: TypeAlias = float | int | str
_FORM = "NAME=LOW:HIGH, NAME=LOW:HIGH:log or NAME=WORD,WORD"
# What says on which images a run is measured, and how: no search may choose that.
_FIXED = (groups.DATA, groups.EVALUATION, groups.RUN)


@dataclasses.dataclass(frozen=True)
class Parameter:
    """A hyper-parameter.

    Attributes:
        name: of a run's flag.
        low, high: the bounds, both included; whole numbers if `whole`. NaN where there are choices.
        log: whether values are drawn evenly on a logarithmic scale.
        whole: whether it is a whole number.
        choices: the words that it may be, in place of bounds.
    """

    name: str
    low: float = math.nan
    high: float = math.nan
    log: bool = False
    whole: bool = False
    choices: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        """As on a command line."""
        if self.choices:
            return f"{self.name}={','.join(self.choices)}"
        return f"{self.name}={self.low:g}:{self.high:g}{':log' * self.log}"


@dataclasses.dataclass(frozen=True)
class Trial:
    """Values that are tried.

    Attributes:
        number: from 0; of its folder too.
        values: by the names of the hyper-parameters.
        score: what they were worth, 0 where the training broke; None while that is not known.
    """

    number: int
    values: Mapping[str, Value]
    score: float | None = None


def read_space(words: Sequence[str], recipe: str, options: RunOptions) -> tuple[Parameter, ...]:
    """The hyper-parameters that are searched for a recipe, in the order that they are given in.

    Args:
        words: the values of `--search`: `NAME=LOW:HIGH`, with `:log` where values are drawn evenly
            on a logarithmic scale, or `NAME=WORD,WORD`; with `RECIPE/` before the name for one
            recipe alone.
        recipe: its name.
        options: what a run of it would be given.

    Raises:
        UsageError: a form or a flag that there is not, one that a search must leave alone or that
            is given beside, an argument that the recipe's loss does not take, bounds the wrong way
            round or out of the flag's own, or nothing to search for this recipe.
    """
    found: dict[str, Parameter] = {}
    for word in words:
        of, slash, _ = word.partition("=")[0].rpartition("/")
        if slash and of != recipe:
            continue
        name, equals, values = word[len(of) + len(slash) :].partition("=")
        if not (equals and name and values):
            raise _refused(f"must be {_FORM}", word)
        if name in found:
            raise _refused(f"must name {name} once", word)
        found[name] = _parameter(name, values, word, options)
    if not found:
        raise _refused(f"must name a hyper-parameter of {recipe}", " ".join(words))
    return tuple(found.values())


def check_recipes(words: Sequence[str], recipes: Sequence[str]) -> None:
    """UsageError where what stands before a `/` is none of the recipes."""
    for word in words:
        of, slash, _ = word.partition("=")[0].rpartition("/")
        if slash and of not in recipes:
            raise _refused(f"must name one of the recipes {', '.join(recipes)} before the /", word)


def own_values(space: Sequence[Parameter], options: RunOptions) -> dict[str, Value]:
    """What a recipe has itself of the hyper-parameters, where that is among what is searched.

    Args:
        space: of a search.
        options: of the recipe's runs.
    """
    taken, held = taken_by(options.loss), declarations(RunOptions)
    found: dict[str, Value] = {}
    for parameter in space:
        field, key, _ = held[parameter.name]
        value = getattr(options, field)
        value = value.get(key) if key else value
        if value is None and parameter.name in taken:
            value = taken[parameter.name].default
        if parameter.choices:
            word = str(value).lower() if isinstance(value, bool) else str(value)
            if word in parameter.choices:
                found[parameter.name] = word
        elif value is not None and parameter.low <= value <= parameter.high:
            found[parameter.name] = value
    return found


def words_of_trial(values: Mapping[str, Value]) -> list[str]:
    """Values as flags of a run: numbers of six digits, as they are used and shown."""
    return [
        f"--{name}={f'{value:.6g}' if isinstance(value, float) else value}"
        for name, value in values.items()
    ]


def without_password(url: str) -> str:
    """A URL as it may be shown."""
    return re.sub(r"//[^/@]*@", "//…@", url)


def _refused(what: str, word: str, hint: str = "") -> UsageError:
    return UsageError(f"search {what}.{hint} Received: search={word}")


def _parameter(name: str, values: str, word: str, options: RunOptions) -> Parameter:
    held = declarations(RunOptions).get(name)
    if held is None:
        hint = did_you_mean(name, declarations(RunOptions))
        raise _refused(f"must name a flag of experiments.run, which {name} is not", word, hint)
    field, _, flag = held
    if flag.group in _FIXED or flag.name in ("loss", "flagfile", "debug", "help"):
        raise _refused(
            f"is for what changes the training, not what is trained or measured, such as {name}",
            word,
        )
    if name in options.on_command_line:
        raise _refused(f"must not name {name}, which is given too", word)
    taken = taken_by(options.loss)
    if field == "given_for_loss" and name not in taken:
        raise _refused(
            f"must name arguments of loss {options.loss}, which takes {', '.join(taken) or 'none'}",
            word,
        )
    if flag.kind is tuple:
        raise _refused(f"is for flags of one value, not for {name}", word)
    if ":" in values and flag.kind in (int, float):
        return _range(flag, values, word)
    choices = tuple(values.split(","))
    if "" in choices or len(set(choices)) != len(choices) or len(choices) < 2:
        raise _refused(f"must be {_FORM}, two different words or more", word)
    allowed = taken[name].choices if field == "given_for_loss" else flag.choices
    if flag.kind is bool:
        allowed = ("true", "false")
    for choice in choices:
        if allowed and choice not in allowed:
            raise _refused(f"must be words of {', '.join(allowed)}", word)
        if flag.kind in (int, float):
            _number(flag, choice, word)
    return Parameter(name, choices=choices)


def _range(flag: Flag, values: str, word: str) -> Parameter:
    low_text, high_text, *more = values.split(":")
    if more not in ([], ["log"]):
        raise _refused(f"must be {_FORM}", word)
    low, high = (_number(flag, text, word) for text in (low_text, high_text))
    if low >= high:
        raise _refused(f"must have the lower bound of {flag.name} before the higher", word)
    if more and low <= 0:
        raise _refused("must have bounds above 0 for log", word)
    return Parameter(flag.name, low, high, bool(more), flag.kind is int)


def _number(flag: Flag, text: str, word: str) -> float:
    """A bound or a choice, within what the flag itself takes."""
    try:
        number = int(text) if flag.kind is int else float(text)
    except ValueError:
        number = math.nan
    plain = text.isascii() and "_" not in text and not text.isspace()
    if not (
        plain
        and math.isfinite(number)
        and abs(number) <= (2**31 - 1 if flag.kind is int else 3.4e38)
    ):
        kind = "whole numbers" if flag.kind is int else "numbers"
        raise _refused(f"must have {kind} for {flag.name}", word)
    if flag.lower_bound is not None and number < flag.lower_bound:
        raise _refused(f"must have {flag.name} of at least {flag.lower_bound:g}", word)
    if flag.upper_bound is not None and number > flag.upper_bound:
        raise _refused(f"must have {flag.name} of at most {flag.upper_bound:g}", word)
    return number
