"""Relations with labels, and what they mean for a pair of labels, for tests with loops."""

import keras
import numpy as np

from keras_dml import relations

TAGS = np.array([[1, 1, 0], [0, 1, 1], [0, 0, 1], [1, 0, 0], [1, 1, 1], [0, 1, 0], [0, 0, 1]])
IDS = np.array(
    [[0, 1, -1], [2, 1, -1], [2, -1, -1], [0, -1, -1], [1, 0, 2], [1, -1, -1], [2, -1, -1]]
)
PATHS = np.array([[0, 0], [0, 0], [0, 1], [1, 0], [1, 0], [1, 1], [1, 1]])
VECTORS = np.array([[1, 0], [0.9, 0.4], [0, 1], [-1, 0], [0.6, 0.8], [0.3, 0.9], [-0.8, -0.3]])
SETS = [set(np.flatnonzero(row)) for row in TAGS]


def overlap(a, b):
    return len(a & b) / len(a | b)


def of_tags(a, b):
    return overlap(set(np.flatnonzero(a)), set(np.flatnonzero(b)))


def of_ids(a, b):
    return overlap(set(a) - {-1}, set(b) - {-1})


def cosine(a, b):
    return float(a @ b / np.linalg.norm(a) / np.linalg.norm(b))


def larger(anchors, candidates):
    anchors, candidates = anchors[:, None], candidates[None]
    return keras.ops.equal(anchors, candidates), anchors > candidates


def of_paths(a, b):
    return tuple(a) == tuple(b)


# The relation, its labels, and whether two labels are a positive or a negative pair.
CASES = {
    "class": (relations.SameClass(), PATHS[:, 0], lambda a, b: a == b, lambda a, b: a != b),
    "tags": (relations.SharesLabel(), TAGS, lambda a, b: of_tags(a, b) > 0,
             lambda a, b: not of_tags(a, b)),
    "half": (relations.SharesLabel(0.5), TAGS, lambda a, b: of_tags(a, b) >= 0.5,
             lambda a, b: not of_tags(a, b)),
    "ids": (relations.SharesLabel(0.5, encoding="ids"), IDS, lambda a, b: of_ids(a, b) >= 0.5,
            lambda a, b: not of_ids(a, b)),
    "levels": (relations.Hierarchy(), PATHS, of_paths, lambda a, b: a[0] != b[0]),
    "other product": (relations.Hierarchy(negatives="other_product"), PATHS, of_paths,
                      lambda a, b: not of_paths(a, b)),
    "graded": (relations.Graded(0.7, 0.4), VECTORS, lambda a, b: cosine(a, b) > 0.7,
               lambda a, b: cosine(a, b) < 0.4),
    "function": (relations.get(larger), PATHS[:, 0], lambda a, b: a == b, lambda a, b: a > b),
}  # fmt: skip
