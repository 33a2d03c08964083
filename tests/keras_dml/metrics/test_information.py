"""Information of embeddings: worked examples, loops, known answers, and degenerate sets."""

import math

import numpy as np
import pytest
from retrieval_sets import clusters
from scipy.spatial.distance import cdist, pdist
from scipy.special import digamma, gammaln

from keras_dml.metrics import information, information_intervals
from keras_dml.metrics.information_scores import INFORMATION
from keras_dml.metrics.linear_probe import fit_probe
from keras_dml.metrics.pairwise_information import (
    pair_influence,
    pair_statistics,
    uniform_log_distance,
    within_class_entropy,
)

ROWS = np.array([[0, 0], [1, 0], [0, 2], [4, 4]])
UNIT = np.array([[3, 4, 0], [4, 3, 0], [-4, 0, 3], [0, 0, 5]]) / 5
LABELS = np.array([0, 0, 1, 1])
LINES = np.array([[0, 1, 3, 2.2, 11.5, 14], [0, 1, 3, 10, 11.5, 14]])[..., None]
THREES = np.repeat([0, 1], 3)
PAIRS = [name for name in INFORMATION if "probe" not in name and "information_d" not in name]


def one(name, z, labels, **arguments):
    return information(z, labels, [name], **arguments)[name]


@pytest.mark.parametrize(
    ("name", "z", "labels", "arguments", "printed"),
    [
        ("entropy_pairwise/l2", ROWS, LABELS, {}, 4.257409),
        ("mean_distance/l2", ROWS, LABELS, {}, 3.394176),
        ("entropy_uniformity/cosine", UNIT, LABELS, {}, -0.117276),
        ("entropy_within/l2", ROWS, LABELS, {}, 2.949449),
        ("information_generative/l2", ROWS, LABELS, {}, 0.614813),
        ("information_neighbors/l2", ROWS, LABELS, {"neighbors": 1}, 0.458333),
        ("information_neighbors/l2", LINES[0], THREES, {"neighbors": 1}, 0.311111),
        ("information_neighbors/l2", LINES[1], THREES, {"neighbors": 1}, 0.783333),
    ],
)
def test_worked_examples(name, z, labels, arguments, printed):
    assert one(name, z, labels, **arguments) == pytest.approx(printed, abs=5e-7)


def test_worked_example_of_the_entropy_within_classes():
    found = within_class_entropy(ROWS.astype(float), LABELS)
    np.testing.assert_allclose(found.per_class, [1.451583, 4.447315], atol=5e-7)
    np.testing.assert_allclose(
        [found.average, found.pooled, found.unit_variance],
        [2.949449, 3.802958, 4.462877],
        atol=5e-7,
    )


def test_worked_example_of_the_probe():
    z, labels = np.array([[-2.0], [-1], [1], [2]]), np.array([0, 0, 1, 1])
    probe = fit_probe(z, labels, 0.1, standardize=False)
    np.testing.assert_allclose(probe.weights, [[-0.923601, 0.923601]], atol=1e-4)
    np.testing.assert_allclose(probe.bias, 0, atol=1e-4)
    scored = np.array([[-1.5], [0.5], [1.5], [-0.5]])
    losses = -probe.log_probabilities(scored, labels)
    assert losses.mean() == pytest.approx(0.659360, abs=1e-5)
    assert math.log(2) - losses.mean() == pytest.approx(0.033787, abs=1e-5)
    claimed = math.log(2) + probe.log_probabilities(z, labels).mean()
    assert claimed == pytest.approx(0.607660, abs=1e-5)


def test_worked_examples_of_mean_logarithms():
    found = pair_statistics(ROWS.astype(float), LABELS, 1).log_distance.mean()
    assert found == pytest.approx(1.056340, abs=5e-7)
    assert pair_statistics(UNIT, LABELS, 1).log_distance.mean() == pytest.approx(0.075871, abs=5e-7)
    uniform = [uniform_log_distance(d) for d in (2, 3, 128)]
    np.testing.assert_allclose(uniform, [0, 0.193147, 0.344597], atol=5e-7)


