"""RankMI's alternating training, against Algorithm 1 written as loops in NumPy float64.

On every backend, the marked tests check that training equals the loops. Also the statistics
network (Eq. 14), and the distance at which it is zero.
"""

import keras
import numpy as np
import pytest
import tensorflow as tf
import tiers
from backend import compiled as in_a_graph
from keras import ops

from keras_dml import models
from keras_dml._pairwise.negatives import distance_weighted, draw_negatives
from keras_dml.models import StatisticsNetwork
from keras_dml.models.statistics_network import estimate_beta

tensor = ops.convert_to_tensor

RATE, STATISTICS_RATE, ALPHA = 0.3, 0.2, 0.1
IDS = np.array([0, 0, 0, 1, 1, 2, 2, 2, 2, 3])


def images(steps, seed=0):
    rng = np.random.default_rng(seed)
    noise = rng.normal(size=(steps, len(IDS), 6))
    return noise + 1.2 * np.sin(IDS[:, None] * np.arange(1, 7))


def network(dtype="float64", zero_at=1.0):
    return models.StatisticsNetwork(hidden=4, depth=1, zero_at=zero_at, seed=3, dtype=dtype)


def linear(dtype="float64"):
    keras.utils.set_random_seed(2)
    dense = keras.layers.Dense(3, use_bias=False, dtype=dtype)
    return keras.Sequential([keras.Input((6,), dtype=dtype), dense])


EAGER = {"run_eagerly": True}


def rankmi(dtype="float64", optimizer=None, statistics_optimizer=None, compiling=None, **arguments):
    given = {"alpha": ALPHA, "sampling": "all", "statistics_network": network(dtype), **arguments}
    model = models.RankMI(linear(dtype), **given)
    model.compile(
        optimizer or keras.optimizers.SGD(RATE),
        statistics_optimizer or keras.optimizers.SGD(STATISTICS_RATE),
        **(compiling or {}),
    )
    return model


def fit(model, x, **arguments):
    flat = x.reshape(-1, x.shape[-1]).astype(model.embedding.inputs[0].dtype)
    data = tf.data.Dataset.from_tensor_slices((flat, np.tile(IDS, len(x))))
    data = data.batch(len(IDS), drop_remainder=True)
    return model.fit(data, shuffle=False, verbose=0, **arguments).history


class Replay:
    """Algorithm 1 on a linear embedding, with gradients by central differences."""

    def __init__(self, model):
        self.theta = [w.astype("float64") for w in model.embedding.get_weights()]
        self.phi = [w.astype("float64") for w in model.statistics_network.get_weights()]
        self.beta, self.k, self.sampling = 1.0, model.k, model.sampling

    def statistics(self, d, phi):
        x = np.array([d])
        for layer in range(0, len(phi), 2):
            x = x @ phi[layer] + phi[layer + 1]
            if layer < len(phi) - 2:
                x = np.where(x < 0, 0.1 * x, x)
        return x[0] - d

    def distances(self, x, theta):
        z = x @ theta[0]
        z = z / np.linalg.norm(z, axis=1, keepdims=True)
        return np.array([[np.linalg.norm(a - b) for b in z] for a in z])

    def loss(self, d, positive, negative, phi):
        total = 0.0
        for pairs, sign in ((positive, -1), (negative, 1)):
            terms = [
                np.log1p(np.exp(sign * self.statistics(d[i, j], phi))) - np.log(2) for i, j in pairs
            ]
            total += np.mean(terms) if terms else 0.0
        return total

    def step(self, t, x):
        d = self.distances(x, self.theta)
        n = len(IDS)
        positive = [(i, j) for i in range(n) for j in range(n) if i != j and IDS[i] == IDS[j]]
        negative = [(i, j) for i in range(n) for j in range(n) if IDS[i] != IDS[j]]
        if t % (self.k + 1):
            self.phi = descended(
                lambda phi: self.loss(d, positive, negative, phi), self.phi, STATISTICS_RATE
            )
            self.beta = self.zero()
            return
        kept = [(i, j) for i, j in positive if d[i, j] > self.beta - ALPHA]
        near = [(i, j) for i, j in negative if d[i, j] < self.beta + ALPHA]
        if self.sampling != "all":
            near = self.drawn(t, d, positive, near)
        self.theta = descended(
            lambda theta: self.loss(self.distances(x, theta), kept, near, self.phi),
            self.theta,
            RATE,
        )

    def drawn(self, t, d, positive, near):
        mask = np.zeros(d.shape, bool)
        mask[tuple(zip(*near))] = True
        if self.sampling == "uniform":
            chances = mask / np.maximum(mask.sum(axis=1, keepdims=True), 1)
        else:
            chances = np.asarray(distance_weighted(tensor(d), tensor(mask), 3))
        draws = np.asarray(draw_negatives(tensor(chances), seed=7, step=t))
        return [(i, draws[i, j]) for i, j in positive if mask[i].any()]

    def zero(self):
        """Find the zero of V next to the previous β by fine steps and bisection."""
        grid = np.linspace(0, 2, 20001)
        heights = np.array([self.statistics(d, self.phi) for d in grid])
        crossings = np.flatnonzero((heights[:-1] > 0) & (heights[1:] <= 0))
        nearest = crossings[np.argmin(np.abs(grid[crossings] - self.beta))]
        low, high = grid[nearest], grid[nearest + 1]
        for _ in range(60):
            middle = (low + high) / 2
            low, high = (middle, high) if self.statistics(middle, self.phi) > 0 else (low, middle)
        return low


