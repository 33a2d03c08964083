"""Checks of flags that need or exclude each other, from their declarations."""

from __future__ import annotations

from experiments.options.declaration import Options, declarations
from experiments.options.errors import UsageError
from experiments.options.help import shown


def check_together(options: Options) -> None:
    """Check `Flag.needs` and `Flag.not_with` of all flags that do not have their default.

    Raises:
        UsageError: A flag is set without the flag that it needs, or with a flag that it excludes.
    """
    # The values of the flags of registries depend on the chosen entry.
    flags = {name: flag for name, (_, key, flag) in declarations(type(options)).items() if not key}
    values = {name: shown(getattr(options, name)) for name in flags}
    changed = {name for name, flag in flags.items() if values[name] != shown(flag.default)}

    def has(word: str) -> bool:
        name, equals, value = word.partition("=")
        return values[name] == value if equals else name in changed

    for name in sorted(changed):
        flag = flags[name]
        wanted = f"{name} must be {shown(flag.default) or 'unset'}"
        if flag.needs is not None and not has(flag.needs):
            has_value = "=" in flag.needs or flags[flag.needs].kind is bool
            other = flag.needs if has_value else f"{flag.needs}=..."
            raise UsageError(f"{wanted} without --{other}, but got {values[name]}.")
        for other in filter(has, flag.not_with):
            raise UsageError(f"{wanted} with --{other}, but got {values[name]}.")
