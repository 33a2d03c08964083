"""Properties of the pairwise cross-entropy, its simplified form, and the center loss."""

import numpy as np
import oracles
import pytest
from backend import value_and_gradient
from batches import batch

from keras_dml import losses

pytestmark = pytest.mark.any_backend


GROUPS = np.array(
    [
        [1, 0, 0, 1, 0],  # in two groups
        [0, 1, 0, 0, 0],
        [1, 1, 0, 1, 0],  # in three groups
        [0, 0, 0, 0, 0],  # in no group
        [0, 0, 0, 1, 0],
        [1, 0, 0, 0, 0],
    ]  # the batch contains no image of the third and fifth group
)


def test_simplified_is_cross_entropy_with_class_sums_as_weights():
    ids, z = batch(sizes=(5, 1, 3, 2))
    weights = np.array([z[ids == k].sum(axis=0) for k in range(4)]) / len(z)
    expected = losses.CrossEntropyLoss(label_smoothing=0.0, dtype="float64")(ids, z @ weights.T)
    value = float(losses.SimplifiedPairwiseCrossEntropyLoss(dtype="float64")(ids, z))
    assert value == pytest.approx(float(expected), rel=1e-12)


@pytest.mark.parametrize("dtype", ["int32", "float32", "bool"])
def test_multi_hot_groups_match_the_loops(dtype):
    _, z = batch(dimensions=4)
    z = z[: len(GROUPS)]
    loss = losses.SimplifiedPairwiseCrossEntropyLoss(dtype="float64")
    expected = oracles.simplified_pairwise_cross_entropy(GROUPS, z)
    for ours, theirs in zip(loss.parts(GROUPS.astype(dtype), z), expected):
        np.testing.assert_allclose(np.asarray(ours), theirs, rtol=1e-10)
    _, gradient = value_and_gradient(loss, GROUPS.astype(dtype), z)
    numeric = oracles.numeric_gradient(oracles.simplified_pairwise_cross_entropy, GROUPS, z)
    np.testing.assert_allclose(gradient, numeric, atol=1e-8)
    assert (gradient[3] == 0.0).all()


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("arguments", [{}, {"lam": 0.3}])
def test_the_pairwise_gradient_treats_assignments_and_lambda_as_constants(seed, arguments):
    ids, z = batch(seed, sizes=(9, 1, 7, 6), dimensions=3)
    z *= 4  # for assignments that depend on z
    p = oracles.simplified_assignments(ids, z)
    lam = arguments.get("lam") or oracles.smallest_eigenvalue(p, z)
    assert lam > 1e-3  # Eq. 25 without the floor
    loss = losses.PairwiseCrossEntropyLoss(**arguments, dtype="float64")
    _, gradient = value_and_gradient(loss, ids, z)
    frozen = {"p": p, "lam": lam}
    expected = oracles.numeric_gradient(oracles.pairwise_cross_entropy, ids, z, **frozen)
    np.testing.assert_allclose(gradient, expected, atol=1e-6 * np.abs(expected).max())
    # Through p and λ the value has another gradient, so the comparison above can fail.
    moving = oracles.numeric_gradient(oracles.pairwise_cross_entropy, ids, z, **arguments)
    assert np.abs(moving - expected).max() > 1e-2 * np.abs(expected).max()


@pytest.mark.parametrize(
    ("name", "shape", "message"),
    [
        ("spce", (4, 2, 2), "y_true must be class ids.*or multi-hot groups"),
        ("spce", (4, 0), "y_true must be class ids.*or multi-hot groups"),
        ("spce", (5, 3), "one row for each image"),
        ("pce", (4, 3), r"y_true must be class ids of shape \[n\]"),
        ("center", (4, 3), r"y_true must be class ids of shape \[n\]"),
    ],
)
def test_groups_that_are_refused(name, shape, message):
    with pytest.raises(ValueError, match=message):
        losses.get(name)(np.ones(shape), np.ones((4, 3)))
