"""A map of test embeddings by t-SNE, with small pictures."""

from __future__ import annotations

import html
from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from experiments.options.visible import visible
from experiments.pages.page import address, encoded_picture

__all__ = ["MOST_POINTS", "map_rows", "map_svg", "places"]

# A thousand points fill the plane.
MOST_POINTS = 1000
_FEWEST = 12
_WIDTH, _HEIGHT, _PICTURE = 960, 640, 36
_MOST_PICTURES = 220


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
    perplexity = min(30.0, (len(unit) - 1) / 3)
    # With so few points, several threads on shared cores take six times as long.
    with threadpool_limits(1):
        found = TSNE(perplexity=perplexity, init="pca", random_state=0, max_iter=500).fit_transform(
            unit
        )
    low, high = found.min(0), found.max(0)
    if not np.isfinite(found).all() or (high - low).min() == 0:
        return None
    return (found - low) / (high - low)


def with_pictures(where: npt.NDArray[np.float64]) -> npt.NDArray[np.int64]:
    """Return the indices of places whose pictures do not overlap."""
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
    """Return the map as an `<svg>` element. Each picture and dot has its class as a title.

    Args:
        where: Places `[n, 2]`, as from `places`.
        names: Class of each place, plain text.
        pictures: Returns uint8 `[m, h, w, 3]` for m indices of places.
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
