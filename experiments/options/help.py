"""The output of `--help` and `--helpfull`, from the declarations."""

from __future__ import annotations

import textwrap

from experiments.options.declaration import Flag, Options, declarations

_WIDTH = 96


def help_text(options: type[Options], full: bool = False) -> str:
    """Return the introduction and the flags by group.

    Args:
        options: The options of the command.
        full: Whether to describe all flags with their limits. Otherwise the flags that the command
            declares itself and the common flags have one sentence each.
    """
    declared = declarations(options)
    own = vars(options).get("__annotations__", {})
    shown_flags = [
        flag for field, _, flag in declared.values() if full or flag.common or field in own
    ]
    lines = [options.intro.strip("\n")]
    group = None
    for flag in shown_flags:
        if flag.group != group:
            group = flag.group
            lines += ["", group]
        lines += _full(flag) if full else _short(flag)
    if len(shown_flags) < len(declared):
        lines += ["", f"--helpfull describes all {len(declared)} flags."]
    return "\n".join(lines) + "\n"


def shown(value: object) -> str:
    """Format a value as on a command line."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return str(value).lower()
    return ",".join(map(str, value)) if isinstance(value, tuple) else str(value)


def _short(flag: Flag) -> list[str]:
    return textwrap.wrap(
        flag.summary,
        _WIDTH,
        initial_indent=f"  {f'--{flag.name}={shown(flag.default)}':<29} ",
        subsequent_indent=" " * 32,
    )


def _full(flag: Flag) -> list[str]:
    lines = [f"  --{flag.name}={shown(flag.default)}"]
    limits = []
    if flag.choices:
        limits.append(f"one of {', '.join(flag.choices)}")
    if flag.lower_bound is not None:
        limits.append(f"at least {flag.lower_bound:g}")
    if flag.upper_bound is not None:
        limits.append(f"at most {int(flag.upper_bound)}")
    if flag.repeated:
        limits.append("once or more")
    if flag.required:
        limits.append("required")
    text = f"{flag.description} ({'; '.join(limits)})" if limits else flag.description
    for paragraph in text.splitlines():
        lines += textwrap.wrap(paragraph, _WIDTH, initial_indent=" " * 6, subsequent_indent=" " * 6)
    return lines