def slow_information(z, labels, k):
    """Compute the estimates with loops over classes and rows."""
    n, d = z.shape
    classes = [np.flatnonzero(labels == label) for label in np.unique(labels)]
    distances = cdist(z, z)

    def index(rows):
        logs = np.log(pdist(z[rows])).mean()
        return d * logs + d / 2 * math.log(math.pi) - gammaln(d / 2 + 1) + 1

    neighbors, within = [], 0.0
    for rows in classes:
        variance = z[rows].var(axis=0, ddof=1).mean()
        within += len(rows) / n * d / 2 * math.log(2 * math.pi * math.e * variance)
        for i in rows:
            own = np.sort(distances[i, rows])  # the first is the row itself
            nearest = min(k, len(own) - 1)
            nearer = np.sum(distances[i] <= own[nearest]) - 1
            neighbors.append(digamma(n) + digamma(nearest) - digamma(nearer) - digamma(len(rows)))
    return {
        "entropy_pairwise/l2": index(np.arange(n)),
        "entropy_within/l2": within,
        "information_neighbors/l2": np.mean(neighbors),
        "information_generative/l2": index(np.arange(n))
        - sum(len(rows) / n * index(rows) for rows in classes),
    }


@pytest.mark.parametrize("k", [1, 3, 6])
def test_estimates_equal_loops(k):
    rng = np.random.default_rng(k)
    z, labels = rng.normal(size=(40, 3)), np.repeat([2, 0, 1, 5], [4, 12, 15, 9])
    labels = rng.permutation(labels)
    expected = slow_information(z, labels, k)
    found = information(z, labels, expected, neighbors=k)
    assert {name: found[name] for name in expected} == pytest.approx(expected, abs=1e-10)


def test_probe_equals_scikit_learn():
    from sklearn.linear_model import LogisticRegression

    z, labels = clusters(4, 30, 3, 1.0)
    probe = fit_probe(z, labels, 0.01)
    other = LogisticRegression(C=1 / (0.01 * len(z)), tol=1e-8, max_iter=1000)
    other.fit((z - z.mean(axis=0)) / z.std(axis=0), labels)
    expected = other.predict_log_proba((z - z.mean(axis=0)) / z.std(axis=0))
    expected = expected[np.arange(len(z)), labels]
    np.testing.assert_allclose(probe.log_probabilities(z, labels), expected, atol=1e-3)
    assert probe.converged


def test_scaling_adds_d_log_a():
    z, labels = clusters(3, 10, 5, 1.0)
    first, second = (information(a * z, labels, PAIRS) for a in (1, 7))
    for name in ("entropy_pairwise/l2", "entropy_within/l2"):
        assert second[name] - first[name] == pytest.approx(5 * math.log(7), abs=1e-9)
    for name in ("information_neighbors/l2", "information_generative/l2", "jensen_shannon"):
        assert second[name] == pytest.approx(first[name], abs=1e-6)


def test_separated_classes_reach_the_class_entropy():
    z, labels = clusters(10, 30, 8, 16.0)
    found = information(z, labels, [*PAIRS, "information_probe/l2", "information_probe/cosine"])
    assert found["class_entropy"] == pytest.approx(math.log(10))
    for distance in ("l2", "cosine"):
        assert found[f"information_neighbors/{distance}"] == pytest.approx(2.3177, abs=5e-5)
        assert found[f"information_probe/{distance}"] == pytest.approx(math.log(10), abs=0.02)
    assert found["information_generative/l2"] > 10  # the index has no ceiling


def test_linear_probe_misses_exclusive_or_and_neighbors_find_it():
    rng = np.random.default_rng(0)
    signs = rng.choice([-1, 1], size=(400, 2))
    z, labels = 4 * signs + rng.normal(size=(400, 2)), signs.prod(axis=1)
    found = information(z, labels, ["information_neighbors/l2", "information_probe/l2"])
    assert found["information_neighbors/l2"] == pytest.approx(math.log(2), abs=0.02)
    assert abs(found["information_probe/l2"]) < 0.01


