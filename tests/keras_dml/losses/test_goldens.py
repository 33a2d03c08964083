"""Our losses against stored results of pytorch-metric-learning 2.9 (peers/goldens.npz)."""

import numpy as np
import pytest
import tiers
from backend import value_and_gradient
from keras import ops
from peers.goldens import (
    BOUNDARIES,
    FILE,
    LEARNING_BATCHES,
    LEARNING_CASES,
    PROXY_CASES,
    SMOOTH_AP,
)

from keras_dml import layers, losses
from keras_dml._pairwise.negatives import distance_weighted
from keras_dml._pairwise.pairs import Pairs, normalize, safe_sqrt

pytestmark = pytest.mark.any_backend

GOLDENS = np.load(FILE)
PEER = "pytorch-metric-learning"
LOSSES = [case for case in LEARNING_CASES if case != "distance weights"]


def ours(case):
    arguments = {**(LEARNING_CASES | {"smooth_ap": SMOOTH_AP})[case], "dtype": "float64"}
    if case == "contrastive tightness":
        # The positive half of the contrastive loss, which the peer has, too.
        loss = losses.ContrastiveLoss(**arguments)
        return lambda ids, z: ops.mean(loss.parts(ids, z)[0])
    if case == "ice":
        return losses.get("ice", reweight=False, **arguments)
    if case == "triplet":
        return losses.get("triplet", average="triplets", **arguments)
    return losses.get(case.split(",")[0], **arguments)


def check(batch, case, value, gradient, of_weights=None):
    """Compare with the peer's value and gradients."""
    assert value == pytest.approx(float(GOLDENS[f"{PEER}/{batch}/{case}/value"]), rel=1e-5)
    for name, ours in (("gradient", gradient), ("of weights", of_weights)):
        if ours is not None:
            theirs = GOLDENS[f"{PEER}/{batch}/{case}/{name}"]
            np.testing.assert_allclose(ours, theirs, atol=2e-5 * np.abs(theirs).max())


@tiers.thorough_elsewhere
@pytest.mark.parametrize(
    ("case", "batch"),
    [
        *((case, batch) for case in LOSSES for batch in LEARNING_BATCHES),
        ("smooth_ap", "square"),
    ],
)
def test_value_and_gradient_match_the_peer(case, batch):
    ids, z = GOLDENS[f"inputs/{batch}/ids"], GOLDENS[f"inputs/{batch}/z"]
    check(batch, case, *value_and_gradient(ours(case), ids, z))


@tiers.thorough_elsewhere
@tiers.parametrize("batch", LEARNING_BATCHES, ["small"])
@pytest.mark.parametrize("case", PROXY_CASES)
def test_value_and_gradients_at_embeddings_and_proxies_match_the_peer(case, batch):
    ids, z = GOLDENS[f"inputs/{batch}/ids"], GOLDENS[f"inputs/{batch}/z"]
    arguments, centers, pooling = PROXY_CASES[case]
    proxies = GOLDENS[f"inputs/{batch}/proxies/{centers}"]
    head = layers.ProxyHead(
        len(proxies) // centers, centers=centers, pooling=pooling, dtype="float64"
    )
    head.build(z.shape)
    loss = losses.get(case.split(",")[0], dtype="float64", **arguments)

    def loss_of_stacked(class_ids, stacked):
        """Return the loss of the embeddings stacked on the proxies, to get both gradients."""
        head.proxies = stacked[len(z) :]
        return loss(class_ids, head(stacked[: len(z)]))

    del head.proxies  # a plain tensor replaces the variable
    value, gradient = value_and_gradient(loss_of_stacked, ids, np.concatenate([z, proxies]))
    check(batch, case, value, gradient[: len(z)], gradient[len(z) :])


def test_learned_boundaries_match_the_peer():
    batch = "small"  # for the large batch, the peer sums 200,000 numbers in float32
    ids, z = GOLDENS[f"inputs/{batch}/ids"], GOLDENS[f"inputs/{batch}/z"]
    boundaries = GOLDENS[f"inputs/{batch}/boundaries"]
    rows = np.concatenate([z, np.tile(boundaries, (len(z), 1))], axis=1)
    loss = losses.MarginLoss(**BOUNDARIES, boundaries=len(boundaries), dtype="float64")
    value, gradient = value_and_gradient(loss, ids, rows)
    at_z, at_boundaries = gradient[:, : z.shape[1]], gradient[:, z.shape[1] :]
    check(batch, "boundaries", value, at_z, at_boundaries.sum(axis=0))


@pytest.mark.parametrize("batch", LEARNING_BATCHES)
def test_distance_weights_match_the_peer(batch):
    ids, z = GOLDENS[f"inputs/{batch}/ids"], GOLDENS[f"inputs/{batch}/z"]
    pairs = Pairs.of_batch(ops.convert_to_tensor(ids), normalize(ops.convert_to_tensor(z)))
    arguments = LEARNING_CASES["distance weights"]
    distances = safe_sqrt(pairs.squared_distances())
    weights = distance_weighted(distances, pairs.negative, z.shape[1], **arguments)
    theirs = GOLDENS[f"{PEER}/{batch}/distance weights/value"]
    np.testing.assert_allclose(np.asarray(weights), theirs, rtol=1e-3, atol=1e-5)