def descended(loss, parameters, rate, h=1e-6):
    gradients = []
    for array in parameters:
        gradient = np.zeros_like(array)
        for index in np.ndindex(array.shape):
            kept = array[index]
            array[index] = kept + h
            above = loss(parameters)
            array[index] = kept - h
            gradient[index] = (above - loss(parameters)) / (2 * h)
            array[index] = kept
        gradients.append(gradient)
    return [array - rate * gradient for array, gradient in zip(parameters, gradients)]


@pytest.mark.any_backend
@pytest.mark.parametrize(
    ("k", "sampling"),
    [
        (1, "distance_weighted"),
        *(
            pytest.param(*case, marks=tiers.THOROUGH)
            for case in ((1, "all"), (3, "all"), (1, "uniform"))
        ),
    ],
)
def test_steps_match_algorithm_1(k, sampling, steps=4):
    model = rankmi(k=k, sampling=sampling, seed=7)
    replay = Replay(model)
    x = images(steps)
    before = [np.copy(w) for w in replay.theta + replay.phi]
    fit(model, x)
    for t in range(steps):
        replay.step(t, x[t])
    assert int(model.step) == steps
    assert float(model.beta) == pytest.approx(replay.beta, abs=1e-6)
    ours = model.embedding.get_weights() + model.statistics_network.get_weights()
    for mine, theirs, start in zip(ours, replay.theta + replay.phi, before):
        assert np.abs(theirs - start).max() > 1e-4
        np.testing.assert_allclose(mine, theirs, atol=1e-6)


def weights(model):
    return [np.copy(variable) for variable in model.embedding.variables]


def statistics_weights(model):
    return [np.copy(variable) for variable in model.statistics_network.variables]


def same(one, other):
    return all(np.array_equal(a, b) for a, b in zip(one, other, strict=True))


@pytest.mark.any_backend
def test_each_phase_only_changes_one_network_and_optimizer():
    adam = keras.optimizers.Adam
    model = rankmi("float32", adam(0.01), adam(0.01), compiling=EAGER)
    x = images(2).astype("float32")
    for changed, kept in ((0, 1), (1, 0)):
        sides = [
            lambda: weights(model) + [np.copy(v) for v in model.optimizer.variables],
            lambda: (
                statistics_weights(model)
                + [np.copy(v) for v in model.statistics_optimizer.variables]
            ),
        ]
        before = [side() for side in sides]
        fit(model, x[changed : changed + 1])
        assert same(before[kept], sides[kept]())
        assert not same(before[changed], sides[changed]())
    assert int(model.optimizer.iterations) == int(model.statistics_optimizer.iterations) == 1


@pytest.mark.slow
def test_logs_of_one_step_match_its_pairs():
    model = rankmi()
    replay = Replay(model)
    x = images(1)
    history = fit(model, x)
    d = replay.distances(x[0], replay.theta)
    same_class = IDS[:, None] == IDS
    positive = same_class & ~np.eye(len(IDS), dtype=bool)
    kept = positive & (d > 1 - ALPHA), ~same_class & (d < 1 + ALPHA)
    pairs = [list(zip(*np.nonzero(mask))) for mask in (positive, ~same_class, *kept)]
    bound = -replay.loss(d, pairs[0], pairs[1], replay.phi)
    assert history["mutual_information"][0] == pytest.approx(bound, rel=1e-5)
    assert history["loss"][0] == pytest.approx(replay.loss(d, *pairs[2:], replay.phi), rel=1e-5)
    assert history["positive_kept"][0] == pytest.approx(kept[0].sum() / positive.sum())
    assert history["negative_kept"][0] == pytest.approx(kept[1].sum() / (~same_class).sum())


