"""Correlations of duplicate pictures, compared with a loop and tested on changed pictures."""

import numpy as np
from PIL import Image
from synthetic_photographs import catalog, photographs

from experiments.evaluation.picture_correlation import (
    SIDE,
    best_cut,
    picture_correlations,
    upper_pairs,
)

RNG = np.random.default_rng(0)


def gray(pictures):
    return np.stack([np.asarray(Image.fromarray(picture).convert("L")) for picture in pictures])


def correlations(first, second):
    """Return the correlations of one picture with others."""
    pictures = np.stack([first, *second])
    pairs = np.array([(0, number) for number in range(1, len(pictures))])
    return picture_correlations(pictures, pairs)


PHOTOS = gray(photographs(catalog(12, seed=0), 1, seed=0))


def changed(picture, cut):
    """Return a crop of a picture, resized to the full size."""
    top, left, side = cut
    part = Image.fromarray(picture[top : top + side, left : left + side])
    return np.asarray(part.resize((SIDE, SIDE), Image.Resampling.BILINEAR))


def test_the_best_cut_equals_an_exhaustive_search():
    one, other = PHOTOS[0], changed(PHOTOS[0], (3, 1, 28))

    def pearson(a, b):
        a, b = a.astype(float).ravel(), b.astype(float).ravel()
        return float(np.corrcoef(a, b)[0, 1])

    best = -1.0
    for whole, cut_of in ((one, other), (other, one)):
        for size in range(27, 33):
            small = Image.fromarray(whole).resize((size, size), Image.Resampling.BOX)
            for top in range(SIDE - size + 1):
                for left in range(SIDE - size + 1):
                    part = cut_of[top : top + size, left : left + size]
                    best = max(best, pearson(np.asarray(small), part))
    assert abs(best_cut(one, other) - best) < 1e-4
    (found,) = correlations(one, [other])
    assert abs(found - best) < 1e-4 and best > 0.95


def test_changed_copies_correlate_and_other_pictures_do_not():
    for photo in PHOTOS[:4]:
        noisy = np.clip(photo + RNG.normal(0, 4, photo.shape), 0, 255).astype(np.uint8)
        darker = (0.7 * photo + 5).astype(np.uint8)
        same = [noisy, darker, photo[:, ::-1], changed(photo, (2, 0, 29))]
        assert correlations(photo, same).min() > 0.92
    pairs, _ = upper_pairs(np.array([[j for j in range(12) if j != i] for i in range(12)]))
    assert len(pairs) == 66
    assert picture_correlations(PHOTOS, pairs).max() < 0.92


def test_a_uniform_picture_has_zero_correlation():
    flat = np.full((SIDE, SIDE), 200, np.uint8)
    assert correlations(flat, [flat, PHOTOS[0]]).tolist() == [0, 0]


def test_upper_pairs_have_no_duplicates_and_point_to_the_neighbor():
    neighbors = np.array([[1, 2], [0, 2], [3, 0], [2, 1]])
    pairs, places = upper_pairs(neighbors)
    assert pairs.tolist() == [[0, 1], [0, 2], [1, 2], [1, 3], [2, 3]]
    assert neighbors.ravel()[places].tolist() == [1, 2, 2, 1, 3]
    pairs, places = upper_pairs(np.zeros((1, 0), int))
    assert pairs.shape == (0, 2) and len(places) == 0
