"""What a folder of images has that its index does not have yet, and the other way round."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from keras_dml.retrieval import Index, ScannIndex
from keras_dml.retrieval.rows import prepared_rows

# Up to this share of the images a trained tree is changed, beyond it trained anew.
_MOST_CHANGED = 0.2
# A tree is trained anew when so much less of the nearest is found than was asked for.
_LOST = 0.01
# Items compared at once.
_BLOCK = 8192


@dataclasses.dataclass(frozen=True)
class Changes:
    """Numbers of the rows that are new, of those with another embedding, and the paths gone."""

    added: np.ndarray
    changed: np.ndarray
    removed: list[str]

    def __len__(self) -> int:
        return len(self.added) + len(self.changed) + len(self.removed)

    def __str__(self) -> str:
        counts = (len(self.added), len(self.changed), len(self.removed))
        return "added {:,}, changed {:,}, removed {:,}".format(*counts)


def changes_since(index: Index | None, paths: Sequence[str], embeddings: np.ndarray) -> Changes:
    """What must become of an index so that it holds these embeddings.

    Of the index itself and not of what an earlier command has written beside it: a process may have
    been killed between the two.

    Args:
        index: None where there is none.
        paths: of the images.
        embeddings: their rows, `[n, d]`.
    """
    if index is None:
        return Changes(np.arange(len(paths)), np.empty(0, np.int64), [])
    held = set(index.ids.tolist())
    new = np.array([path not in held for path in paths], bool)
    common = np.flatnonzero(~new)
    changed = []
    for start in range(0, len(common), _BLOCK):
        rows = common[start : start + _BLOCK]
        before = index.embeddings_of([paths[row] for row in rows])
        now = prepared_rows(embeddings[rows], "embeddings", index.metric)
        changed.append(rows[(before != now).any(axis=1)])
    removed = sorted(held - set(paths))
    return Changes(np.flatnonzero(new), np.concatenate([common[:0], *changed]), removed)


def changed_index(
    index: Index | None,
    changes: Changes,
    paths: Sequence[str],
    embeddings: np.ndarray,
    target_recall: float | None,
) -> Index | None:
    """The index with these changes, or None where building it anew is as quick or better.

    Only a tree takes long to train. It is trained again if it finds less than was asked for.

    Args:
        index, changes, paths, embeddings: as in `changes_since`.
        target_recall: the share of the true nearest to find, or None.
    """
    few = len(changes) <= _MOST_CHANGED * len(paths)
    if not (few and isinstance(index, ScannIndex) and index.tree is not None):
        return None
    if changes.removed:
        index.remove(changes.removed)
    rows = np.concatenate([changes.changed, changes.added])
    if len(rows):
        index.upsert([paths[row] for row in rows], embeddings[rows])
    recall = index.measured_recall
    if target_recall is not None and recall is not None and recall < target_recall - _LOST:
        index.rebalance()
    return index
