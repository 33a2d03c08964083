"""Distances as two distributions: histograms, their divergence, and RankMI's bound."""

import numpy as np
import pytest
from retrieval_sets import clusters
from scipy.spatial.distance import jensenshannon
from sklearn.preprocessing import normalize

from keras_dml import models
from keras_dml.metrics import (
    DistanceHistograms,
    distance_histograms,
    mutual_information_bound,
    pair_scores,
)


@pytest.mark.parametrize("with_gallery", [False, True])
def test_histograms_count_every_pair_once(with_gallery, monkeypatch):
    monkeypatch.setattr(pair_scores, "_BLOCK", 7)  # several blocks
    z, labels = clusters(4, 6, 8, 1.5)
    z[3] = 0.0
    z[5] = z[4]
    queries = 9 if with_gallery else len(z)
    found = distance_histograms(
        z[:queries], labels[:queries], 15, *([z[9:], labels[9:]] if with_gallery else [])
    )
    f = normalize(z)
    expected = {True: np.zeros(15, int), False: np.zeros(15, int)}
    for i in range(queries):
        for j in range(9, len(z)) if with_gallery else range(i):
            cell = min(int(np.linalg.norm(f[i] - f[j]) * 7.5), 14)
            expected[labels[i] == labels[j]][cell] += 1
    np.testing.assert_array_equal(found.positive, expected[True])
    np.testing.assert_array_equal(found.negative, expected[False])
    assert found.edges[0] == 0 and found.edges[-1] == 2


@pytest.mark.parametrize("with_gallery", [False, True])
def test_identical_and_near_rows_fall_into_the_narrowest_bins(with_gallery):
    bins = 2**24
    rng = np.random.default_rng(0)
    z = rng.normal(size=(4, 128)).astype("float32").repeat(2, axis=0)
    z[5] += 1e-5 * rng.normal(size=128).astype("float32")
    labels = np.arange(8) // 2
    sets = {"gallery": z[1::2], "gallery_labels": labels[1::2]} if with_gallery else {}
    queries, own = (z[::2], labels[::2]) if with_gallery else (z, labels)
    found = distance_histograms(queries, own, bins=bins, **sets)
    unit = normalize(z.astype("float64")).astype("float32").astype("float64")
    distance = np.linalg.norm(unit[4] - unit[5])
    cells = np.flatnonzero(found.positive)
    assert cells[0] == 0 and found.positive[0] == 3
    assert found.positive[cells[1:]].tolist() == [1]
    assert cells[1] == int(distance * bins / 2)


def test_divergence_equals_scipy():
    counts = np.random.default_rng(0).integers(0, 4, size=(2, 20))
    expected = jensenshannon(*counts) ** 2
    assert DistanceHistograms(*counts).divergence() == pytest.approx(expected)
    assert np.isnan(DistanceHistograms(0 * counts[0], counts[1]).divergence())


@pytest.mark.thorough
@pytest.mark.slow
@pytest.mark.parametrize("scale", [1, 4])
def test_the_bound_reaches_twice_the_divergence(scale):
    z, labels = clusters(40, 10, 8, scale)
    found = mutual_information_bound(z, labels, steps=300)
    divergence = distance_histograms(z, labels, bins=40).divergence()
    assert found.nats == pytest.approx(2 * divergence, abs=0.05)
    assert found.nats < 2 * np.log(2)
    assert 0 < found.beta < 2


@pytest.mark.slow
def test_the_bound_is_reproducible_and_small_for_noise():
    rng = np.random.default_rng(1)
    z, labels = rng.normal(size=(300, 32)), np.arange(300) // 5
    first, second = (
        mutual_information_bound(
            z, labels, network=models.StatisticsNetwork(hidden=8, depth=1, seed=0), steps=150
        )
        for _ in range(2)
    )
    assert first.nats == second.nats
    assert first.nats < 0.05


def test_bad_input():
    z, labels = clusters(2, 3, 4, 1)
    with pytest.raises(ValueError, match="bins must be a whole number .* but got 0"):
        distance_histograms(z, labels, bins=0)
    with pytest.raises(ValueError, match="labels must .* two classes, one of them with two"):
        mutual_information_bound(z, np.zeros(len(z)))
