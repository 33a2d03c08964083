"""Entropies of embeddings and their information about the classes, for the registry of scores."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np

#: Rows of an evaluation, unless all rows are asked for.
MOST_ROWS = 4096
#: Key of the number of rows.
ROWS = "information_rows"


def information_of(
    embeddings: np.ndarray, labels: np.ndarray, names: Sequence[str], every_row: bool = False
) -> dict[str, float]:
    """Compute scores of whole classes with at most 4,096 rows, or of every row.

    Returns:
        {name: nats} and the number of rows as `ROWS`. Empty if fewer than two classes
        have images, or no class has two.
    """
    import numpy as np

    from keras_dml.metrics import information
    from keras_dml.metrics.information_scores import whole_classes

    codes = np.unique(labels, return_inverse=True)[1]
    rows = np.arange(len(codes)) if every_row else whole_classes(codes, MOST_ROWS, seed=0)
    sizes = np.bincount(codes[rows])
    if np.count_nonzero(sizes) < 2 or sizes.max() < 2:
        return {}
    found = information(embeddings[rows], codes[rows], [name for name in names if name != ROWS])
    return {**found, ROWS: len(rows)}
