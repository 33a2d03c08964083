"""How much two pictures are the same picture: re-encoded, resized, mirrored, a little cut."""

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
from PIL import Image

# Height and width of what is compared; of the cut that is tried, at least: 84 % of a side.
SIDE, _SMALLEST_CUT = 32, 27
# Side of what all pairs are compared by first. Pairs below that correlation are not looked at
# closely: of planted copies that were cut by 9 % the least had 0.82.
_COARSE, _WORTH_A_LOOK = 8, 0.75
_PAIRS = 2**16


def picture_correlations(
    pictures: npt.NDArray[np.uint8], pairs: npt.NDArray[np.int64]
) -> Iterator[npt.NDArray[np.float32]]:
    """Yields the correlations of pairs, some thousand at a time.

    Pearson's, of the grey levels of two pictures of `SIDE`² pixels, the highest of: as they are;
    one of them mirrored; the whole of one with a cut of the other, of 84 % of its sides or more,
    wherever it lies. Only pairs that are alike at 8 × 8 pixels are compared so closely, the others
    have the correlation at 8 × 8. A picture of one grey level has correlation 0 with every other.

    Args:
        pictures: uint8 `[n, SIDE, SIDE]`.
        pairs: row numbers `[p, 2]`.

    Yields:
        float32 `[b]` in [-1, 1].
    """
    small = pictures.reshape(len(pictures), _COARSE, SIDE // _COARSE, _COARSE, SIDE // _COARSE)
    coarse = small.mean((2, 4), dtype=np.float32)
    straight, mirrored = _unit(coarse), _unit(coarse[:, :, ::-1])
    for start in range(0, len(pairs), _PAIRS):
        first, second = pairs[start : start + _PAIRS].T
        as_is = np.einsum("pd,pd->p", straight[first], straight[second])
        turned = np.einsum("pd,pd->p", straight[first], mirrored[second])
        found = np.maximum(as_is, turned)
        for place in np.flatnonzero(found >= _WORTH_A_LOOK):
            one, other = pictures[first[place]], pictures[second[place]]
            # A picture that is nearly its own mirror image is tried both ways.
            flips = [
                flip
                for flip, score in ((False, as_is[place]), (True, turned[place]))
                if score >= found[place] - 0.1
            ]
            found[place] = max(_best_cut(one, other[:, ::-1] if f else other) for f in flips)
        yield found


def _best_cut(one: npt.NDArray[np.uint8], other: npt.NDArray[np.uint8]) -> float:
    """The highest correlation of the whole of either with a cut of the other."""
    return max(
        _in_cuts(whole, cut_of, size)
        for whole, cut_of in ((one, other), (other, one))
        for size in range(_SMALLEST_CUT, SIDE + 1)
    )


def _in_cuts(whole: npt.NDArray[np.uint8], cut_of: npt.NDArray[np.uint8], size: int) -> float:
    resized = Image.fromarray(np.ascontiguousarray(whole)).resize(
        (size, size), Image.Resampling.BOX
    )
    (sought,) = _unit(np.asarray(resized, np.float32)[None])
    cuts = np.lib.stride_tricks.sliding_window_view(cut_of, (size, size)).astype(np.float32)
    return float((_unit(cuts.reshape(-1, size, size)) @ sought).max())


def _unit(pictures: np.ndarray) -> npt.NDArray[np.float32]:
    """Pictures `[n, …]` as vectors of mean 0 and length 1; of one level: zeros."""
    rows = pictures.reshape(len(pictures), -1).astype(np.float32)
    rows -= rows.mean(axis=1, keepdims=True)
    lengths = np.sqrt(np.einsum("nd,nd->n", rows, rows))[:, None]
    return np.divide(rows, lengths, out=np.zeros_like(rows), where=lengths > 1e-3)


def upper_pairs(neighbors: npt.NDArray[np.int64]) -> tuple[npt.NDArray[np.int64], np.ndarray]:
    """The pairs (i, j), i < j, of rows and their neighbors, each once, and where they come first.

    Args:
        neighbors: row numbers `[n, k]`.

    Returns:
        `(pairs [p, 2], places [p])`: sorted pairs, and their places in `neighbors.ravel()`.
    """
    count, k = neighbors.shape
    own = np.repeat(np.arange(count), k)
    others = neighbors.ravel()
    keys, places = np.unique(
        np.minimum(own, others) * max(1, count) + np.maximum(own, others), return_index=True
    )
    return np.stack([keys // max(1, count), keys % max(1, count)], axis=1), places