@pytest.mark.slow
def test_not_decreasing_counts_distances_at_which_v_increases():
    class Wave(keras.layers.Layer):
        def call(self, distances):
            return keras.ops.cos(np.pi * distances)

    wave = Wave(dtype="float64")
    wave.build((None, 1))
    model = rankmi(statistics_network=wave, statistics_optimizer=keras.optimizers.SGD(0.1))
    x = images(1)
    replay = Replay(rankmi())
    d = replay.distances(x[0], replay.theta)[~np.eye(len(IDS), dtype=bool)]
    assert fit(model, x)["not_decreasing"][0] == pytest.approx(np.mean(d > 1), abs=0.03)


@tiers.parametrize("sampling", models.rankmi.SAMPLINGS, ["distance_weighted"])
def test_no_pairs_within_the_margins_give_zero_loss_and_no_update(sampling):
    network_near = network("float32", zero_at=0.2)
    model = rankmi(
        "float32", statistics_network=network_near, beta=0.2, sampling=sampling, compiling=EAGER
    )
    x = np.eye(6, dtype="float32")[None, IDS]  # positives at 0, negatives far
    before = weights(model) + statistics_weights(model)
    history = fit(model, x)
    for name in ("loss", "positive_kept", "negative_kept"):
        assert history[name] == [0.0]
    assert same(before, weights(model) + statistics_weights(model))


@pytest.mark.any_backend
def test_one_image_and_one_class_train_without_error():
    eager = keras.backend.backend() != "jax"
    model = rankmi("float32", sampling="distance_weighted", compiling={"run_eagerly": eager})
    x = images(1)[0].astype("float32")
    for rows in ([0], [0, 1, 2], [0]):
        logs = model.train_on_batch(x[rows], IDS[rows], return_dict=True)
        assert all(np.isfinite(float(value)) for value in logs.values())
    assert int(model.step) == 3
    assert all(np.isfinite(w).all() for w in weights(model) + statistics_weights(model))


