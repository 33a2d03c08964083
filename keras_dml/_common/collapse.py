"""Embeddings that are nearly equal, so that a loss stays at its margin."""

import math

import numpy as np

from keras_dml._common.rows import normalized

# Rows whose distances are computed.
_MOST_ROWS = 1000
# Evaluations in a row that decide. In runs that learn, up to two were below.
_EVALUATIONS = 3
#: Mean distance of unit embeddings below which they count as nearly equal. It is 1.41 for random
#: directions.
NEARLY_EQUAL = 0.05


def mean_unit_distance(embeddings: np.ndarray) -> float:
    """Return the mean distance between the unit vectors of different rows, of at most 1,000 rows.

    Args:
        embeddings: Finite numbers `[n, d]`.

    Returns:
        Infinity for fewer than two rows.
    """
    rows = embeddings[:: -(-len(embeddings) // _MOST_ROWS)]
    if len(rows) < 2:
        return math.inf
    units = normalized(np.asarray(rows, np.float32)).astype(np.float64)
    squares = np.einsum("nd,nd->n", units, units)
    distances = np.sqrt(np.maximum(squares[:, None] + squares - 2 * units @ units.T, 0))
    np.fill_diagonal(distances, 0)
    return float(distances.sum() / (len(rows) * (len(rows) - 1)))


def nearly_equal(distances: list[float]) -> bool:
    """Return whether the embeddings of the last three evaluations are nearly equal.

    The first embeddings of a training can be nearly equal, too, until batch norm has statistics.

    Args:
        distances: `mean_unit_distance` of each evaluation.
    """
    last = distances[-_EVALUATIONS:]
    return len(last) == _EVALUATIONS and max(last) < NEARLY_EQUAL


def nearly_equal_sentence(distance: float) -> str:
    """Return a warning about nearly equal embeddings, with advice."""
    return (
        "The embeddings are nearly equal: the mean distance between their unit vectors is "
        f"{distance:.4f} (random directions: 1.41). A loss with a margin then stays at the margin. "
        "Try a lower learning rate, semi-hard triplets, or another loss."
    )
