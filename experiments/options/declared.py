"""Declarations of a command's options, as the fields of a frozen dataclass.

    @dataclasses.dataclass(frozen=True, kw_only=True)
    class SearchOptions(Options):
        '''The options of a search.

        Attributes:
            k: Number of neighbors.
        '''

        command = "experiments.search"
        intro = "Find the images of an index that look most like yours."
        group = "Search"
        k: int = option(10, lower_bound=1)

The annotation is the flag's type, and the docstring has its description. `absl_flags.flag_values`
defines the flags for absl, and `command_words.parse` fills the dataclass.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import pathlib
import re
import types
import typing
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

_FLAGS, _PREFIX, _LIGHT = "flags", "prefix", "light"
_KINDS = (bool, int, float, str, tuple, pathlib.Path)
COMMON = "Every command"


@dataclasses.dataclass(frozen=True)
class Flag:
    """One flag.

    Attributes:
        name: Name without dashes.
        kind: `bool`, `int`, `float`, `str`, `pathlib.Path`, or `tuple` (words separated by commas,
            or, if `repeated`, one word for each time that the flag is set).
        default: Default value. A flag whose default is None can be unset: `--NAME=none`.
        group: Heading in the help.
        text: Description, one paragraph per line. The first sentence is the short help. A function
            reads the text from files that do not import Keras.
        details: Returns further paragraphs from a registry, for --helpfull.
        lower_bound, upper_bound: Inclusive bounds of a number.
        words: Valid words, or a function that reads them from a registry.
        repeated: See `kind`.
        convert: Conversion of a value that is not empty.
        command_line_only: Whether flag files cannot set the flag. A flag file can come from a
            stranger, for example as the flags of a run.
        recorded: Whether `resolved` contains the flag. False for flags that do not change the
            results of a run.
        common: Whether the short help of a command that inherits the flag shows it.
        required: Whether the flag must be set.
        can_be_unset: Whether `--NAME=none` unsets a flag whose default is None. If not, "none" is a
            value.
        needs: Flag that must be set, too: `NAME`, or `NAME=VALUE`. See `absl_flags.check_together`.
        not_with: Flags that must not be set, too.
    """

    name: str
    kind: type
    default: Any
    group: str
    text: str | Callable[[], str]
    details: Callable[[], str] | None = None
    lower_bound: float | None = None
    upper_bound: float | None = None
    words: tuple[str, ...] | Callable[[], tuple[str, ...]] | None = None
    repeated: bool = False
    convert: Callable[[Any], Any] | None = None
    command_line_only: bool = False
    recorded: bool = True
    common: bool = False
    required: bool = False
    can_be_unset: bool = True
    needs: str | None = None
    not_with: tuple[str, ...] = ()

    @property
    def choices(self) -> tuple[str, ...] | None:
        """Valid words. None if the flag takes other values."""
        return self.words() if callable(self.words) else self.words

    @property
    def description(self) -> str:
        """The text and the details."""
        text = self.text if isinstance(self.text, str) else self.text()
        return text if self.details is None else f"{text}\n{self.details()}"

    @property
    def summary(self) -> str:
        """First sentence of the text."""
        text = self.text if isinstance(self.text, str) else self.text()
        return re.split(r"(?<=\.) |\n", text, maxsplit=1)[0]

    @property
    def can_have_none(self) -> bool:
        """Whether `--NAME=none` unsets the flag."""
        return self.can_be_unset and self.default is None and not self.required


def option(
    default: Any,
    group: str | None = None,
    text: str | Callable[[], str] | None = None,
    *,
    choices: tuple[str, ...] | Callable[[], tuple[str, ...]] | None = None,
    **more: Any,
) -> Any:
    """Declare a field of an options class as a flag. Takes the attributes of `Flag`.

    Args:
        default: Default value.
        group: Heading in the help. None: the attribute `group` of the class.
        text: Description. None: the entry in the docstring of the class.
        choices: `Flag.words`.
        **more: Other attributes of `Flag`.
    """

    def read(name: str, annotation: Any, owner: type[Options]) -> tuple[Flag, ...]:
        kind = _kind(name, annotation)
        heading = owner.group if group is None else group
        described = documented(owner)[name] if text is None else text
        return (Flag(name, kind, default, heading, described, words=choices, **more),)

    return dataclasses.field(default=default, metadata={_FLAGS: read})


def documented(entry: object) -> dict[str, str]:
    """Return the text of each argument or attribute with a separate entry in the docstring."""
    docstring = inspect.getdoc(entry) or ""
    section = re.search(r"^(?:Args|Attributes):\n((?:[ ]+.*\n?|\n)*)", docstring, re.MULTILINE)
    entries: dict[str, str] = {}
    for part in re.split(r"^ {4}(?=\S)", section[1] if section else "", flags=re.MULTILINE):
        name, colon, text = part.partition(":")
        if colon and name.isidentifier():
            entries[name] = " ".join(text.split())
    return entries


def flags_of(read: Callable[[], tuple[Flag, ...]], prefix: str = "", light: bool = False) -> Any:
    """Declare a field that holds the values of several flags, which `read` takes from a registry.

    The field is a mapping from the flags' names, without the prefix, to values that are not None.

    Args:
        read: Returns the flags.
        prefix: Start of the flags' names.
        light: Whether the registry does not import Keras.
    """
    return dataclasses.field(
        default_factory=lambda: types.MappingProxyType({}),
        metadata={_FLAGS: lambda *_: read(), _PREFIX: prefix, _LIGHT: light},
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options:
    """Options of every command, and the origin of their values.

    Class attributes:
        command: Module of the command, `experiments.NAME`, and the words that precede the flags.
        intro: Introduction of the help.
        group: Heading of the class's flags in the help.

    Attributes:
        flagfile: File with one flag per line, here or among the recipes. Can be repeated, and can
            name other flag files. Flags on the command line override it.
        debug: Print the traceback of an internal error.
        help: Print the most important flags. --helpfull prints all flags.
        given: Names of the flags that are set, on the command line or in a flag file.
        on_command_line: Names of the flags that are set on the command line.
        recipe: Name of the last flag file, without its ending. None without flag files.
    """

    command: ClassVar[str] = ""
    intro: ClassVar[str] = ""
    group: ClassVar[str] = COMMON

    flagfile: tuple[str, ...] = option((), repeated=True, common=True, recorded=False)
    debug: bool = option(False, recorded=False)
    help: bool = option(False, common=True, recorded=False)

    given: frozenset[str] = frozenset()
    on_command_line: frozenset[str] = frozenset()
    recipe: str | None = None

    @classmethod
    def of_flag_files(cls) -> type[Options]:
        """Return the options whose flags a flag file can contain.

        Flags that the command itself does not take are ignored.
        """
        return cls

    @classmethod
    def followed(cls, in_files: Mapping[str, Any], on_line: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the values of the flag files, changed to fit the command line."""
        return in_files


