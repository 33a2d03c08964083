"""The numbers of `keras_dml.metrics.evaluate` as rows and lines that are shown."""

import math
from collections.abc import Mapping

import numpy as np

from keras_dml._common.rows import first_few

# The rows of what is looked for in a catalog.
CATALOG = "photo to catalog"
# The rows of what the recipe's paper says.
PAPER = "paper"
# Columns behind those of recall at K.
PRECISIONS = {"map@r": "MAP@R", "r_precision": "R-precision"}


def score_rows(scores: Mapping[str, float]) -> dict[str, dict[int | str, float]]:
    """A row for each distance: `{"cosine": {1: share, …, "MAP@R": share, "R-precision": share}}`.

    Args:
        scores: what `keras_dml.metrics.evaluate` returns.
    """
    rows: dict[str, dict[int | str, float]] = {}
    for name, value in scores.items():
        measure, of_a_distance, distance = name.partition("/")
        if of_a_distance:
            column: int | str = PRECISIONS.get(measure) or int(measure.removeprefix("recall@"))
            rows.setdefault(distance, {})[column] = value
    return rows


def catalog_rows(
    recalls: Mapping[str, Mapping[int, float]],
) -> dict[str, dict[int | str, float]]:
    """The rows of a catalog: `{"photo to catalog, cosine": {1: share, …}}`.

    Args:
        recalls: distance -> {K: share}.
    """
    return {f"{CATALOG}, {metric}": dict(by_k.items()) for metric, by_k in recalls.items()}


def prefix_rows(
    found: Mapping[int, Mapping[str, Mapping[int, float]]],
) -> dict[str, dict[int | str, float]]:
    """The rows of an embedding's prefixes: `{"first 64, cosine": {1: share, …}}`.

    Args:
        found: length -> distance -> {K: share}.
    """
    return {
        f"first {length}, {metric}": {int(k): share for k, share in by_k.items()}
        for length, of_one in found.items()
        for metric, by_k in of_one.items()
    }


def prefix_scores(found: Mapping[int, Mapping[str, Mapping[int, float]]]) -> dict[str, float]:
    """The same numbers by the names of a log: `{"recall@1/cosine/first 64": share}`."""
    return {
        f"recall@{k}/{metric}/first {length}": float(share)
        for length, of_one in found.items()
        for metric, by_k in of_one.items()
        for k, share in by_k.items()
    }


def paper_rows(found: Mapping[str, float]) -> dict[str, dict[int | str, float]]:
    """The rows of a recipe's paper: `{"paper, cosine": {1: share, 2: share}}`.

    Args:
        found: as from `experiments.recipes.paper_scores`.
    """
    return {f"{PAPER}, {metric}": row for metric, row in score_rows(found).items()}


def recalls_alone(rows: Mapping[str, Mapping[int | str, float]]) -> dict[str, dict[int, float]]:
    """The rows without the columns behind recall at K."""
    return {
        name: {k: value for k, value in row.items() if isinstance(k, int)}
        for name, row in rows.items()
    }


def score_lines(scores: Mapping[str, float]) -> list[tuple[str, str]]:
    """(name, text) of the scores that belong to no distance, and of the queries left out."""
    lines = [
        (name.upper(), f"{100 * scores[name]:.1f} %") for name in ("nmi", "ami") if name in scores
    ]
    if not math.isnan(scores["jensen_shannon"]):
        divergence = f"{scores['jensen_shannon']:.3f} nats (below log 2 = 0.693)"
        lines.append(("Jensen-Shannon divergence", divergence))
    without = scores["queries_without_match"]
    if without:
        lines.append(("Queries without a match", f"{without:,}: a miss in R@K, not in the others"))
    return lines


def shown_lines(scores: Mapping[str, float]) -> str:
    """`score_lines` as text for a terminal, under the table."""
    return "\n".join(f"{name}: {text}" for name, text in score_lines(scores))


def zero_row_lines(zeros: Mapping[str, np.ndarray]) -> list[str]:
    """A line that counts and names the rows of zeros, for each set that has some.

    Args:
        zeros: `"zero_rows"`, and `"gallery_zero_rows"` and `"catalog_zero_rows"` where there is a
            gallery or a catalog, to row numbers.
    """
    lines = []
    for name, numbers in zeros.items():
        if len(numbers):
            where = name.removesuffix("zero_rows").rstrip("_")
            lines.append(
                f"{len(numbers):,} row{'s' * (len(numbers) > 1)} of zeros"
                f"{f' in the {where}' if where else ''} "
                f"(row numbers {first_few(numbers)}): similarity 0 to everything"
            )
    return lines


def as_json(scores: Mapping[str, float]) -> dict[str, float | None]:
    """The scores with None in place of NaN, which JSON lacks."""
    return {name: None if math.isnan(value) else value for name, value in scores.items()}
