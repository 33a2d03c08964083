"""The objective of each loss, and a new loss that needs no other code."""

import numpy as np
import pytest
import tensorflow as tf
from keras import ops

from experiments.evaluation.evaluators import ClassifierAccuracy, ClassMeanAccuracy
from experiments.options import UsageError, loss_flags
from experiments.training.objectives import KINDS
from experiments.training.objectives.alternating import Alternating
from experiments.training.objectives.classifier import BesideClassifier, Classifier
from experiments.training.objectives.pairs import OverPairs
from experiments.training.objectives.proxies import OverProxies
from keras_dml import losses
from keras_dml._pairwise.arithmetic import masked_sum

OTHERS = {"ce": Classifier, "center": BesideClassifier, "rankmi": Alternating}
OVER_PROXIES = [name for name, loss in losses.LOSSES.items() if issubclass(loss, losses.ProxyLoss)]
OTHERS |= dict.fromkeys(OVER_PROXIES, OverProxies)


@pytest.mark.parametrize("name", losses.LOSSES)
def test_every_loss_has_an_objective(name, objective):
    one = objective(f"--loss={name}")
    assert type(one) is OTHERS.get(name, OverPairs)
    kinds = {type(each) for each in one.evaluators()}
    assert (ClassifierAccuracy in kinds) == (name in ("ce", "center", *OVER_PROXIES))
    assert (ClassMeanAccuracy in kinds) != (ClassifierAccuracy in kinds)


def test_every_objective_has_a_loss():
    assert {loss.kind for loss in losses.LOSSES.values()} == set(KINDS)


@pytest.mark.slow
def test_a_new_pair_loss_trains_without_other_changes(monkeypatch, tiny, level_names):
    class RightAngles(losses.PairLoss):
        """A loss with negatives at right angles or beyond, and positives close to each other."""

        def compute_pair_parts(self, pairs):
            similarities = pairs.similarities()
            tightness = masked_sum(1.0 - similarities, pairs.positive)
            return tightness, masked_sum(ops.relu(similarities), pairs.negative)

    monkeypatch.setitem(losses.LOSSES, "right_angles", RightAngles)
    # The command line reads the source of losses, which a test does not have.
    monkeypatch.setattr(loss_flags, "checked", lambda loss, given: dict(given))
    run = tiny("--loss=right_angles")
    before = run.embeddings()
    batches = tf.data.Dataset.from_tensors((run.images, run.class_ids)).repeat(3)
    logs = run.model.fit(run.objective.targets(batches), verbose=0).history
    assert {f"{level_names[0]}_tightness", f"{level_names[1]}_contrastive"} < set(logs)
    assert np.isfinite(logs["loss"]).all()
    assert (run.embeddings() != before).any()


@pytest.mark.parametrize(
    ("loss", "flag"),
    [
        ("spce", "classifier"),
        ("ice", "objective=alternating"),
        ("arcface", "mining=hard"),
        ("arcface", "relation=hierarchy"),
        ("snca", "dropout=0.5"),
        ("rankmi", "matryoshka=4,8"),
        ("rankmi", "chunk_size=3"),
        ("n_pairs", "memory_size=500"),
        ("arcface", "memory_size=500"),
        ("snca", "proxies_centers=2"),
        ("snca", "proxies_factor=2"),
    ],
)
def test_a_flag_of_other_losses_is_refused(loss, flag, objective):
    name = flag.partition("=")[0]
    with pytest.raises(UsageError, match=f"loss must be one of .* with {name}=.*{loss}"):
        objective(f"--loss={loss}", f"--{flag}")
