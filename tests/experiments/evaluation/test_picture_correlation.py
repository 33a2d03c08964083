"""When two pictures are one: against a loop, and of pictures that were changed on purpose."""

import numpy as np
from PIL import Image
from synthetic_photographs import catalog, photographs

from experiments.evaluation.picture_correlation import (
    SIDE,
    Look,
    best_cut,
    picture_correlations,
    upper_pairs,
)

RNG = np.random.default_rng(0)


def gray(pictures):
    return np.stack([np.asarray(Image.fromarray(picture).convert("L")) for picture in pictures])


def correlations(first, second):
    """Of one picture with others."""
    pictures = np.stack([first, *second])
    pairs = np.array([(0, number) for number in range(1, len(pictures))])
    return np.concatenate(list(picture_correlations(pictures, pairs)))


PHOTOS = gray(photographs(catalog(12, seed=0), 1, seed=0))


def changed(picture, cut):
    """A part of a picture at its full size."""
    top, left, side = cut
    part = Image.fromarray(picture[top : top + side, left : left + side])
    return np.asarray(part.resize((SIDE, SIDE), Image.Resampling.BILINEAR))


def test_the_closest_look_is_the_best_of_a_loop():
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
    assert abs(best_cut(Look(one), Look(other)) - best) < 1e-4
    (found,) = correlations(one, [other])
    assert abs(found - best) < 1e-4 and best > 0.95


def test_changed_pictures_are_the_same_and_others_are_not():
    for photo in PHOTOS[:4]:
        noisy = np.clip(photo + RNG.normal(0, 4, photo.shape), 0, 255).astype(np.uint8)
        darker = (0.7 * photo + 5).astype(np.uint8)
        same = [noisy, darker, photo[:, ::-1], changed(photo, (2, 0, 29))]
        assert correlations(photo, same).min() > 0.92
    pairs, _ = upper_pairs(np.array([[j for j in range(12) if j != i] for i in range(12)]))
    assert len(pairs) == 66
    assert np.concatenate(list(picture_correlations(PHOTOS, pairs))).max() < 0.92


def test_a_picture_of_one_level_is_like_no_other():
    flat = np.full((SIDE, SIDE), 200, np.uint8)
    assert correlations(flat, [flat, PHOTOS[0]]).tolist() == [0, 0]


def test_pairs_come_once_with_the_place_of_their_neighbor():
    neighbors = np.array([[1, 2], [0, 2], [3, 0], [2, 1]])
    pairs, places = upper_pairs(neighbors)
    assert pairs.tolist() == [[0, 1], [0, 2], [1, 2], [1, 3], [2, 3]]
    assert neighbors.ravel()[places].tolist() == [1, 2, 2, 1, 3]
    pairs, places = upper_pairs(np.zeros((1, 0), int))
    assert pairs.shape == (0, 2) and len(places) == 0
