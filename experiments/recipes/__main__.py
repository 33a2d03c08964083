"""`keras-dml recipes`: list the recipes with their dataset, loss, expected score, and time."""

import pathlib
import re
import sys
from collections.abc import Iterator

from experiments import typed
from experiments.recipes import ENDING, find_recipe, names, paper_scores, read_recipe
from experiments.recipes.nearest import did_you_mean

_COLUMNS = ("recipe", "dataset", "loss", "R@1", "paper", "time")
_EXPECTED = re.compile(r"^# Expected: ((?:.*\n# )*?.*\n)(?=# [A-Z][\w ,]*:|--)", re.MULTILINE)
_TIME = re.compile(r"(?:about )?\d+(?: to \d+)? (?:second|minute|hour)s?")


def main(argv: list[str]) -> int:
    """Print the table, of the recipes whose name contains a word if one is given."""
    word, *more = argv[1:] or [""]
    if word.startswith("-") or more:
        print(typed(f"{__doc__}\n\n  keras-dml recipes [WORD]\n"))
        print("WORD selects the recipes whose name contains it. Run one:")
        print(typed("  keras-dml run --flagfile=RECIPE.flags"))
        return 0 if word in ("--help", "-h", "--helpfull") else 2
    rows = [_COLUMNS, *(row for row in _rows() if word in row[0])]
    if len(rows) == 1:
        hint = did_you_mean(word, [row[0] for row in _rows()])
        print(f"error: no recipe's name contains {word!r}.{hint}", file=sys.stderr)
        return 2
    widths = [max(map(len, column)) for column in zip(*rows)]
    for row in rows:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip())
    print(
        typed("\nRun a recipe: keras-dml run --flagfile=RECIPE.flags."),
        "R@1 and time were measured on the",
    )
    print("built-in setup that the comments in the recipe describe. paper is the paper's R@1.")
    return 0


def _rows() -> Iterator[tuple[str, ...]]:
    for name in names():
        path = find_recipe(name)
        flags = dict(word.lstrip("-").partition("=")[::2] for word in read_recipe(path, None))
        expected = _expected(path)
        score = re.search(r"R@1 ([01]\.\d+)", expected) if "not run here" not in expected else None
        time = _TIME.search(expected)
        paper = paper_scores(path).get("recall@1/cosine")
        yield (
            name.removesuffix(ENDING),
            flags.get("dataset", ""),
            flags.get("loss", "multi_similarity"),
            score[1] if score else "",
            f"{paper:.3f}" if paper is not None else "",
            time[0] if time else "needs a GPU" if "GPU" in expected else "",
        )


def _expected(path: pathlib.Path) -> str:
    found = _EXPECTED.search(path.read_text(encoding="utf-8"))
    return " ".join(found[1].replace("\n# ", "\n").split()) if found else ""


if __name__ == "__main__":
    sys.exit(main(sys.argv))
