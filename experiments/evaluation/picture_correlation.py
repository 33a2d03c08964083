"""Correlation of two pictures that may be re-encoded, resized, mirrored, or cut."""

import numpy as np
import numpy.typing as npt
from PIL import Image

from experiments.options.progress import progress_bar

# Height and width of the compared pictures, and of the smallest cut: 84 % of a side.
SIDE, _SMALLEST_CUT = 32, 27
_SIZES = range(_SMALLEST_CUT, SIDE + 1)
# All pairs are compared at this size first, and those below this correlation are not examined. The
# lowest correlation of planted copies that were cut by 9 % was 0.82.
_COARSE, _WORTH_A_LOOK = 8, 0.75
# Pairs in a block.
_PAIRS = 2**12


def picture_correlations(
    pictures: npt.NDArray[np.uint8], pairs: npt.NDArray[np.int64]
) -> npt.NDArray[np.float32]:
    """Return the correlations of pairs, with a progress bar.

    The correlation is Pearson's, of the gray levels of two pictures with `SIDE`² pixels. It is the
    highest value over: the pictures unchanged, one of them mirrored, and one of them with a cut of
    the other of at least 84 % of its sides, at any position. Pairs that differ at 8 × 8 pixels have
    the correlation at this size. A picture of one gray level has the correlation 0.

    Args:
        pictures: uint8 `[n, SIDE, SIDE]`.
        pairs: Row numbers `[p, 2]`.

    Returns:
        float32 `[p]` in [-1, 1].
    """
    found = np.zeros(len(pairs), np.float32)
    if not len(pairs):
        return found
    small = pictures.reshape(len(pictures), _COARSE, SIDE // _COARSE, _COARSE, SIDE // _COARSE)
    coarse = small.mean((2, 4), dtype=np.float32)
    straight, mirrored = _unit(coarse), _unit(coarse[:, :, ::-1])

    with progress_bar("comparing pictures", total=len(pairs)) as bar:
        for start in range(0, len(pairs), _PAIRS):
            first, second = pairs[start : start + _PAIRS].T
            as_is = np.einsum("pd,pd->p", straight[first], straight[second])
            turned = np.einsum("pd,pd->p", straight[first], mirrored[second])
            block = found[start : start + _PAIRS]
            block[:] = np.maximum(as_is, turned)
            for place in np.flatnonzero(block >= _WORTH_A_LOOK):
                one, other = pictures[first[place]], pictures[second[place]]
                looks = (other, as_is[place]), (other[:, ::-1], turned[place])
                # Try both for a picture that is nearly symmetric.
                block[place] = max(
                    best_cut(one, look) for look, score in looks if score >= block[place] - 0.1
                )
            bar.update(len(block))
    return found


def best_cut(one: npt.NDArray[np.uint8], other: npt.NDArray[np.uint8]) -> float:
    """Return the highest correlation of one picture with a cut of the other."""
    return max(_best_cut_of(other, one), _best_cut_of(one, other))


def _best_cut_of(picture: npt.NDArray[np.uint8], whole: npt.NDArray[np.uint8]) -> float:
    """Return the highest correlation of a whole picture with the cuts of another one."""
    image = Image.fromarray(np.ascontiguousarray(whole))
    best = -1.0
    for size in _SIZES:
        resized = np.asarray(image.resize((size, size), Image.Resampling.BOX))
        cuts = np.lib.stride_tricks.sliding_window_view(picture, (size, size))
        found = _unit(cuts.reshape(-1, size, size)) @ _unit(resized[None])[0]
        best = max(best, float(found.max()))
    return best


def _unit(pictures: np.ndarray) -> npt.NDArray[np.float32]:
    """Return pictures `[n, …]` as vectors of mean 0 and norm 1; zeros for a single gray level."""
    rows = pictures.reshape(len(pictures), -1).astype(np.float32)
    rows -= rows.mean(axis=1, keepdims=True)
    lengths = np.sqrt(np.einsum("nd,nd->n", rows, rows))[:, None]
    return np.divide(rows, lengths, out=np.zeros_like(rows), where=lengths > 1e-3)


def upper_pairs(neighbors: npt.NDArray[np.int64]) -> tuple[npt.NDArray[np.int64], np.ndarray]:
    """Return the pairs (i, j), i < j, of rows and their neighbors, each once.

    Args:
        neighbors: Row numbers `[n, k]`.

    Returns:
        `(pairs [p, 2], places [p])`: sorted pairs, and their first index in `neighbors.ravel()`.
    """
    count, k = neighbors.shape
    own = np.repeat(np.arange(count), k)
    others = neighbors.ravel()
    keys, places = np.unique(
        np.minimum(own, others) * max(1, count) + np.maximum(own, others), return_index=True
    )
    return np.stack([keys // max(1, count), keys % max(1, count)], axis=1), places
