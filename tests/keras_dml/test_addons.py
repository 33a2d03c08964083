"""Our replacements of tensorflow-addons 0.23 against stored results (peers/goldens.npz)."""

import keras
import numpy as np
import pytest
import tiers
from backend import value_and_gradient
from keras import ops
from peers.goldens import (
    ADDONS_BATCHES,
    ADDONS_CASES,
    BATCH,
    FILE,
    RATE,
    STEPS,
    distance_function,
)

from keras_dml import addons

pytestmark = pytest.mark.any_backend

GOLDENS = np.load(FILE)
PEER = "tensorflow-addons"
CLASSES = {
    "triplet_semihard_loss": addons.TripletSemiHardLoss,
    "triplet_hard_loss": addons.TripletHardLoss,
    "lifted_struct_loss": addons.LiftedStructLoss,
}


def check(name, function, labels, predictions):
    value, gradient = value_and_gradient(function, labels, predictions, "float32")
    theirs = GOLDENS[f"{PEER}/{name}/gradient"]
    if np.isnan(GOLDENS[f"{PEER}/{name}/value"]):
        assert value == 0.0
        assert (gradient == 0.0).all()
        return
    # Sums over positives and negatives cancel, in an order that depends on the backend.
    assert value == pytest.approx(float(GOLDENS[f"{PEER}/{name}/value"]), rel=2e-6, abs=2e-6)
    if name.startswith("ties/") and not name.startswith(("ties/hard", "ties/soft")):
        # No derivative exists, and the original's masks make it depend on the whole row.
        assert np.isfinite(gradient).all()
        return
    np.testing.assert_allclose(gradient, theirs, atol=2e-5 * np.abs(theirs).max() + 1e-6)


@tiers.parametrize(
    "batch",
    ADDONS_BATCHES,
    tiers.few_elsewhere(["small", "no positives"], lambda batch: batch == "small"),
)
@pytest.mark.parametrize("case", ADDONS_CASES)
def test_value_and_gradient_of_the_original(case, batch):
    function, arguments = ADDONS_CASES[case]
    if "distance_metric" in arguments:
        metric = distance_function(
            arguments["distance_metric"],
            lambda a, b: ops.matmul(a, ops.transpose(b)),
            lambda a: ops.cumsum(a, axis=1),
        )
        arguments = {**arguments, "distance_metric": metric}
    ids, z = GOLDENS[f"inputs/{batch}/ids"], GOLDENS[f"inputs/{batch}/z"]
    check(f"{batch}/{case}", CLASSES[function](**arguments), ids, z)


@pytest.mark.parametrize(
    ("name", "loss", "labels"),
    [
        ("npairs", addons.NpairsLoss(), "small/ids"),
        ("multilabel", addons.NpairsMultilabelLoss(), "labels"),
    ],
)
def test_npairs(name, loss, labels):
    check(name, loss, GOLDENS[f"inputs/{labels}"], GOLDENS["inputs/similarities"])


@pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="TensorFlow's own tensors")
def test_npairs_of_sparse_labels():
    import tensorflow as tf

    labels, similarities = GOLDENS["inputs/labels"], GOLDENS["inputs/similarities"]
    loss = addons.NpairsMultilabelLoss()
    assert loss(tf.sparse.from_dense(labels), similarities) == loss(labels, similarities)


@pytest.mark.parametrize(
    ("name", "margin"), [("contrastive", 1.0), ("contrastive, margin 0.4", 0.4)]
)
def test_contrastive(name, margin):
    together, distances = GOLDENS["inputs/together"], GOLDENS["inputs/pair distances"]
    each = addons.contrastive_loss(together, distances, margin)
    np.testing.assert_allclose(np.asarray(each), GOLDENS[f"{PEER}/{name}/value"], rtol=1e-6)
    loss = addons.ContrastiveLoss(margin, reduction="sum")
    _, gradient = value_and_gradient(loss, together, distances, "float32")
    np.testing.assert_allclose(gradient, GOLDENS[f"{PEER}/{name}/gradient"], rtol=1e-5, atol=1e-6)


@pytest.mark.slow
def test_a_users_script_reaches_the_same_losses():
    layers = [keras.layers.Dense(16, "relu"), keras.layers.Dense(8)]
    model = keras.Sequential([keras.Input((10,)), *layers, keras.layers.UnitNormalization()])
    for number, layer in enumerate(layers, 1):
        kernel = GOLDENS[f"inputs/script/kernel {number}"]
        layer.set_weights([kernel, np.zeros(kernel.shape[1])])
    model.compile(keras.optimizers.SGD(RATE, momentum=0.9), addons.TripletSemiHardLoss())
    losses = []
    for step in range(STEPS):
        rows = slice(step * BATCH, (step + 1) * BATCH)
        x, ids = GOLDENS["inputs/script/x"][rows], GOLDENS["inputs/script/ids"][rows]
        losses.append(float(model.train_on_batch(x, ids)))
        model.reset_metrics()
    theirs = GOLDENS[f"{PEER}/script/losses"]
    np.testing.assert_allclose(losses, theirs, rtol=2e-5)
    assert theirs[-5:].mean() < 0.9 * theirs[:5].mean()


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_precision_is_returned_in_the_same_dtype(dtype):
    ids, z = GOLDENS["inputs/small/ids"], GOLDENS["inputs/small/z"]
    half = ops.cast(z, dtype)
    for name, function in CLASSES.items():
        value = getattr(addons, name)(ids, half)
        assert keras.backend.standardize_dtype(value.dtype) == dtype
        assert float(value) == pytest.approx(float(function()(ids, z)), rel=0.02)


