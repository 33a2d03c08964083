"""RankMI: alternating updates, and the figures of its report."""

from types import SimpleNamespace

import numpy as np
import pytest

from experiments.evaluation.evaluators import Finished, Start
from experiments.pages.figures import svgs
from experiments.training.objectives.alternating import PairDistances
from experiments.training.run_folder import RunFolder
from keras_dml.metrics import distance_histograms
from keras_dml.models import StatisticsNetwork
from pipelines import ImageTable


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


@pytest.mark.slow
def test_flags_configure_rankmi_over_all_levels(tiny):
    words = ["--k=3", "--alpha=0.3", "--beta=0.7", "--sampling=uniform", "--seed=7"]
    words += ["--statistics_hidden=6", "--statistics_depth=1", "--nostatistics_residual"]
    run = tiny("--loss=rankmi", *words)
    assert run.embedding.output_shape == (None, 10)
    assert not run.objective.outputs()
    assert isinstance(run.objective.evaluators()[-1], PairDistances)
    model, config = run.model, run.model.statistics_network.get_config()
    assert (model.k, model.alpha, model.sampling, model.seed) == (3, 0.3, "uniform", 7)
    asked = ("hidden", "depth", "residual", "zero_at")
    assert [config[name] for name in asked] == [6, 1, False, 0.7]
    assert np.isfinite(run.evaluate()["mutual_information"])


def test_distances_before_and_after_training_and_costs(tmp_path):
    rng = np.random.default_rng(0)
    labels = np.repeat(np.arange(6), 5)
    # The images equal their embeddings.
    before = ImageTable.from_arrays(rng.normal(size=(30, 4)).astype("float32"), labels)
    z = before.arrays + 4 * rng.normal(size=(6, 4))[labels]
    folder = RunFolder(tmp_path / "run", "--seed=0\n").open()
    run = SimpleNamespace(folder=folder, data=SimpleNamespace(test=before))
    PairDistances().before(run, Start(0, lambda table, text: table.arrays))
    PairDistances().before(run, Start(3, None))  # a resumed run keeps the distances of its start
    network = StatisticsNetwork(hidden=4, seed=0)
    model = SimpleNamespace(statistics_network=network, beta=1.1, alpha=0.25)
    history = [{"epoch": n, "train/mutual_information": 0.2} for n in (1, 2)]
    findings = PairDistances().finish(run, Finished(model, {"test": z}, history, history[0]))
    pictures = svgs(findings.figures)
    assert len(pictures) == 3 and all(text.startswith("<svg") for text in pictures.values())
    cost = dict(findings.figures["Cost of a pair"].lines["negative pair"])
    value = float(network(np.array([[1.0]]))[0, 0])
    assert abs(cost[1.0] - (np.logaddexp(0, value) - np.log(2))) < 1e-6
    assert "β, ± α 1.1" in pictures["Cost of a pair"] and ("β", "1.100") in findings.summary
    divergence = 2 * distance_histograms(z, labels, bins=80).divergence()
    assert f"{divergence:.3f} nats" in findings.summary[0][1]
    shown = findings.figures["Distances of unseen pairs"].panels
    expected = distance_histograms(before.arrays, labels, bins=80)
    first, last = shown.values()
    np.testing.assert_array_equal(first, (expected.positive, expected.negative))
    assert np.sum(last) == 30 * 29 // 2
    assert findings.summary[1] == ("… before training", f"{2 * expected.divergence():.3f} nats")
