"""Suggestions for unknown words."""

import difflib
from collections.abc import Iterable


def did_you_mean(word: str, known: Iterable[str], ending: str = "") -> str:
    """Return a sentence with the most similar known words, after a space, or "" without one.

    Args:
        word: The unknown word.
        known: The known words.
        ending: Text that follows each known word.

    Examples:
        >>> did_you_mean("adma", ["sgd", "adam", "adamw"])
        ' Did you mean adam or adamw?'
    """
    folded = {each.casefold().replace("-", "_"): each for each in known}
    asked = word.casefold().replace("-", "_")
    near = [f"{folded[each]}{ending}" for each in difflib.get_close_matches(asked, folded, n=3)]
    return f" Did you mean {' or '.join(near)}?" if near else ""