@pytest.mark.thorough
@pytest.mark.slow
def test_steps_per_execution_and_xla_give_the_same_weights():
    x = images(7).astype("float32")
    runs = []
    # Uses all negatives: XLA has another random number generator.
    for arguments in ({}, {"steps_per_execution": 3}, {"jit_compile": True}):
        model = rankmi("float32", k=2, compiling=arguments)
        fit(model, x)
        assert int(model.step) == 7
        runs.append(weights(model) + statistics_weights(model) + [np.copy(model.beta)])
    for other in runs[1:]:
        for a, b in zip(runs[0], other, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_training_raises_the_bound_that_evaluate_returns():
    model = rankmi(
        "float32", keras.optimizers.Adam(0.02), keras.optimizers.Adam(0.01),
        sampling="distance_weighted",
    )  # fmt: skip
    x = np.tile(images(1).astype("float32"), (30, 1, 1))
    before = model.evaluate(x[0], IDS, batch_size=len(IDS), verbose=0, return_dict=True)
    callback = keras.callbacks.TerminateOnNaN()
    fit(model, x, epochs=2, callbacks=[callback], validation_data=(x[0], IDS))
    after = model.evaluate(x[0], IDS, batch_size=len(IDS), verbose=0, return_dict=True)
    assert set(after) == {"loss", "mutual_information", "not_decreasing"}
    assert after["mutual_information"] > before["mutual_information"] + 0.05
    assert after["mutual_information"] == pytest.approx(-after["loss"], rel=1e-5)
    np.testing.assert_allclose(model.predict(x[0], verbose=0), model.embedding(x[0]), rtol=1e-5)


def test_an_unbuilt_embedding_and_a_loss_are_refused():
    wide = keras.Sequential([keras.Input((1,)), keras.layers.Dense(2)])
    with pytest.raises(ValueError, match=r"values of shape \(2, 2\) for distances of shape \(2, 1"):
        models.RankMI(linear("float32"), statistics_network=wide)
    with pytest.raises(ValueError, match="embedding must be a built keras.Model"):
        models.RankMI(keras.Sequential([keras.layers.Dense(3)]))
    with pytest.raises(ValueError, match="loss must be left out of compile.*fixed loss"):
        models.RankMI(linear("float32")).compile("adam", "adam", loss="mse")


@pytest.mark.slow
@pytest.mark.parametrize("phase", [0, 1])
def test_an_image_that_is_not_finite_makes_the_loss_nan(phase):
    model = rankmi("float32")
    model.step.assign(phase)
    x = images(1).astype("float32")
    x[0, 3] = np.nan
    history = fit(model, x)
    assert np.isnan(history[["loss", "statistics_loss"][phase]][0])


@pytest.mark.slow
def test_evaluate_weighs_batches_by_their_pairs():
    model = rankmi()
    x = images(1)[0]
    whole = model.evaluate(x, IDS, batch_size=10, verbose=0, return_dict=True)
    more = np.concatenate([x, x[:1]]), np.append(IDS, 0)
    last_alone = model.evaluate(*more, batch_size=10, verbose=0, return_dict=True)
    for name, value in whole.items():
        assert last_alone[name] == pytest.approx(value)


@pytest.mark.thorough
@pytest.mark.slow
def test_sample_weights_weigh_anchors():
    x = images(1)[0].astype("float32")
    given = np.linspace(0, 2, len(IDS)).astype("float32")
    losses = []
    for shape in ((-1,), (-1, 1)):
        logs = rankmi("float32").train_on_batch(x, IDS, given.reshape(shape), return_dict=True)
        losses.append(float(logs["loss"]))
    assert losses[0] == losses[1]
    # With weights for one anchor at a time, the parts add up.
    each = [
        float(rankmi("float32").train_on_batch(x, IDS, one, return_dict=True)["loss"])
        for one in np.diag(given)
    ]
    assert losses[0] == pytest.approx(sum(each), rel=1e-4, abs=1e-6)
    with pytest.raises(ValueError, match="sample_weight must have the shape"):
        rankmi("float32", compiling=EAGER).train_on_batch(x, IDS, np.ones((len(IDS), 3)))


def test_warnings():
    x = images(1)[0].astype("float32")
    model = rankmi("float32", compiling=EAGER)
    with pytest.raises(ValueError, match="y must be class ids"):
        model.train_on_batch(x)
    with pytest.raises(ValueError, match="3 class ids and 10 embeddings"):
        model.train_on_batch(x, IDS[:3])
    adam = keras.optimizers.Adam()
    with pytest.raises(ValueError, match="statistics_optimizer must be a separate optimizer"):
        model.compile(adam, adam)
    half = keras.layers.Dense(1, dtype="float16")
    half.build((None, 1))
    with pytest.raises(ValueError, match="must compute in float32 or float64"):
        rankmi("float32", statistics_network=half)
    inputs = keras.Input((6,))
    two = keras.Model(inputs, [keras.layers.Dense(2)(inputs), keras.layers.Dense(3)(inputs)])
    with pytest.raises(ValueError, match="as its only output"):
        models.RankMI(two)
    small = IDS.astype("uint8")
    assert np.isfinite(
        rankmi("float32", compiling=EAGER).train_on_batch(x, small, return_dict=True)["loss"]
    )


@pytest.mark.parametrize("residual", [True, False])
def test_the_statistics_network_matches_the_formula(residual):
    network = StatisticsNetwork(
        hidden=5, depth=2, slope=0.3, residual=residual, zero_at=0.7, seed=1, dtype="float64"
    )
    rng = np.random.default_rng(0)
    network.set_weights([rng.normal(size=w.shape) for w in network.get_weights()])
    w = network.get_weights()
    assert [a.shape for a in w] == [(1, 5), (5,), (5, 5), (5,), (5, 5), (5,), (5, 1), (1,)]
    for d in (0.0, 0.4, 1.9):
        x = np.array([d])
        for layer in range(4):
            x = x @ w[2 * layer] + w[2 * layer + 1]
            x = x if layer == 3 else np.array([v if v > 0 else 0.3 * v for v in x])
        expected = x[0] - d if residual else x[0]
        assert float(network(np.array([[d]]))[0, 0]) == pytest.approx(expected)


def test_the_statistics_network_decreases_and_is_zero_at_zero_at():
    network = StatisticsNetwork(zero_at=0.8, seed=4)
    values = np.asarray(network(np.linspace(0, 2, 21)[:, None]))[:, 0]
    assert values[8] == pytest.approx(0.0, abs=1e-6)
    assert values[0] > 0 > values[-1]
    again = StatisticsNetwork(zero_at=0.8, seed=4)
    np.testing.assert_array_equal(network.get_weights()[2], again.get_weights()[2])


CASES = {
    "one Newton step": (lambda d: 0.7 - d, 0.7),
    "several Newton steps": (lambda d: ops.exp(-d) - 0.5, np.log(2)),
    "Newton leaves [0, 2]": (lambda d: ops.tanh(8 * (1.6 - d)), 1.6),
    "V rises at the last β": (lambda d: ops.cos(1.5 * np.pi * d) + 0.3, None),
    "no zero": (lambda d: -1.0 - d, "kept"),
}


@pytest.mark.any_backend
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("compiled", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_beta_is_the_root_of_v(case, compiled):
    function, expected = CASES[case]
    last = ops.convert_to_tensor(0.9, dtype="float64")

    def estimate(beta):
        return estimate_beta(function, beta)

    beta, found = (in_a_graph(estimate) if compiled else estimate)(last)
    assert bool(found) == (expected != "kept")
    if expected == "kept":
        assert float(beta) == float(last)
        return
    assert float(function(beta)) == pytest.approx(0.0, abs=1e-5)
    assert 0 <= float(beta) <= 2
    if expected is not None:
        assert float(beta) == pytest.approx(expected, abs=1e-5)
