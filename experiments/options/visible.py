"""Escape control characters in file names before printing them."""

import re

# Control characters except the tab, line and paragraph separators, and text direction marks.
_HIDDEN = re.compile("[\0-\x08\n-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")


def visible(name: str) -> str:
    r"""Return a name with its control and text direction characters as escapes.

    Examples:
        >>> print(visible("cat\u202egnp.exe"))
        cat\u202egnp.exe
    """
    return _HIDDEN.sub(lambda found: f"\\u{ord(found[0]):04x}", name)


def visible_text(text: str) -> str:
    """Return a text with all characters except line ends escaped as in `visible`."""
    return "\n".join(map(visible, text.split("\n")))
