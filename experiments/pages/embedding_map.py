"""Test embeddings on a plane, by t-SNE, with small pictures where there is room."""

from __future__ import annotations

import html
from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from experiments.pages.page import address, encoded_picture
from pipelines.visible import visible

__all__ = ["MOST_POINTS", "map_rows", "map_svg", "places"]

# More take longer and show no more: a thousand fill the plane.
MOST_POINTS = 1000
_FEWEST = 12
_WIDTH, _HEIGHT, _PICTURE = 960, 640, 36
_MOST_PICTURES = 220


def map_rows(count: int) -> npt.NDArray[np.int64]:
    """The rows that a map shows: all, or so many drawn at random; the same each time."""
    if count <= MOST_POINTS:
        return np.arange(count)
    return np.sort(np.random.default_rng(0).choice(count, MOST_POINTS, replace=False))


def places(embeddings: npt.NDArray[np.float32]) -> npt.NDArray[np.float64] | None:
    """A place between 0 and 1 for each embedding, `[n, 2]`, near ones near by cosine similarity.

    t-SNE (van der Maaten and Hinton 2008, "Visualizing data using t-SNE"), scikit-learn's, from
    the principal components.

    Args:
        embeddings: `[n, d]`.

    Returns:
        None where there is nothing to see: fewer than 12, or all in one place.
    """
    from sklearn.manifold import TSNE
    from threadpoolctl import threadpool_limits  # scikit-learn brings it

    lengths = np.linalg.norm(embeddings, axis=1, keepdims=True)
    unit = embeddings / np.where(lengths == 0, 1, lengths)
    if len(unit) < _FEWEST or unit.shape[1] < 2 or np.ptp(unit, axis=0).max() < 1e-6:
        return None
    perplexity = min(30.0, (len(unit) - 1) / 3)
    # With so few points several threads wait for each other: six times as long on shared cores.
    with threadpool_limits(1):
        found = TSNE(perplexity=perplexity, init="pca", random_state=0, max_iter=500).fit_transform(
            unit
        )
    low, high = found.min(0), found.max(0)
    if not np.isfinite(found).all() or (high - low).min() == 0:
        return None
    return (found - low) / (high - low)


def with_pictures(where: npt.NDArray[np.float64]) -> npt.NDArray[np.int64]:
    """Those of the places that have room for a picture that covers no other one, in their order."""
    centers = _centers(where)
    shown: list[int] = []
    for number in np.random.default_rng(0).permutation(len(where)):
        apart = np.abs(centers[shown] - centers[number]).max(1) if shown else np.array([np.inf])
        if apart.min() >= _PICTURE + 2:
            shown.append(int(number))
        if len(shown) == _MOST_PICTURES:
            break
    return np.sort(np.array(shown, np.int64))


def map_svg(
    where: npt.NDArray[np.float64],
    names: Sequence[str],
    pictures: Callable[[npt.NDArray[np.int64]], npt.NDArray[np.uint8]],
) -> str:
    """The map as one `<svg>` element; each picture and dot says its class.

    Args:
        where: of `places`, `[n, 2]`.
        names: the class of each, plain text.
        pictures: gives uint8 `[m, h, w, 3]` for m numbers of the places.
    """
    shown = with_pictures(where)
    centers = _centers(where)
    drawn = set(shown.tolist())
    dots = [
        f'<circle cx="{x:.0f}" cy="{y:.0f}" r="2.5"><title>{_name(names[number])}</title></circle>'
        for number, (x, y) in enumerate(centers)
        if number not in drawn
    ]
    images = []
    for number, picture in zip(shown, pictures(shown)):
        x, y = centers[number] - _PICTURE / 2
        data = address(*encoded_picture(picture, 2 * _PICTURE))
        images.append(
            f'<image x="{x:.0f}" y="{y:.0f}" width="{_PICTURE}" height="{_PICTURE}" href="{data}">'
            f"<title>{_name(names[number])}</title></image>"
        )
    label = f"map of {len(where)} embeddings, {len(shown)} of them as pictures"
    return (
        f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{label}">'
        f'<g fill="currentColor" fill-opacity="0.35">{"".join(dots)}</g>{"".join(images)}</svg>'
    )


def _centers(where: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    inner = np.array([_WIDTH, _HEIGHT]) - _PICTURE
    return where * inner + _PICTURE / 2


def _name(name: str) -> str:
    return html.escape(visible(name))
