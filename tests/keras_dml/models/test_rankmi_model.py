"""RankMI's alternating training, against Algorithm 1 written in NumPy float64.

On every backend, the marked tests check that training equals Algorithm 1. Also the statistics
network (Eq. 14), and the distance at which it is zero.
"""

import functools

import keras
import numpy as np
import pytest
import tiers
from backend import compiled as in_a_graph
from batches import functional
from keras import ops
from oracles import unit
from scipy import optimize

from keras_dml import models
from keras_dml._pairwise.negatives import distance_weighted, draw_negatives
from keras_dml.models import StatisticsNetwork
from keras_dml.models.statistics_network import estimate_beta

tensor = ops.convert_to_tensor

RATE, STATISTICS_RATE, ALPHA = 0.3, 0.2, 0.1
IDS = np.array([0, 0, 0, 1, 1, 2, 2, 2, 2, 3])
POSITIVE = (IDS[:, None] == IDS) & ~np.eye(len(IDS), dtype=bool)
NEGATIVE = IDS[:, None] != IDS


def images(steps):
    rng = np.random.default_rng(0)
    noise = rng.normal(size=(steps, len(IDS), 6))
    return noise + 1.2 * np.sin(IDS[:, None] * np.arange(1, 7))


X = images(1)[0].astype("float32")


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
    flat, ids = x.reshape(-1, x.shape[-1]), np.tile(IDS, len(x))
    return model.fit(flat, ids, batch_size=len(IDS), shuffle=False, verbose=0, **arguments).history


def statistics(distances, weights, slope=0.1, residual=True):
    """Compute V (Eq. 14): dense layers with leaky ReLU between them, minus the distances."""
    x = np.asarray(distances)[:, None]
    for kernel, bias in zip(weights[:-2:2], weights[1:-2:2]):
        x = x @ kernel + bias
        x = np.where(x < 0, slope * x, x)
    values = (x @ weights[-2] + weights[-1])[:, 0]
    return values - distances if residual else values


def distances_of(x, theta):
    z = unit(x @ theta[0])
    return np.linalg.norm(z[:, None] - z, axis=2)


def loss_of(distances, positive, negative, phi):
    """Compute the loss over the pairs at these places. No pairs cost 0."""
    total = 0.0
    for places, sign in ((positive, -1), (negative, 1)):
        costs = np.log1p(np.exp(sign * statistics(distances[places], phi))) - np.log(2)
        total += costs.mean() if costs.size else 0.0
    return total


class Replay:
    """Algorithm 1 on a linear embedding, with gradients by central differences."""

    def __init__(self, model):
        self.theta = [w.astype("float64") for w in model.embedding.get_weights()]
        self.phi = [w.astype("float64") for w in model.statistics_network.get_weights()]
        self.beta, self.k, self.sampling = 1.0, model.k, model.sampling

    def step(self, t, x):
        d = distances_of(x, self.theta)
        if t % (self.k + 1):
            self.phi = descended(
                lambda phi: loss_of(d, POSITIVE, NEGATIVE, phi), self.phi, STATISTICS_RATE
            )
            self.beta = self.zero()
            return
        kept = POSITIVE & (d > self.beta - ALPHA)
        near = NEGATIVE & (d < self.beta + ALPHA)
        if self.sampling != "all":
            near = self.drawn(t, d, near)
        self.theta = descended(
            lambda theta: loss_of(distances_of(x, theta), kept, near, self.phi), self.theta, RATE
        )

    def drawn(self, t, d, near):
        """Return the places of one negative pair for each positive pair of the same anchor."""
        if self.sampling == "uniform":
            chances = near / np.maximum(near.sum(axis=1, keepdims=True), 1)
        else:
            chances = np.asarray(distance_weighted(tensor(d), tensor(near), 3))
        draws = np.asarray(draw_negatives(tensor(chances), seed=7, step=t))
        anchors, positives = np.nonzero(POSITIVE & near.any(axis=1, keepdims=True))
        return anchors, draws[anchors, positives]

    def zero(self):
        """Find the zero of V next to the previous β by fine steps and Brent's method."""
        grid = np.linspace(0, 2, 20001)
        heights = statistics(grid, self.phi)
        crossings = np.flatnonzero((heights[:-1] > 0) & (heights[1:] <= 0))
        nearest = crossings[np.argmin(np.abs(grid[crossings] - self.beta))]
        low, high = grid[nearest : nearest + 2]
        return optimize.brentq(lambda d: statistics([d], self.phi)[0], low, high)


def descended(loss, parameters, rate, h=1e-6):
    """Take one step of gradient descent, with gradients by central differences."""
    moved = [array.copy() for array in parameters]
    for array, target in zip(parameters, moved):
        for index in np.ndindex(array.shape):
            kept = array[index]
            array[index] = kept + h
            above = loss(parameters)
            array[index] = kept - h
            target[index] -= rate * (above - loss(parameters)) / (2 * h)
            array[index] = kept
    return moved


