"""The declared flags as flags of absl: their parsers, their help, and their validators."""

from __future__ import annotations

import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from absl import flags

from experiments.options.conversions import absolute
from experiments.options.declared import Flag, Options, declarations, shown, value_of
from experiments.options.errors import UsageError
from experiments.recipes.nearest import did_you_mean

UNSET = "none"


class _CommandFlags(flags.FlagValues):
    """The flags of one command.

    `--flagfile` is a flag like the others here: `parse` finds its files among the recipes, and the
    command line overrides them wherever they are on the line. absl would insert the files there.
    """

    def read_flags_from_files(self, argv: Sequence[str], force_gnu: bool = True) -> list[str]:
        """Return the words unchanged."""
        return list(argv)


class _WholeParser(flags.IntegerParser):
    """A parser of integers that TensorFlow counts in int32, unless an upper bound allows more."""

    def is_outside_bounds(self, val: int) -> bool:
        """Return whether the number is outside the bounds."""
        return super().is_outside_bounds(val) or (self.upper_bound is None and abs(val) >= 2**31)


class _FiniteParser(flags.FloatParser):
    """A parser of finite numbers that TensorFlow computes with in float32."""

    number_name = "finite number"
    syntactic_help = "a finite number"

    def is_outside_bounds(self, val: float) -> bool:
        """Return whether the number is outside the bounds, or NaN."""
        return super().is_outside_bounds(val) or not abs(val) < 3.4e38


class _RegistryParser(flags.ArgumentParser[str]):
    """A parser of the words of a registry, which is imported for words other than the default."""

    def __init__(self, words: Callable[[], tuple[str, ...]], default: str | None) -> None:
        super().__init__()
        self._words, self._default = words, default

    def parse(self, argument: str) -> str:
        """Return the word."""
        known = (self._default,) if argument == self._default else self._words()
        return flags.EnumParser(known).parse(argument)


class _ListParser(flags.ListParser):
    """A parser of words with commas between them.

    Args:
        word: The parser of a word.
    """

    def __init__(self, word: flags.ArgumentParser[Any]) -> None:
        super().__init__()
        self._word = word

    def parse(self, argument: str | list[str]) -> Any:
        """Return a tuple."""
        return tuple(self._word.parse(word) for word in super().parse(argument))


class _OptionFlag(flags.Flag[Any]):
    """A flag with the messages of this project, which `--NAME=none` can unset."""

    declared: Flag

    def parse(self, argument: Any) -> None:
        """Set the value. Raise `UsageError` if the flag cannot have it."""
        declared = self.declared
        if argument == UNSET and declared.can_have_none and UNSET not in self.static_words:
            self.value, self.present = None, self.present + 1
            return
        if not argument and (declared.repeated or declared.default != ()):
            raise UsageError(f"{self.name} must not be empty, but got {self.name}=.")
        try:
            super().parse(argument)
        except flags.IllegalFlagValueError as error:
            raise UsageError(f"{self.name} must be {self._wanted(argument)}") from error
        convert = absolute if declared.kind is pathlib.Path else declared.convert
        if convert is not None:
            self.value = convert(argument)

    @property
    def static_words(self) -> Sequence[str]:
        """The valid words that need no import."""
        words = self.declared.words
        return words if isinstance(words, tuple) else ()

    def _wanted(self, argument: str) -> str:
        if choices := self.declared.choices:
            words = argument.split(",") if self.declared.kind is tuple else [argument]
            wrong = [word.strip() for word in words if word.strip() not in choices]
            hint = did_you_mean(wrong[0], choices) if wrong else ""
            return f"one of {', '.join(choices)}, but got {argument}.{hint}"
        wanted = "true or false" if self.boolean else self.parser.syntactic_help
        article = "an " if wanted.startswith("integer") else ""
        return f"{article}{wanted}, but got {argument}. {self.declared.summary}"


class _RepeatedFlag(_OptionFlag, flags.MultiFlag[Any]):
    """A flag that can be set several times."""


