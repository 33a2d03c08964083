"""The RankMI figures of a report show the recorded distances."""

import json
from types import SimpleNamespace

import numpy as np
import pytest

from experiments.evaluation.evaluators import Finished, Start
from experiments.pages.figures import svgs
from experiments.training.objectives.pair_distances import PairDistances
from experiments.training.run_files import RANKMI
from experiments.training.run_folder import RunFolder
from keras_dml.metrics import DistanceHistograms, distance_histograms
from keras_dml.models import StatisticsNetwork


class Table:
    """A table whose images equal their embeddings."""

    def __init__(self, z, labels):
        self.z, self.labels = z, labels

    def select(self, rows):
        return Table(self.z[rows], self.labels[rows])


@pytest.mark.slow
def test_distances_before_and_after_training_and_costs(tmp_path):
    rng = np.random.default_rng(0)
    labels = np.repeat(np.arange(6), 5)
    before = Table(rng.normal(size=(30, 4)).astype("float32"), labels)
    after = before.z + 4 * rng.normal(size=(6, 4))[labels]
    folder = RunFolder(tmp_path / "run", "--seed=0\n")
    folder.open()
    run = SimpleNamespace(folder=folder, data=SimpleNamespace(test=before))
    evaluator = PairDistances()
    evaluator.before(run, Start(0, lambda table, text: table.z))
    # A resumed run keeps the distances from its start, with and without a checkpoint.
    evaluator.before(run, Start(0, lambda table, text: 0 * table.z))
    evaluator.before(run, Start(3, None))
    network = StatisticsNetwork(hidden=4, seed=0)
    model = SimpleNamespace(statistics_network=network, beta=1.1, alpha=0.25)
    history = [{"epoch": n, "train/mutual_information": 0.2} for n in (1, 2)]
    findings = evaluator.finish(run, Finished(model, {"test": after}, history, history[0]))

    seen = json.loads(folder.file(RANKMI).read_text())
    start = DistanceHistograms(*map(np.array, seen["before"]))
    expected = distance_histograms(before.z, labels, bins=80)
    np.testing.assert_array_equal(start.positive, expected.positive)
    assert sum(map(sum, seen["after"])) == 30 * 29 // 2
    assert seen["values"][100] == pytest.approx(float(network(np.array([[1.0]]))[0, 0]), abs=1e-6)

    pictures = svgs(findings.figures)
    summary = findings.summary
    assert len(pictures) == 3
    assert all(text.startswith("<svg") for text in pictures.values())
    assert "β, ± α 1.1" in pictures["Cost of a pair"]
    assert ("β", "1.100") in summary
    divergence = 2 * distance_histograms(after, labels, bins=80).divergence()
    assert f"{divergence:.3f} nats" in summary[0][1]
