"""Our numbers against those of pytorch-metric-learning 2.9, read from peers/goldens.npz."""

import numpy as np
import pytest
from backend import value_and_gradient
from peers.goldens import FILE, LEARNING_BATCHES, LEARNING_CASES

from keras_dml import losses
from keras_dml.losses.base import EmbeddingLoss
from keras_dml.negatives import distance_weighted
from keras_dml.pairs import Pairs, normalize, safe_sqrt

pytestmark = pytest.mark.any_backend

GOLDENS = np.load(FILE)
PEER = "pytorch-metric-learning"


class ContrastiveTightness(EmbeddingLoss):
    """The positive half of the contrastive loss, which is what the peer has too."""

    def compute_loss(self, class_ids, embeddings):
        """T of each anchor."""
        return losses.ContrastiveLoss(dtype=self.dtype).compute_parts(class_ids, embeddings)[0]


def ours(case):
    arguments = {**LEARNING_CASES[case], "dtype": "float64"}
    if case == "contrastive tightness":
        return ContrastiveTightness(**arguments)
    if case == "ice":
        return losses.get("ice", reweight=False, **arguments)
    if case == "triplet":
        return losses.get("triplet", average="triplets", **arguments)
    return losses.get(case.split(",")[0], **arguments)


@pytest.mark.parametrize("batch", LEARNING_BATCHES)
@pytest.mark.parametrize("case", [case for case in LEARNING_CASES if case != "distance weights"])
def test_the_peers_value_and_gradient(case, batch):
    ids, z = GOLDENS[f"inputs/{batch}/ids"], GOLDENS[f"inputs/{batch}/z"]
    value, gradient = value_and_gradient(ours(case), ids, z)
    assert value == pytest.approx(float(GOLDENS[f"{PEER}/{batch}/{case}/value"]), rel=1e-5)
    theirs = GOLDENS[f"{PEER}/{batch}/{case}/gradient"]
    np.testing.assert_allclose(gradient, theirs, atol=2e-5 * np.abs(theirs).max())


@pytest.mark.parametrize("batch", LEARNING_BATCHES)
def test_the_peers_distance_weights(batch):
    ids, z = GOLDENS[f"inputs/{batch}/ids"], GOLDENS[f"inputs/{batch}/z"]
    pairs = Pairs.of_batch(ids, normalize(z))
    arguments = LEARNING_CASES["distance weights"]
    distances = safe_sqrt(pairs.squared_distances())
    weights = distance_weighted(distances, pairs.negative, z.shape[1], **arguments)
    theirs = GOLDENS[f"{PEER}/{batch}/distance weights/value"]
    np.testing.assert_allclose(np.asarray(weights), theirs, rtol=1e-3, atol=1e-5)


def test_the_file_is_small():
    assert FILE.stat().st_size < 500_000