def _absl_flag(declared: Flag) -> _OptionFlag:
    default, words, kind = declared.default, declared.words, declared.kind
    parser: flags.ArgumentParser[Any] = flags.ArgumentParser()
    serializer = None if kind is bool else flags.ArgumentSerializer[Any]()
    low: Any = declared.lower_bound
    high: Any = declared.upper_bound
    if words is not None:
        parser = _RegistryParser(words, default) if callable(words) else flags.EnumParser(words)
    elif kind is bool:
        parser = flags.BooleanParser()
    elif kind is int:
        parser = _WholeParser(low, high)
    elif kind is float:
        parser = _FiniteParser(low, high)
    if kind is tuple and not declared.repeated:
        parser, serializer = _ListParser(parser), flags.ListSerializer(",")
        default = None if default is None else ",".join(default)
    made = (_RepeatedFlag if declared.repeated else _OptionFlag)(
        parser, serializer, declared.name, default, "", boolean=kind is bool
    )
    made.declared = declared
    return made


def converted(declared: Flag, text: str) -> Any:
    """Return the value of a flag's text.

    Raises:
        UsageError: The flag cannot have this value.
    """
    flag = _absl_flag(declared)
    flag.parse(text)
    return flag.value


def flag_values(options: type[Options], registries: bool = True) -> flags.FlagValues:
    """Define the flags of a command in a new `FlagValues`, which has the defaults.

    Args:
        options: The options of the command.
        registries: Whether to define the flags of registries that import Keras.
    """
    values = _CommandFlags()
    for _, _, flag in declarations(options, registries).values():
        flags.DEFINE_flag(_absl_flag(flag), values, module_name=flag.group)
    return values


def filled(options: Options) -> flags.FlagValues:
    """Return the flags of a command with the values of its options."""
    values = flag_values(type(options))
    for name in declarations(type(options)):
        value = value_of(options, name)
        values[name].value = list(value) if isinstance(values[name], _RepeatedFlag) else value
    return values


def help_text(options: type[Options], full: bool = False) -> str:
    """Return the introduction and the flags by group, as absl formats them.

    Args:
        options: The options of the command.
        full: Whether to describe all flags. Otherwise the flags that the command declares itself
            and the common flags have one sentence each.
    """
    own = vars(options).get("__annotations__", {})
    page = _CommandFlags()
    for field, _, flag in declarations(options, registries=full).values():
        if full or flag.common or field in own:
            shown_flag = _absl_flag(flag)
            words = flag.choices if full else shown_flag.static_words
            shown_flag.help = f"<{'|'.join(words)}>: " if words else ""
            shown_flag.help += flag.description if full else flag.summary
            if flag.required:
                shown_flag.help += " (required)"
            if flag.default == ():
                shown_flag.default_as_str = None
            flags.DEFINE_flag(shown_flag, page, module_name=flag.group)
    groups = [page.module_help(group) for group in page.flags_by_module_dict()]
    more = [] if full else ["\n--helpfull describes all flags."]
    return "\n".join([options.intro.strip("\n"), *groups, *more, ""])


def check_together(options: Options) -> None:
    """Validate `Flag.needs` and `Flag.not_with` of all flags that do not have their default.

    Raises:
        UsageError: A flag is set without the flag that it needs, or with a flag that it excludes.
    """
    values = filled(options)
    declared = {name: flag for name, (_, _, flag) in declarations(type(options)).items()}
    for name in sorted(declared):
        flag = declared[name]
        for word in filter(None, (flag.needs, *flag.not_with)):
            other = word.partition("=")[0]
            if other in declared:  # a group of flags can belong to commands without the other
                flags.register_multi_flags_validator(
                    [name, other], _validator(flag, word, declared[other]), flag_values=values
                )
    values.validate_all_flags()


def _validator(flag: Flag, word: str, other: Flag) -> Callable[[Mapping[str, Any]], bool]:
    """Return a validator of a flag and of the flag that it needs or excludes."""
    needed, (name, equals, wanted) = word == flag.needs, word.partition("=")

    def is_valid(values: Mapping[str, Any]) -> bool:
        value, default = shown(values[flag.name]), shown(flag.default)
        of_other = shown(values[name])
        has = of_other == wanted if equals else of_other != shown(other.default)
        if value == default or has == needed:
            return True
        shown_word = word if equals or not needed or other.kind is bool else f"{word}=..."
        raise UsageError(
            f"{flag.name} must be {default or 'unset'} {'without' if needed else 'with'} "
            f"--{shown_word}, but got {value}."
        )

    return is_valid