@pytest.mark.parametrize("name", CLASSES)
def test_class_ids_as_a_column(name):
    ids, z, function = GOLDENS["inputs/small/ids"], GOLDENS["inputs/small/z"], getattr(addons, name)
    assert float(function(ids[:, None], z)) == pytest.approx(float(function(ids, z)), rel=1e-6)


def test_a_row_without_labels():
    labels = np.array([[0, 0], [1, 0], [1, 1]])
    value, gradient = value_and_gradient(
        addons.npairs_multilabel_loss, labels, np.zeros((3, 3)), "float32"
    )
    assert value == pytest.approx(2 / 3 * np.log(3), rel=1e-6)
    assert (gradient[0] == 0).all()


def test_soft_does_not_overflow():
    z = np.array([[0.0], [500.0], [1.0]], "float32")
    value, gradient = value_and_gradient(
        addons.TripletHardLoss(soft=True), np.array([0, 0, 1]), z, "float32"
    )
    assert value == pytest.approx((499 + 1 + 0) / 3, rel=1e-2)
    assert np.isfinite(gradient).all()


def test_contrastive_labels_as_a_column_are_not_broadcast():
    together, distances = GOLDENS["inputs/together"], GOLDENS["inputs/pair distances"]
    expected = np.asarray(addons.contrastive_loss(together, distances))
    for labels, column in [(together[:, None], distances), (together, distances[:, None])]:
        each = np.asarray(addons.contrastive_loss(labels, column))
        assert each.shape == column.shape
        np.testing.assert_array_equal(each.ravel(), expected)


@pytest.mark.slow
@pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="JAX knows all shapes")
@tiers.parametrize("shape", [(None, None), (None,), (None, 1)], [(None, None)], tiers.THOROUGH)
@pytest.mark.parametrize("name", [*CLASSES, "npairs_loss"])
def test_partly_known_shapes(name, shape):
    import tensorflow as tf

    function, ids = getattr(addons, name), np.array([0, 0, 1, 1, 2, 2])
    z = np.random.default_rng(1).normal(size=(6, 6)).astype("float32")
    specs = [tf.TensorSpec(shape, "int64"), tf.TensorSpec((None, None), "float32")]
    traced = tf.function(lambda ids, z: function(ids, z), input_signature=specs)
    given = ids if len(shape) == 1 else ids[:, None]
    assert float(traced(given, z)) == pytest.approx(float(function(ids, z)), rel=1e-6)
    if shape == (None, None):
        with pytest.raises(tf.errors.InvalidArgumentError):
            traced(np.stack([ids, ids], axis=1), z)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: addons.TripletHardLoss(distance_metric="l2"), "distance_metric must be .*'l2'"),
        (lambda: addons.triplet_hard_loss([0, 0, 1], np.eye(2)), "3 class ids and 2 embeddings"),
        (lambda: addons.triplet_hard_loss(np.zeros((4, 2)), np.eye(8)), "y_true must be class ids"),
        (lambda: addons.lifted_struct_loss([0, 0], np.ones((2, 2, 2))), "y_pred must be embedd"),
        (lambda: addons.npairs_loss(np.zeros((4, 2)), np.eye(4)), r"y_true must be .*\(4, 2\)"),
        (lambda: addons.npairs_loss(np.zeros(3), np.eye(4)), r"y_pred must be .*\(3,\)"),
        (lambda: addons.npairs_multilabel_loss(np.zeros(4), np.eye(4)), "y_true must be labels"),
        (lambda: addons.npairs_multilabel_loss(np.eye(3), np.eye(4)), "y_pred must be similarit"),
        (lambda: addons.contrastive_loss(np.zeros(3), np.ones(4)), "3 class ids and 4 embeddings"),
    ],
)
def test_invalid_arguments_are_refused(call, message):
    with pytest.raises((ValueError, TypeError), match=message):
        call()


@pytest.mark.parametrize(
    "loss", [addons.TripletSemiHardLoss, addons.TripletHardLoss, addons.LiftedStructLoss]
)
def test_an_unknown_argument_is_refused(loss):
    with pytest.raises(TypeError, match=rf"{loss.__name__}.*'margins'"):
        loss(margins=3)
    assert loss(reduction="sum").reduction == loss().reduction
