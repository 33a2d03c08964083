"""The hyperparameters of a search: flags of a run with bounds or choices."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import TypeAlias

from experiments.options import Flag, RunOptions, UsageError, declarations
from experiments.options import run_options as groups
from experiments.options.absl_flags import converted
from experiments.options.declared import shown, value_of
from experiments.options.loss_flags import taken_by
from experiments.recipes.nearest import did_you_mean

Value: TypeAlias = float | int | str
_FORM = "NAME=LOW:HIGH, NAME=LOW:HIGH:log or NAME=WORD,WORD"
# Groups of flags that select the images of a run and their evaluation, which no search may change.
_FIXED = (groups.DATA, groups.EVALUATION, groups.RUN)


@dataclasses.dataclass(frozen=True)
class Parameter:
    """A hyperparameter.

    Attributes:
        name: Name of the flag.
        low, high: Inclusive bounds. They are unused if there are choices.
        log: Whether to draw values uniformly on a logarithmic scale.
        whole: Whether values are integers.
        choices: Valid words, instead of bounds.
    """

    name: str
    low: float = 0.0
    high: float = 0.0
    log: bool = False
    whole: bool = False
    choices: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        """The hyperparameter as on a command line."""
        if self.choices:
            return f"{self.name}={','.join(self.choices)}"
        return f"{self.name}={self.low:g}:{self.high:g}{':log' * self.log}"


@dataclasses.dataclass(frozen=True)
class Trial:
    """Values of the hyperparameters.

    Attributes:
        number: Number of the trial, from 0, and of its folder.
        values: Values by the names of the hyperparameters.
        score: Score, 0 if the training diverged. None while it is unknown.
    """

    number: int
    values: Mapping[str, Value]
    score: float | None = None


def read_space(
    words: Sequence[str], recipe: str, options: RunOptions, recipes: Sequence[str]
) -> tuple[Parameter, ...]:
    """Return the hyperparameters of a recipe, in the order of the words.

    Args:
        words: Values of `--search`: `NAME=LOW:HIGH`, `NAME=LOW:HIGH:log`, or `NAME=WORD,WORD`, with
            `RECIPE/` before the name for one recipe only.
        recipe: Name of the recipe.
        options: Options of a run of the recipe.
        recipes: Names of all recipes.

    Raises:
        UsageError: A word has another form or an invalid value, or names another recipe, or a flag
            that a search cannot change, that is also set, or that the recipe's loss does not take.
            Or no word is for this recipe.
    """
    found: dict[str, Parameter] = {}
    for word in words:
        of, slash, _ = word.partition("=")[0].rpartition("/")
        if slash and of not in recipes:
            raise _refused(f"name one of the recipes {', '.join(recipes)} before the /", word)
        if slash and of != recipe:
            continue
        name, equals, values = word[len(of) + len(slash) :].partition("=")
        if not (equals and name and values):
            raise _refused(f"be {_FORM}", word)
        if name in found:
            raise _refused(f"name {name} once", word)
        found[name] = _parameter(name, values, word, options)
    if not found:
        raise _refused(f"name a hyperparameter of {recipe}", " ".join(words))
    return tuple(found.values())


def own_values(space: Sequence[Parameter], options: RunOptions) -> dict[str, Value]:
    """Return a recipe's values of the hyperparameters, if they are within the search."""
    taken = taken_by(options.loss)
    found: dict[str, Value] = {}
    for parameter in space:
        value = value_of(options, parameter.name)
        if value is None and parameter.name in taken:
            value = taken[parameter.name].default
        if parameter.choices:
            if shown(value) in parameter.choices:
                found[parameter.name] = shown(value)
        elif value is not None and parameter.low <= value <= parameter.high:
            found[parameter.name] = value
    return found


def words_of_trial(values: Mapping[str, Value]) -> list[str]:
    """Return values as flags of a run. Numbers have six digits."""
    return [
        f"--{name}={f'{value:.6g}' if isinstance(value, float) else value}"
        for name, value in values.items()
    ]


def _refused(wanted: str, word: str, hint: str = "") -> UsageError:
    return UsageError(f"search must {wanted}, but got {word}.{hint}")


def _parameter(name: str, values: str, word: str, options: RunOptions) -> Parameter:
    declared = declarations(RunOptions)
    if name not in declared:
        raise _refused("name a flag of keras-dml run", word, did_you_mean(name, declared))
    field, _, flag = declared[name]
    if flag.group in _FIXED or name in ("loss", "flagfile", "debug", "help"):
        raise _refused("name a setting of the training, not of the data or the evaluation", word)
    if name in options.on_command_line:
        raise _refused(f"not name {name}, which is also set", word)
    taken = taken_by(options.loss)
    if field == "given_for_loss":
        if name not in taken:
            raise _refused(
                f"name an argument of loss={options.loss}",
                word,
                f" This loss takes {', '.join(taken) or 'no arguments'}.",
            )
        flag = dataclasses.replace(flag, words=taken[name].choices)
    if flag.kind is tuple:
        raise _refused("name a flag of one value", word)
    if ":" in values and flag.kind in (int, float):
        return _range(flag, values, word)
    choices = tuple(values.split(","))
    if "" in choices or len(set(choices)) != len(choices) or len(choices) < 2:
        raise _refused(f"be {_FORM}, with two different words or more", word)
    for choice in choices:
        _value(flag, choice, word)
    return Parameter(name, choices=choices)


def _range(flag: Flag, values: str, word: str) -> Parameter:
    low_text, high_text, *more = values.split(":")
    if more not in ([], ["log"]):
        raise _refused(f"be {_FORM}", word)
    low, high = _value(flag, low_text, word), _value(flag, high_text, word)
    if low >= high:
        raise _refused("have the lower bound before the higher bound", word)
    if more and low <= 0:
        raise _refused("have bounds above 0 for log", word)
    return Parameter(flag.name, low, high, bool(more), flag.kind is int)


def _value(flag: Flag, text: str, word: str) -> float:
    """Return a bound or a choice, as the flag converts it."""
    try:
        value: float = converted(flag, text)
    except UsageError as error:
        raise _refused("have values that the flag takes", word, f" {error}") from error
    return value