def test_fitted_half_is_not_scored():
    rng = np.random.default_rng(0)
    z, labels = rng.normal(size=(200, 256)), np.arange(200) % 10
    assert one("information_probe/l2", z, labels) < 0.05
    probe = fit_probe(z[:100], labels[:100], 1e-4)
    assert math.log(10) + probe.log_probabilities(z[:100], labels[:100]).mean() > 2.2


def test_collapsed_embeddings():
    labels = np.repeat([0, 1], [5, 7])
    found = information(np.ones((12, 3)), labels, PAIRS)
    assert found["entropy_pairwise/l2"] == found["entropy_within/l2"] == -math.inf
    expected = 1 / 11 - 5 / 12 / 4 - 7 / 12 / 6
    assert found["information_neighbors/l2"] == pytest.approx(expected)
    assert found["mean_distance/l2"] == found["jensen_shannon"] == 0
    assert abs(one("information_probe/l2", np.ones((12, 3)), labels)) < 0.1


def test_duplicates_count_as_ties_and_are_floored():
    z = np.repeat(np.random.default_rng(0).normal(size=(20, 4)) + 100, 2, axis=0)
    labels = np.arange(40) // 2 % 4
    found = information(z, labels, PAIRS)
    assert all(math.isfinite(value) for value in found.values())
    order = np.argsort(labels, kind="stable")
    assert pair_statistics(z[order], labels[order], 3).floored == 40


def test_far_offset_keeps_the_digits_of_float64():
    z, labels = clusters(3, 10, 4, 1.0)
    near = np.ldexp(np.round(np.ldexp(z, 20)), -20)
    first, second = information(near, labels, PAIRS), information(near + 2**10, labels, PAIRS)
    for name in PAIRS:
        if name.endswith("l2"):
            assert second[name] == pytest.approx(first[name], abs=1e-9), name


def test_classes_with_one_row_are_left_out_of_scores_within_classes():
    z, labels = clusters(3, 10, 4, 1.0)
    more = np.vstack([z, 5 + z[:2]]), np.r_[labels, 7, 8]
    for name in ("information_neighbors/l2", "information_generative/l2", "entropy_within/l2"):
        assert one(name, *more) == pytest.approx(one(name, z, labels)), name
    assert one("information_probe/l2", *more) == one("information_probe/l2", z, labels)
    assert math.isnan(one("information_probe/l2", ROWS, LABELS))


def test_result_does_not_depend_on_the_order_or_kind_of_labels():
    z, labels = clusters(4, 8, 3, 1.0)
    order = np.random.default_rng(1).permutation(len(z))
    names = np.array(["a", "b", "c", "d"])[labels]
    first, second = information(z, labels, PAIRS), information(z[order], names[order], PAIRS)
    assert first == pytest.approx(second, abs=1e-12)


def test_at_most_rows_are_whole_classes():
    z, labels = clusters(10, 8, 3, 1.0)
    assert one("class_entropy", z, labels, rows=30) == pytest.approx(math.log(3))
    assert one("class_entropy", z, labels, rows=3) == pytest.approx(math.log(2))
    assert one("mean_distance/l2", z, labels, rows=80) == one("mean_distance/l2", z, labels)


def test_intervals_cover_the_value_of_new_classes():
    names = ["entropy_pairwise/l2", "entropy_within/l2", "mean_distance/l2"]
    names += ["information_neighbors/l2", "jensen_shannon"]
    sets = [clusters(40, 5, 4, 1.5, seed) for seed in range(12)]
    values = {name: np.mean([one(name, *each) for each in sets]) for name in names}
    covered = dict.fromkeys(names, 0)
    for z, labels in sets:
        for name, (low, high) in information_intervals(z, labels, names).items():
            covered[name] += low <= values[name] <= high
    assert all(number >= 8 for number in covered.values()), covered


