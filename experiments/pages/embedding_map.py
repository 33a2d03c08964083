"""A map of test embeddings by t-SNE, with small pictures."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from PIL import Image

from experiments.evaluation.embedded_sets import EmbeddedSet
from experiments.pages.page import address
from experiments.pages.pictures import encoded_picture
from pipelines import ImageTable

# A thousand points fill the plane.
MOST_POINTS = 1000
_FEWEST = 12
_SIZE, _PICTURE = (960, 640), 36
_MOST_PICTURES = 220


class Map(NamedTuple):
    """The places of images on a page, whose template draws them.

    Attributes:
        size: Width and height of the map.
        side: Width and height of a picture.
        dots: (x, y, class) of the images without a picture.
        pictures: (x, y, class, address) of the other images; (x, y) is the upper left corner.
    """

    size: tuple[int, int]
    side: int
    dots: list[tuple[float, float, str]]
    pictures: list[tuple[float, float, str, str]]


def map_of(
    test: EmbeddedSet, pictures_of: Callable[[ImageTable], npt.NDArray[np.uint8]]
) -> Map | None:
    """Return the map of at most a thousand images; None without places or pictures.

    Args:
        test: The images.
        pictures_of: Returns the pictures of a table, uint8 `[m, h, w, 3]`.
    """
    rows = map_rows(len(test.labels))
    where = places(np.asarray(test.embeddings[rows], np.float32))
    if where is None or test.table is None:
        return None
    table = test.table.select(rows)
    names = [table.class_names[label] for label in table.labels]
    centers = where * (np.array(_SIZE) - _PICTURE) + _PICTURE / 2
    shown = _apart(centers)
    pictures = dict(zip(shown.tolist(), pictures_of(table.select(shown))))
    found = Map(_SIZE, _PICTURE, [], [])
    for number, (x, y) in enumerate(centers):
        if number in pictures:
            data = address(*encoded_picture(Image.fromarray(pictures[number]), 2 * _PICTURE))
            corner = x - _PICTURE / 2, y - _PICTURE / 2
            found.pictures.append((*corner, names[number], data))
        else:
            found.dots.append((x, y, names[number]))
    return found


def map_rows(count: int) -> npt.NDArray[np.int64]:
    """Return the rows that a map shows: all, or the same random ones each time."""
    if count <= MOST_POINTS:
        return np.arange(count)
    return np.sort(np.random.default_rng(0).choice(count, MOST_POINTS, replace=False))


def places(embeddings: npt.NDArray[np.float32]) -> npt.NDArray[np.float64] | None:
    """Return a place in [0, 1]² for each embedding, `[n, 2]`, by scikit-learn's t-SNE.

    Args:
        embeddings: `[n, d]`.

    Returns:
        None for fewer than 12 embeddings, or if all are equal.

    Reference: van der Maaten and Hinton 2008, "Visualizing data using t-SNE".
    """
    from sklearn.manifold import TSNE
    from threadpoolctl import threadpool_limits  # scikit-learn brings it

    lengths = np.linalg.norm(embeddings, axis=1, keepdims=True)
    unit = embeddings / np.where(lengths == 0, 1, lengths)
    if len(unit) < _FEWEST or unit.shape[1] < 2 or np.ptp(unit, axis=0).max() < 1e-6:
        return None
    tsne = TSNE(perplexity=min(30.0, (len(unit) - 1) / 3), init="pca", random_state=0, max_iter=500)
    # With so few points, several threads on shared cores take six times as long.
    with threadpool_limits(1):
        found = tsne.fit_transform(unit)
    low, high = found.min(0), found.max(0)
    if not np.isfinite(found).all() or (high - low).min() == 0:
        return None
    return (found - low) / (high - low)


def _apart(centers: npt.NDArray[np.float64]) -> npt.NDArray[np.int64]:
    """Return the indices of random centers whose pictures do not overlap."""
    shown: list[int] = []
    for number in np.random.default_rng(0).permutation(len(centers)):
        apart = np.abs(centers[shown] - centers[number]).max(1)
        if apart.min(initial=np.inf) >= _PICTURE + 2:
            shown.append(int(number))
        if len(shown) == _MOST_PICTURES:
            break
    return np.sort(np.array(shown, np.int64))
