"""RankMI: alternating updates of the embedding and the statistics network."""

import numpy as np
import pytest

from experiments.training.objectives.alternating import PairDistances


def test_rankmi_updates_the_embedding_once_in_k_plus_one_steps(objective):
    one = objective("--loss=rankmi", "--k=2", "--warmup_steps=1")
    assert [one.updates(steps) for steps in (1, 2, 3, 4, 7)] == [1, 1, 1, 2, 3]
    rate = one.learning_rate(9)
    assert rate.total_steps == 3
    statistics = one.compile_arguments(9)["statistics_optimizer"]
    assert statistics.get_config()["learning_rate"]["config"]["total_steps"] == 6
    # After 8 steps, the logged rate belongs to the third and last update.
    assert one.rate_after(rate, 8) == pytest.approx(float(rate(2)))
    np.testing.assert_allclose(float(statistics.learning_rate), float(rate(0)))


def test_rankmi_concatenates_all_levels(tiny, level_names):
    run = tiny("--loss=rankmi", "--k=3", "--alpha=0.3", "--sampling=uniform", "--seed=7")
    assert run.embedding.output_shape == (None, 10)
    assert not run.objective.outputs()
    assert (run.model.k, run.model.alpha, run.model.sampling, run.model.seed) == (
        *(3, 0.3, "uniform", 7),
    )
    assert np.isfinite(run.evaluate()["mutual_information"])


def test_flags_configure_the_statistics_network(tiny):
    words = ["--statistics_hidden=6", "--statistics_depth=1", "--nostatistics_residual"]
    network = tiny("--loss=rankmi", "--beta=0.7", *words).model.statistics_network
    config = network.get_config()
    asked = ("hidden", "depth", "residual", "zero_at")
    assert [config[name] for name in asked] == [6, 1, False, 0.7]


def test_the_rankmi_evaluator_follows_the_common_evaluators(objective):
    *common, last = objective("--loss=rankmi").evaluators()
    assert isinstance(last, PairDistances)
    assert [type(each) for each in common] == [
        type(each) for each in objective("--loss=snca").evaluators()
    ]
