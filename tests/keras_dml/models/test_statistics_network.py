"""The statistics network as in Eq. 14, and the distance at which it is zero."""

import keras
import numpy as np
import pytest
from backend import compiled as in_a_graph
from keras import ops

from keras_dml.models import StatisticsNetwork
from keras_dml.models.statistics_network import estimate_beta


@pytest.mark.parametrize("residual", [True, False])
def test_values_match_the_formula(residual):
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


def test_it_decreases_and_is_zero_at_zero_at():
    network = StatisticsNetwork(zero_at=0.8, seed=4)
    values = np.asarray(network(np.linspace(0, 2, 21)[:, None]))[:, 0]
    assert values[8] == pytest.approx(0.0, abs=1e-6)
    assert values[0] > 0 > values[-1]
    again = StatisticsNetwork(zero_at=0.8, seed=4)
    np.testing.assert_array_equal(network.get_weights()[2], again.get_weights()[2])


def test_configuration_round_trip():
    network = StatisticsNetwork(hidden=3, depth=0, slope=0.2, residual=False, zero_at=0.5, seed=2)
    copy = keras.saving.deserialize_keras_object(keras.saving.serialize_keras_object(network))
    assert copy.get_config() == network.get_config()


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
