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


def widest_classes(
    embeddings: np.ndarray, labels: np.ndarray, names: Sequence[str] = ()
) -> list[tuple[str, str]]:
    """Return a (label, text) pair with the ten classes of the highest entropy within the class.

    A class without variance has the entropy −∞, and then the mean over the classes is −∞ too. A
    second pair has the entropy of the pooled variance in this case. The result is empty without a
    class of two images.

    Args:
        embeddings: Numbers `[n, d]`.
        labels: Class of each row, `[n]`.
        names: Names of labels that are numbers from 0. Without names, the labels are names.
    """
    import numpy as np

    from experiments.options.visible import visible
    from keras_dml.metrics.pairwise_information import within_class_entropy

    _, codes, sizes = np.unique(labels, return_inverse=True, return_counts=True)
    rows = sizes[codes] > 1
    if not rows.any():
        return []
    classes, codes = np.unique(labels[rows], return_inverse=True)
    found = within_class_entropy(embeddings[rows].astype(np.float64), codes)
    shown = []
    for code in np.argsort(-found.per_class, kind="stable")[:10]:
        name = names[classes[code]] if names else classes[code]
        shown.append(f"{visible(str(name))} ({found.per_class[code]:z.1f})")
    lines = [("Widest classes (entropy within the class, nats)", ", ".join(shown))]
    if not np.isfinite(found.average) and np.isfinite(found.pooled):
        label = "Within-class entropy H(Z|Y), bound by the pooled variance (nats)"
        lines.append((label, f"{found.pooled:z.3f}"))
    return lines