@tiers.slow_on_tensorflow
@pytest.mark.any_backend
@tiers.parametrize(
    ("k", "sampling"),
    [(1, "distance_weighted"), (1, "uniform"), (1, "all"), (3, "all")],
    [(1, "distance_weighted")],
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
    for mine, theirs, start in zip(weights(model), replay.theta + replay.phi, before):
        assert np.abs(theirs - start).max() > 1e-4
        np.testing.assert_allclose(mine, theirs, atol=1e-6)


@pytest.mark.any_backend
def test_the_variables_of_the_model_exclude_those_of_the_optimizers():
    names = [variable.name for variable in rankmi().non_trainable_variables]
    assert names == ["beta", "step", "beta_not_found"]


@tiers.thorough
@pytest.mark.any_backend
@pytest.mark.skipif(keras.backend.backend() != "torch", reason="torch.compile")
def test_steps_in_torch_compile_equal_eager_steps():
    x, trained = images(2), []
    for jit_compile in (False, True):
        model = rankmi("float32", compiling={"jit_compile": jit_compile})
        fit(model, x)
        trained.append(weights(model))
    for one, other in zip(*trained, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-5)


@pytest.mark.any_backend
@pytest.mark.skipif(keras.backend.backend() != "jax", reason="one way to choose the phase")
def test_jax_on_a_gpu_chooses_the_phase_in_a_condition(monkeypatch):
    x = images(3)
    trained = []
    for device in ("cpu", "gpu"):
        monkeypatch.setattr("jax.default_backend", lambda device=device: device)
        model = rankmi()
        fit(model, x)
        trained.append(weights(model))
    for one, other in zip(*trained, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-9)


def copies(*holders):
    """Return copies of all variables of models and optimizers."""
    return [np.copy(variable) for holder in holders for variable in holder.variables]


def weights(model):
    return copies(model.embedding, model.statistics_network)


def same(one, other):
    return all(np.array_equal(a, b) for a, b in zip(one, other, strict=True))


@pytest.mark.any_backend
def test_each_phase_only_changes_one_network_and_optimizer():
    adam = keras.optimizers.Adam
    # In eager mode, JAX would compile each operation separately.
    eager = {"run_eagerly": keras.backend.backend() != "jax"}
    model = rankmi("float32", adam(0.01), adam(0.01), compiling=eager)
    sides = [
        (model.embedding, model.optimizer),
        (model.statistics_network, model.statistics_optimizer),
    ]
    for x, (changed, kept) in zip(images(2), (sides, sides[::-1])):
        before = copies(*changed), copies(*kept)
        fit(model, x[None])
        assert not same(copies(*changed), before[0])
        assert same(copies(*kept), before[1])
    assert int(model.optimizer.iterations) == int(model.statistics_optimizer.iterations) == 1


@pytest.mark.slow
def test_logs_of_one_step_match_its_pairs():
    model = rankmi()
    replay = Replay(model)
    x = images(1)
    history = fit(model, x)
    d = distances_of(x[0], replay.theta)
    kept = POSITIVE & (d > 1 - ALPHA), NEGATIVE & (d < 1 + ALPHA)
    expected = {
        "mutual_information": -loss_of(d, POSITIVE, NEGATIVE, replay.phi),
        "loss": loss_of(d, *kept, replay.phi),
        "positive_kept": kept[0].sum() / POSITIVE.sum(),
        "negative_kept": kept[1].sum() / NEGATIVE.sum(),
    }
    assert {name: history[name][0] for name in expected} == pytest.approx(expected, rel=1e-5)


@pytest.mark.slow
def test_not_decreasing_counts_distances_at_which_v_increases():
    wave = functional((1,), lambda distances: ops.cos(np.pi * distances))
    model = rankmi(statistics_network=wave)
    x = images(1)
    d = distances_of(x[0], linear().get_weights())[POSITIVE | NEGATIVE]
    assert fit(model, x)["not_decreasing"][0] == pytest.approx(np.mean(d > 1), abs=0.03)


@tiers.parametrize("sampling", models.rankmi.SAMPLINGS, ["distance_weighted"])
def test_no_pairs_within_the_margins_give_zero_loss_and_no_update(sampling):
    near = network("float32", zero_at=0.2)
    model = rankmi("float32", statistics_network=near, beta=0.2, sampling=sampling, compiling=EAGER)
    x = np.eye(6, dtype="float32")[None, IDS]  # positives at 0, negatives far
    before = weights(model)
    history = fit(model, x)
    for name in ("loss", "positive_kept", "negative_kept"):
        assert history[name] == [0.0]
    assert same(before, weights(model))


@pytest.mark.any_backend
def test_one_image_and_one_class_train_without_error():
    eager = keras.backend.backend() != "jax"
    model = rankmi("float32", sampling="distance_weighted", compiling={"run_eagerly": eager})
    ids = IDS.astype("uint8")
    for rows in ([0], [0, 1, 2], [0]):
        logs = model.train_on_batch(X[rows], ids[rows], return_dict=True)
        assert all(np.isfinite(float(value)) for value in logs.values())
    assert int(model.step) == 3
    assert all(np.isfinite(w).all() for w in weights(model))


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
        runs.append([*weights(model), np.copy(model.beta)])
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


@pytest.mark.slow
def test_an_image_that_is_not_finite_makes_both_losses_nan():
    x = images(2).astype("float32")
    x[:, 3] = np.nan
    history = fit(rankmi("float32"), x)
    assert np.isnan([history["loss"], history["statistics_loss"]]).all()


@pytest.mark.slow
def test_evaluate_weighs_batches_by_their_pairs():
    model = rankmi()
    x = images(1)[0]
    whole = model.evaluate(x, IDS, batch_size=10, verbose=0, return_dict=True)
    more = np.concatenate([x, x[:1]]), np.append(IDS, 0)
    last_alone = model.evaluate(*more, batch_size=10, verbose=0, return_dict=True)
    for name, value in whole.items():
        assert last_alone[name] == pytest.approx(value)


@pytest.mark.slow
def test_sample_weights_weigh_anchors():
    def loss(weights):
        model = rankmi("float32", compiling=EAGER)
        return float(model.train_on_batch(X, IDS, weights, return_dict=True)["loss"])

    given = np.linspace(0, 2, len(IDS)).astype("float32")
    whole = loss(given)
    assert loss(given[:, None]) == whole
    # With weights for one anchor at a time, the parts add up.
    assert whole == pytest.approx(sum(map(loss, np.diag(given))), rel=1e-4, abs=1e-6)


def trained_on(*data):
    return lambda: rankmi("float32", compiling=EAGER).train_on_batch(*data)


def two_outputs():
    return functional((6,), lambda x: [keras.layers.Dense(2)(x), keras.layers.Dense(3)(x)])


MISTAKES = [
    (lambda: models.RankMI(keras.Sequential([keras.layers.Dense(3)])), "embedding must be a built"),
    (lambda: models.RankMI(two_outputs()), "as its only output"),
    (lambda: rankmi(statistics_network=functional((1,), keras.layers.Dense(2))),
     r"of shape \(2, 2\) for distances of shape \(2, 1"),
    (lambda: rankmi(statistics_network=network("float16")), "must compute in float32 or float64"),
    (lambda: rankmi(compiling={"loss": "mse"}), "loss must be left out of compile.*fixed loss"),
    (lambda: models.RankMI(linear()).compile(*2 * [keras.optimizers.SGD()]), "must be a separate"),
    (trained_on(X), "y must be class ids"),
    (trained_on(X, IDS[:3]), "3 class ids and 10 embeddings"),
    (trained_on(X, IDS, np.ones((len(IDS), 3))), "sample_weight must be weights of shape"),
]  # fmt: skip


@pytest.mark.parametrize(("call", "message"), MISTAKES)
def test_mistakes_raise_an_error(call, message):
    with pytest.raises(ValueError, match=message):
        call()


@pytest.mark.parametrize("residual", [True, False])
def test_the_statistics_network_matches_the_formula(residual):
    """Compare V with the formula for any weights. With its first weights it is 0 at 0.7."""
    d = np.array([0.0, 0.7, 1.9])
    arguments = {"hidden": 5, "depth": 2, "slope": 0.3, "residual": residual, "zero_at": 0.7}
    network = StatisticsNetwork(**arguments, seed=1, dtype="float64")
    above, zero, below = np.asarray(network(d[:, None]))[:, 0]
    assert zero == pytest.approx(0.0, abs=1e-6)
    if residual:
        assert above > 0 > below
    rng = np.random.default_rng(0)
    w = [rng.normal(size=w.shape) for w in network.get_weights()]
    assert [a.shape for a in w] == [(1, 5), (5,), (5, 5), (5,), (5, 5), (5,), (5, 1), (1,)]
    network.set_weights(w)
    found = np.asarray(network(d[:, None]))[:, 0]
    np.testing.assert_allclose(found, statistics(d, w, 0.3, residual), rtol=1e-6)


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

    estimate = functools.partial(estimate_beta, function)
    beta, found = (in_a_graph(estimate) if compiled else estimate)(last)
    assert bool(found) == (expected != "kept")
    if expected == "kept":
        assert float(beta) == float(last)
        return
    assert float(function(beta)) == pytest.approx(0.0, abs=1e-5)
    assert 0 <= float(beta) <= 2
    if expected is not None:
        assert float(beta) == pytest.approx(expected, abs=1e-5)
