"""The figures of a RankMI report."""

from types import SimpleNamespace

import numpy as np

from experiments.evaluation.evaluators import Finished
from experiments.pages.figures import svgs
from experiments.training.objectives.pair_distances import PairDistances
from keras_dml.metrics import distance_histograms
from keras_dml.models import StatisticsNetwork


def test_distances_and_costs():
    rng = np.random.default_rng(0)
    labels = np.repeat(np.arange(6), 5)
    z = (rng.normal(size=(30, 4)) + 4 * rng.normal(size=(6, 4))[labels]).astype("float32")
    run = SimpleNamespace(data=SimpleNamespace(test=SimpleNamespace(labels=labels)))
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
