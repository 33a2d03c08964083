"""Recipes: one flag file for each run worth repeating; and how flag files are found and read."""

import pathlib
import re
from collections.abc import Collection, Iterable

from experiments.recipes.nearest import did_you_mean

__all__ = [
    "ENDING",
    "RecipeError",
    "find_recipe",
    "is_flagfile",
    "names",
    "paper_scores",
    "read_recipe",
    "without_flagfiles",
]

_ALL_LISTED = "python -m experiments.run --help lists them."
ENDING = ".flags"
"""Of the names of flag files."""
_PAPER = re.compile(r"# Paper(?:, (cosine|l2))?: (.*)")
_SCORE = re.compile(r"(?:R@(\d+)|NMI) ([01]\.\d+)")


class RecipeError(ValueError):
    """A flag file that is not there, cannot be read or holds what is no flag."""


PACKAGED = pathlib.Path(__file__).parent


def names() -> list[str]:
    """The packaged recipes, sorted."""
    return sorted(path.name for path in PACKAGED.glob(f"*{ENDING}"))


def find_recipe(name: str) -> pathlib.Path:
    """Path of a flag file: here, or among the packaged recipes; RecipeError names those."""
    here, packaged = pathlib.Path(name), PACKAGED / name
    if name and here.is_file():
        return here
    if name and packaged.is_file():
        return packaged
    beside = [str(path) for path in here.parent.glob(f"*{ENDING}")]
    known = [each.removesuffix(ENDING) for each in [*names(), *beside]]
    hint = did_you_mean(name.removesuffix(ENDING), known, ENDING)
    raise RecipeError(
        f"flagfile must be a file here or one of the recipes.{hint} {_ALL_LISTED} "
        f"Received: flagfile={name!r}"
    )


def paper_scores(path: pathlib.Path) -> dict[str, float]:
    """Return the scores that a recipe's paper prints, from the comments in the recipe.

    A row of the paper's table is a line `# Paper, cosine: R@1 0.7, R@2 0.8` or `# Paper, l2: …`,
    and its clustering score is `# Paper: NMI 0.7`.

    Args:
        path: the recipe. Flag files that it names are not read, because their scores belong to
            another loss or dataset.

    Returns:
        Fractions by the names of `keras_dml.metrics.evaluate`, such as `"recall@1/cosine"` and
        `"nmi"`.
    """
    scores = {}
    for line in path.read_text(encoding="utf-8").splitlines():
        if row := _PAPER.match(line):
            metric, printed = row.groups()
            for k, value in _SCORE.findall(printed):
                if (k == "") == (metric is None):
                    scores[f"recall@{k}/{metric}" if k else "nmi"] = float(value)
    return scores


def is_flagfile(word: str) -> bool:
    """Whether a word of a command line or flag file names a flag file."""
    return word.startswith("-") and word.lstrip("-").partition("=")[0] == "flagfile"


def without_flagfiles(words: Iterable[str]) -> tuple[list[str], list[str]]:
    """The other words of a command line, and the names of its flag files, "" for a missing one."""
    others: list[str] = []
    names: list[str] = []
    rest = iter(words)
    for word in rest:
        if is_flagfile(word):
            names.append(word.partition("=")[2] or next(rest, ""))
        else:
            others.append(word)
    return others, names


def read_recipe(
    path: pathlib.Path, known: Collection[str], within: tuple[pathlib.Path, ...] = ()
) -> list[str]:
    """The words of a flag file, those of the flag files that it names in their place.

    Raises:
        RecipeError: a file that cannot be read or names itself, or a line that is none of the flags
            of `known`: names the file and the line.
    """
    if path in within:
        raise RecipeError(f"flagfile {path} names itself")
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise RecipeError(f"flagfile {path} cannot be read: {error}") from error
    words: list[str] = []
    for number, line in enumerate(map(str.strip, lines), start=1):
        name = line.lstrip("-").partition("=")[0]
        if not line or line.startswith(("#", "//")):
            continue
        if is_flagfile(line):
            nested = path.parent / line.partition("=")[2]
            inner = nested if nested.is_file() else find_recipe(line.partition("=")[2])
            words += read_recipe(inner, known, (*within, path))
        elif line.startswith("-") and (name in known or name.removeprefix("no") in known):
            words.append(line)
        else:
            hint = did_you_mean(name, known)
            raise RecipeError(f"flagfile {path}, line {number} is no flag.{hint} Received: {line}")
    return words