Declarations = Mapping[str, tuple[str, str, Flag]]


def declarations(options: type[Options], registries: bool = True) -> Declarations:
    """Return all flags of an options class by name, group by group.

    The groups that the class declares itself come first, and the group of every command last.

    Args:
        options: The class.
        registries: Whether to include the flags of registries that import Keras.

    Returns:
        For each name `(field, key, flag)`: the field that holds the value, and the key in the
        field's mapping, which is "" if the field is the value itself.

    Raises:
        TypeError: Two flags have one name, or an annotation is not the type of a flag.
    """
    return _declarations(typing.cast(Any, options), registries)


# Separate function because mypy does not accept a class as hashable.
@functools.cache
def _declarations(options: Any, registries: bool) -> Declarations:
    annotations = typing.get_type_hints(options)
    owners = {
        name: owner
        for owner in reversed(options.__mro__)
        for name in vars(owner).get("__annotations__", {})
    }
    found: dict[str, tuple[str, str, Flag]] = {}
    for field in dataclasses.fields(options):
        prefix = field.metadata.get(_PREFIX)
        light = prefix is None or field.metadata[_LIGHT]
        if _FLAGS not in field.metadata or not (registries or light):
            continue
        for flag in field.metadata[_FLAGS](field.name, annotations[field.name], owners[field.name]):
            if flag.name in found:
                raise TypeError(f"{options.__name__} declares --{flag.name} twice")
            key = "" if prefix is None else flag.name.removeprefix(prefix)
            found[flag.name] = field.name, key, flag
    groups = list(dict.fromkeys(flag.group for _, _, flag in found.values()))
    declared = vars(options).get("__annotations__", {})
    own = {flag.group for field_name, _, flag in found.values() if field_name in declared}
    groups.sort(key=lambda group: (group == COMMON, group not in own))
    by_group = sorted(found.items(), key=lambda item: groups.index(item[1][2].group))
    return types.MappingProxyType(dict(by_group))


def value_of(options: Options, name: str) -> Any:
    """Return the value of a flag. None if it has none."""
    field, key, _ = declarations(type(options))[name]
    value = getattr(options, field)
    return value.get(key) if key else value


def shown(value: object) -> str:
    """Format a value as on a command line."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return str(value).lower()
    return ",".join(map(str, value)) if isinstance(value, (tuple, list)) else str(value)


def _kind(name: str, annotation: Any) -> type:
    members = (
        typing.get_args(annotation) if isinstance(annotation, types.UnionType) else (annotation,)
    )
    kinds = {typing.get_origin(kind) or kind for kind in members if kind is not type(None)}
    if len(kinds) != 1 or not kinds <= set(_KINDS):
        raise TypeError(f"{name} must have the type of a flag, but got {annotation}")
    return kinds.pop()
