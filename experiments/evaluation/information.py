"""Entropies of embeddings and their information about the classes, for the registry of scores."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np

#: Rows of an evaluation, unless all rows are asked for.
MOST_ROWS = 4096


class Explained(NamedTuple):
    """A score of `keras_dml.metrics.information` in words.

    Attributes:
        label: Name in tables.
        explanation: What the number means.
        higher_is_better: Whether a higher value is a better one; None for neither.
        fitted: Whether it fits a classifier or a network.
        compared: Whether `compare` and `study` have a column for it.
    """

    label: str
    explanation: str
    higher_is_better: bool | None = None
    fitted: bool = False
    compared: bool = False


#: The scores by their names.
INFORMATION: dict[str, Explained] = {
    "class_entropy": Explained(
        "Entropy of the classes H(Y) (nats)", "H(Y) is the upper limit of the mutual information."
    ),
    "entropy_pairwise/l2": Explained(
        "Entropy index H(Z), all pairs (nats)",
        "The entropy index rises as embeddings spread. Compare only embeddings of one size.",
    ),
    "entropy_uniformity/cosine": Explained(
        "Uniformity on the sphere (nats per dimension, 0 = uniform)",
        "Uniformity compares the distances with those of uniform directions.",
    ),
    "mean_distance/l2": Explained("Mean pairwise distance", ""),
    "entropy_within/l2": Explained(
        "Within-class entropy H(Z|Y), Gaussian bound (nats)",
        "The within-class entropy falls as the images of a class move together.",
    ),
    "information_neighbors/cosine": Explained(
        "Mutual information, nearest neighbors (nats)",
        "The nearest neighbors of each image estimate the mutual information of embeddings and "
        "classes. It is from 0 to H(Y), and too low in high dimensions.",
        True,
        compared=True,
    ),
    "information_neighbors/l2": Explained(
        "Mutual information, nearest neighbors, l2 (nats)", "", True
    ),
    "information_generative/l2": Explained(
        "Generative index, all pairs (nats)",
        "The generative index is the entropy index minus its mean within classes. It has no limit.",
    ),
    "information_probe/cosine": Explained(
        "Mutual information, lower bound by a linear probe (nats)",
        "A linear classifier of one half of the images predicts the classes of the other half. The "
        "mutual information is at least this value.",
        True,
        fitted=True,
        compared=True,
    ),
    "information_probe/l2": Explained(
        "Mutual information, lower bound by a linear probe, l2 (nats)", "", True, fitted=True
    ),
    "information_distances": Explained(
        "Pair information, lower bound by a fitted network (nats)",
        "The statistics network of RankMI bounds the information of a matching pair, for at least "
        "five equal classes. It is below 2 log 2 = 1.386.",
        True,
        fitted=True,
    ),
}
#: Scores that are computed after each epoch.
EACH_EPOCH = tuple(
    name
    for name, each in INFORMATION.items()
    if not each.fitted and name != "information_generative/l2"
)


def information_of(
    embeddings: np.ndarray, labels: np.ndarray, names: list[str], every_row: bool = False
) -> dict[str, float]:
    """Compute scores of whole classes with at most 4,096 rows, or of every row.

    Returns:
        {name: nats} and "information_rows", the number of rows. Empty if fewer than two classes
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
    found = information(embeddings[rows], codes[rows], names)
    return {**found, "information_rows": len(rows)}


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
