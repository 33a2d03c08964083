"""Recipes: a flag file for each run worth repeating, in folders by dataset."""

import functools
import pathlib
import re
from collections.abc import Collection

from experiments.recipes.nearest import did_you_mean
from keras_dml._common.regular_files import read_regular

ENDING = ".flags"
"""Ending of the names of flag files."""
_MOST_BYTES = 2**20
_PAPER = re.compile(r"# Paper(?:, (cosine|l2))?: (.*)")
_SCORE = re.compile(r"(?:R@(\d+)|NMI) ([01]\.\d+)")


class RecipeError(ValueError):
    """A flag file that is missing, cannot be read, or contains a line that is not a flag."""


@functools.cache
def _recipes() -> dict[str, pathlib.Path]:
    return {path.name: path for path in sorted(pathlib.Path(__file__).parent.rglob(f"*{ENDING}"))}


def names() -> list[str]:
    """Return the names of the recipes, sorted."""
    return sorted(_recipes())


def find_recipe(name: str) -> pathlib.Path:
    """Return the path of a flag file: in the current folder, or a recipe.

    Raises:
        RecipeError: The file does not exist. The message names similar ones.
    """
    here = pathlib.Path(name)
    if name and here.is_file():
        return here
    if name in _recipes():
        return _recipes()[name]
    neighbors = [str(path) for path in here.parent.glob(f"*{ENDING}")]
    known = [each.removesuffix(ENDING) for each in [*names(), *neighbors]]
    hint = did_you_mean(name.removesuffix(ENDING), known, ENDING)
    raise RecipeError(
        f"flagfile must be a file or a recipe, but got {name!r}.{hint} keras-dml recipes lists the "
        "recipes."
    )


def paper_scores(path: pathlib.Path) -> dict[str, float]:
    """Return the scores in a recipe's paper, from the comments in the recipe.

    A row of the paper's table is a line `# Paper, cosine: R@1 0.7, R@2 0.8` or `# Paper, l2: …`,
    and its clustering score is `# Paper: NMI 0.7`.

    Args:
        path: The recipe. Flag files that it names are not read, because their scores belong to
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


def read_recipe(
    path: pathlib.Path,
    known: Collection[str] | None,
    within: tuple[pathlib.Path, ...] = (),
) -> list[str]:
    """Return the words of a flag file and of the flag files that it names.

    Args:
        path: The flag file.
        known: Names of the flags. None accepts every name.
        within: The flag files that name this one.

    Raises:
        RecipeError: A file cannot be read or names itself, or a line is not a known flag.
    """
    if path in within:
        raise RecipeError(f"flagfile {path} names itself")
    try:
        lines = read_regular(path, _MOST_BYTES).decode("utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise RecipeError(f"flagfile {path} cannot be read: {error}") from error
    if any("\0" in line for line in lines):
        raise RecipeError(f"flagfile {path} must have no NUL character")
    words: list[str] = []
    for number, line in enumerate(map(str.strip, lines), start=1):
        name = line.lstrip("-").partition("=")[0]
        if not line or line.startswith(("#", "//")):
            continue
        if line.startswith("-") and name == "flagfile":
            nested = path.parent / line.partition("=")[2]
            inner = nested if nested.is_file() else find_recipe(line.partition("=")[2])
            words += read_recipe(inner, known, (*within, path))
        elif line.startswith("-") and (
            known is None or name in known or name.removeprefix("no") in known
        ):
            words.append(line)
        else:
            hint = did_you_mean(name, known or ())
            raise RecipeError(
                f"flagfile {path} must have a flag in line {number}, but got {line}.{hint}"
            )
    return words
