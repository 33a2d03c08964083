"""Names of files as they may be shown: nobody's terminal obeys them, and they read as they are."""

import re

__all__ = ["visible", "visible_text"]

# Controls but the tab, lines' and paragraphs' ends, and what turns the direction of writing.
_HIDDEN = re.compile("[\0-\x08\n-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")


def visible(name: str) -> str:
    r"""A name with its control and direction characters as escapes.

    Examples:
        >>> print(visible("cat\u202egnp.exe"))
        cat\u202egnp.exe
    """
    return _HIDDEN.sub(lambda found: f"\\u{ord(found[0]):04x}", name)


def visible_text(text: str) -> str:
    """A text of several lines, in which names stand, with all but its line ends made `visible`."""
    return "\n".join(map(visible, text.split("\n")))
