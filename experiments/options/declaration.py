"""How a command declares its options: as the fields of a frozen dataclass.

    @dataclasses.dataclass(frozen=True, kw_only=True)
    class SearchOptions(Options):
        command = "experiments.search"
        intro = "Find the images of an index that look most like yours."
        k: int = option(10, "Search", "How many.", lower_bound=1)

The annotation is the flag's type, the default its default; `parsing.parse` makes the value,
`help.help_text` the help, and nothing else says what flags there are.
"""

from __future__ import annotations

import dataclasses
import functools
import pathlib
import types
import typing
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

__all__ = ["Flag", "Options", "declarations", "flags_of", "option"]

_FLAGS, _PREFIX = "flags", "prefix"
_KINDS = (bool, int, float, str, tuple, pathlib.Path)
COMMON = "Every command"


@dataclasses.dataclass(frozen=True)
class Flag:
    """One flag.

    Attributes:
        name: without dashes.
        kind: `bool`, `int`, `float`, `str`, `tuple` (words with commas between them; `repeated`:
            one for each time that the flag is given) or `pathlib.Path`.
        default: its value where it is not given.
        group: heading that the help shows it under.
        text: what it means, a paragraph a line; a function where that is read from somewhere.
        lower_bound, upper_bound: of a number.
        choices: the words that it may be.
        repeated: see `kind`.
        convert: from a value that is not empty to the one that the options hold.
        command_line_only: whether flag files cannot set it. A flag file may come from a stranger,
            for example as the flags of a run.
    """

    name: str
    kind: type
    default: Any
    group: str
    text: str | Callable[[], str]
    lower_bound: float | None = None
    upper_bound: float | None = None
    choices: tuple[str, ...] | None = None
    repeated: bool = False
    convert: Callable[[Any], Any] | None = None
    command_line_only: bool = False


def option(
    default: Any,
    group: str,
    text: str | Callable[[], str],
    *,
    lower_bound: float | None = None,
    upper_bound: float | None = None,
    choices: tuple[str, ...] | None = None,
    repeated: bool = False,
    convert: Callable[[Any], Any] | None = None,
    command_line_only: bool = False,
) -> Any:
    """A field of an options class that is a flag of its name; arguments as of `Flag`."""

    def read(name: str, annotation: Any) -> tuple[Flag, ...]:
        kind = _kind(name, annotation)
        return (
            Flag(
                name, kind, default, group, text,
                lower_bound, upper_bound, choices, repeated, convert, command_line_only,
            ),
        )  # fmt: skip

    return dataclasses.field(default=default, metadata={_FLAGS: read})


def flags_of(read: Callable[[], tuple[Flag, ...]], prefix: str = "") -> Any:
    """A field that holds the values of several flags, which `read` finds in a registry.

    Its value is a mapping from the flags' names, without the prefix, to what is not None.
    """
    return dataclasses.field(
        default_factory=lambda: types.MappingProxyType({}),
        metadata={_FLAGS: lambda name, annotation: read(), _PREFIX: prefix},
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options:
    """What every command takes, and what is known of its command line.

    Class attributes:
        command: the module that is run, `experiments.NAME`, with the words that come first.
        intro: what the help says before the flags.

    Attributes:
        given: the flags that were given, on the command line or in a flag file.
        on_command_line: those of them that were given on the command line itself.
        recipe: name of the last flag file, without its ending; None without one.
    """

    command: ClassVar[str] = ""
    intro: ClassVar[str] = ""

    flagfile: tuple[str, ...] = option(
        (),
        COMMON,
        "A file with a flag a line, here or among the packaged recipes; may be repeated, and name "
        "others. What is given on the command line overrides it.",
        repeated=True,
    )
    debug: bool = option(False, COMMON, "Show the traceback of an internal error.")
    help: bool = option(False, COMMON, "Show this and end; so do -h, --helpfull and --helpshort.")

    given: frozenset[str] = frozenset()
    on_command_line: frozenset[str] = frozenset()
    recipe: str | None = None

    @classmethod
    def of_flag_files(cls) -> type[Options]:
        """The options whose flags a flag file may hold; those that are not this command's own
        are left out."""
        return cls

    @classmethod
    def refusal(cls, name: str | None, received: str) -> str | None:
        """What to say of a flag that the command does not take (name None: of other words); None:
        the usual."""
        return None


def declarations(options: type[Options]) -> Mapping[str, tuple[str, str, Flag]]:
    """All flags of an options class by name, group by group: first the groups that the class
    declares itself, last that of every command.

    Returns:
        For each name `(field, key, flag)`: the field that holds it, and its key in the field's
        mapping, "" where the field is the value.

    Raises:
        TypeError: two flags of one name, an annotation that is no kind of a flag.
    """
    return _declarations(typing.cast(Any, options))


# Its own function: mypy takes no class of hashable things for hashable.
@functools.cache
def _declarations(options: Any) -> Mapping[str, tuple[str, str, Flag]]:
    annotations = typing.get_type_hints(options)
    found: dict[str, tuple[str, str, Flag]] = {}
    for field in dataclasses.fields(options):
        if _FLAGS not in field.metadata:
            continue
        prefix = field.metadata.get(_PREFIX)
        for flag in field.metadata[_FLAGS](field.name, annotations[field.name]):
            if flag.name in found:
                raise TypeError(f"{options.__name__} declares --{flag.name} twice")
            key = "" if prefix is None else flag.name.removeprefix(prefix)
            found[flag.name] = field.name, key, flag
    groups = list(dict.fromkeys(flag.group for _, _, flag in found.values()))
    declared = vars(options).get("__annotations__", {})
    own = {flag.group for field_name, _, flag in found.values() if field_name in declared}
    groups.sort(key=lambda group: (group == COMMON, group not in own))
    return types.MappingProxyType(
        {name: held for group in groups for name, held in found.items() if held[2].group == group}
    )


def _kind(name: str, annotation: Any) -> type:
    kinds = {
        typing.get_origin(kind) or kind
        for kind in (
            typing.get_args(annotation)
            if isinstance(annotation, types.UnionType)
            else (annotation,)
        )
        if kind is not type(None)
    }
    if len(kinds) != 1 or not kinds <= set(_KINDS):
        raise TypeError(f"{name} is annotated as {annotation}, which no flag can be")
    return kinds.pop()
