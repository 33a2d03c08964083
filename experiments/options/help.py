"""What `--help` prints, from the declarations."""

from __future__ import annotations

import textwrap

from experiments.options.declaration import Flag, Options, declarations

__all__ = ["flag_lines", "help_text", "shown"]

_WIDTH = 88


def help_text(options: type[Options]) -> str:
    """The introduction, then the flags by group, each with its default, limits and meaning."""
    return "\n".join([options.intro.strip("\n"), *flag_lines(options)]) + "\n"


def flag_lines(options: type[Options]) -> list[str]:
    """The flags by group."""
    lines: list[str] = []
    group = None
    for _, _, flag in declarations(options).values():
        if flag.group != group:
            group = flag.group
            lines += ["", group]
        lines.append(f"  --{flag.name}={shown(flag.default)}")
        for paragraph in _text(flag).splitlines():
            lines += textwrap.wrap(
                paragraph, _WIDTH, initial_indent=" " * 6, subsequent_indent=" " * 6
            )
    return lines


def shown(value: object) -> str:
    """A value as it would be given."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return str(value).lower()
    return ",".join(map(str, value)) if isinstance(value, tuple) else str(value)


def _text(flag: Flag) -> str:
    text = flag.text if isinstance(flag.text, str) else flag.text()
    limits = []
    if flag.choices:
        limits.append(f"one of {', '.join(flag.choices)}")
    if flag.lower_bound is not None:
        limits.append(f"at least {flag.lower_bound:g}")
    if flag.upper_bound is not None:
        limits.append(f"at most {int(flag.upper_bound)}")
    if flag.repeated:
        limits.append("once or more")
    return f"{text} ({'; '.join(limits)})" if limits else text
