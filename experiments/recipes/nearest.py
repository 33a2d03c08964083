"""What somebody may have meant by a word that is not known."""

import difflib
from collections.abc import Iterable

__all__ = ["did_you_mean"]


def did_you_mean(word: str, known: Iterable[str], ending: str = "") -> str:
    """A sentence with the nearest of the known words, a space before it; "" where none is near.

    Args:
        word: what was given.
        known: what there is.
        ending: what is said behind each of the known words.

    Examples:
        >>> did_you_mean("adma", ["sgd", "adam", "adamw"])
        ' Did you mean adam or adamw?'
    """
    folded = {each.casefold().replace("-", "_"): each for each in known}
    asked = word.casefold().replace("-", "_")
    near = [f"{folded[each]}{ending}" for each in difflib.get_close_matches(asked, folded, n=3)]
    return f" Did you mean {' or '.join(near)}?" if near else ""