def test_intervals_of_a_score_that_is_not_finite_are_nan():
    names = ["entropy_within/l2", "class_entropy"]
    found = information_intervals(np.ones((4, 2)), LABELS, names, replicates=50)
    assert np.isnan(found["entropy_within/l2"]).all() and np.isfinite(found["class_entropy"]).all()


def test_a_resampling_changes_the_score_by_its_derivatives_by_the_weights_of_classes():
    z, labels = (rows[:-3] for rows in clusters(5, 6, 3, 1.0))
    sizes = enumerate(np.bincount(labels))
    logs = np.log(cdist(z, z) + np.eye(27))  # 0 on the diagonal
    means = [logs[np.ix_(labels == c, labels == c)].sum() / n / (n - 1) for c, n in sizes]

    def value(weights):
        of_pairs = weights[labels, None] * weights[labels] * (1 - np.eye(27))
        within = np.average(np.array(means)[labels], weights=weights[labels])
        return 3 * (np.average(logs, weights=of_pairs) - within)

    slopes = [(value(1 + 1e-5 * row) - value(1 - 1e-5 * row)) / 2e-5 for row in np.eye(5)]
    drawn = np.random.default_rng([0, 3]).multinomial(5, np.full(5, 0.2))
    expected = value(np.ones(5)) + drawn @ slopes * 27 / drawn[labels].sum()
    name = "information_generative/l2"
    found = information_intervals(z, labels, [name], replicates=1)[name]
    assert found == pytest.approx((expected, expected), abs=1e-6)


def test_influence_of_a_row_is_the_derivative_by_its_weight():
    z, labels = clusters(5, 6, 3, 1.0)
    unit = z / np.linalg.norm(z, axis=1, keepdims=True)
    tables = np.random.default_rng(1).normal(size=(2, 10))
    cells = np.minimum((5 * np.linalg.norm(unit[:, None] - unit, axis=2)).astype(int), 9)
    same = labels[:, None] == labels
    positive, negative = same & ~np.eye(30, dtype=bool), ~same

    def value(weights):
        of_pairs = weights[:, None] * weights
        matching = (tables[0][cells] * weights[:, None])[positive].sum()
        others = (tables[1][cells] * of_pairs)[negative].sum()
        return matching / (weights @ positive.sum(axis=1)) + others / of_pairs[negative].sum()

    slopes = [(value(1 + 1e-6 * row) - value(1 - 1e-6 * row)) / 2e-6 for row in np.eye(30)]
    expected = 30 * np.array(slopes)
    np.testing.assert_allclose(pair_influence(unit, labels, tables), expected, atol=1e-6)


@pytest.mark.thorough
@pytest.mark.slow
def test_interval_of_a_fitted_network_contains_it():
    z, labels = clusters(20, 10, 4, 2.0)
    low, high = information_intervals(z, labels, ["information_distances"])["information_distances"]
    assert low < one("information_distances", z, labels) < high < low + 1


@pytest.mark.slow
@pytest.mark.thorough
def test_every_score_by_default():
    z, labels = clusters(6, 20, 4, 4.0)
    found = information(z, labels)
    assert list(found) == list(INFORMATION) and all(map(math.isfinite, found.values()))
    assert found["information_distances"] < 2 * math.log(2)


@pytest.mark.parametrize(
    ("z", "labels", "arguments", "word"),
    [
        (ROWS, [0, 0, 0, 0], {}, "labels"),
        (ROWS, [0, 1, 2, 3], {}, "labels"),
        (np.zeros((0, 2)), [], {}, "labels"),
        (ROWS, LABELS, {"scores": ["entropy"]}, "scores"),
        (ROWS, LABELS, {"neighbors": 0}, "neighbors"),
        (ROWS, LABELS, {"rows": 1}, "rows"),
        (ROWS, LABELS, {"seed": -1}, "seed"),
        (ROWS, LABELS, {"replicates": 0}, "replicates"),
        (ROWS, LABELS, {"level": 1.0}, "level"),
    ],
)
def test_mistakes_name_the_argument(z, labels, arguments, word):
    with pytest.raises(ValueError, match=word):
        information_intervals(z, labels, **arguments)
