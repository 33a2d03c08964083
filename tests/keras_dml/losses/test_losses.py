"""Tests of every loss: its loop oracle, Keras' conventions, and edge cases of a batch."""

import inspect

import keras
import numpy as np
import oracles
import pytest
import tiers
from backend import compiled, parts, value_and_gradient
from batches import batch, small_model
from loss_cases import CASES, DEFAULTS, NON_DEFAULT, each, is_one_of_few

from keras_dml import losses
from keras_dml.metrics import LossPart

pytestmark = pytest.mark.any_backend

PAIR_CASES = [case for case in CASES if case.pairs]
every_case, pair_cases = each(CASES), each(PAIR_CASES)
# The base class of all losses reduces values and checks labels.
case_of_base_class = each(CASES, few=is_one_of_few)


def make(case, **more):
    return losses.get(case.name, **case.arguments, **more)


def batch_of(*arguments, **more):
    """Return embeddings, or logits, that are also valid cosines for the losses on proxies."""
    ids, z = batch(*arguments, **more)
    return ids, z / np.abs(z).max()


def model_of(case, policy="float32"):
    layers = [small_model(policy)]
    if losses.LOSSES[case.name].kind == "proxies":
        layers.append(keras.layers.Activation("tanh"))
    return keras.Sequential(layers)


def check_against_oracle(case, loss, ids, z):
    weights = np.linspace(0, 2, len(ids))
    constants = {"frozen": z} if "frozen" in inspect.signature(case.oracle).parameters else {}

    def weighted(ids, z):
        return [weights * part for part in case.oracle(ids, z, **case.arguments, **constants)]

    value, gradient = value_and_gradient(loss, ids, z, sample_weight=weights)
    assert value == pytest.approx(oracles.mean_loss(weighted, ids, z), rel=1e-9, abs=1e-12)
    for ours, theirs in zip(parts(loss, ids, z), case.oracle(ids, z, **case.arguments)):
        np.testing.assert_allclose(ours, theirs, rtol=1e-8, atol=1e-12)
    if case.numeric or constants:
        expected = oracles.numeric_gradient(weighted, ids, z)
        np.testing.assert_allclose(gradient, expected, atol=1e-7 + 1e-6 * np.abs(expected).max())
    else:  # ICE, whose gradient is checked in test_properties.py
        assert np.isfinite(gradient).all()


@pytest.mark.parametrize("case", CASES, ids=str)
def test_value_parts_and_gradient_match_the_loops(case):
    check_against_oracle(case, make(case, dtype="float64"), *batch_of())


@pair_cases
def test_degenerate_batches_match_the_loops(case):
    """One class, classes of single images, a lone image, and one image."""
    _, z = batch_of(seed=2)
    loss = make(case, dtype="float64")
    for ids in ([0, 0, 0, 0, 0], [0, 1, 2, 3, 4], [7, 7, 7, 7, 3], [4]):
        check_against_oracle(case, loss, np.array(ids), 0.5 * z[: len(ids)])


@every_case
def test_float32_is_close(case):
    ids, z = batch_of(seed=3, sizes=(4, 2, 7, 1, 3), dimensions=16)
    value, gradient = value_and_gradient(make(case), ids, z, dtype="float32")
    expected = oracles.mean_loss(case.oracle, ids, z, **case.arguments)
    assert value == pytest.approx(expected, rel=5e-5, abs=1e-6)
    _, exact = value_and_gradient(make(case, dtype="float64"), ids, z)
    np.testing.assert_allclose(gradient, exact, atol=1e-3 * np.abs(exact).max() + 1e-6)


@case_of_base_class
def test_mean_over_anchors_sum_and_none(case):
    ids, z = batch_of()
    each = np.asarray(make(case, reduction=None)(ids, z))
    assert each.shape == (len(ids),)
    assert float(make(case, reduction="sum")(ids, z)) == pytest.approx(each.sum(), rel=1e-5)
    assert float(make(case)(ids, z)) == pytest.approx(each.mean(), rel=1e-5)


@case_of_base_class
@pytest.mark.parametrize("dtype", ["int64", pytest.param("float32", marks=pytest.mark.slow)])
def test_label_shapes_and_types(case, dtype):
    ids, z = batch_of()
    loss = make(case)
    expected = pytest.approx(float(loss(ids, z)), rel=1e-6)
    assert float(loss(ids.astype(dtype), z)) == expected
    assert float(loss(ids.astype(dtype)[:, None], z)) == expected


@pair_cases
def test_coincident_embeddings_and_a_zero_row_have_finite_gradients(case):
    loss = make(case)
    for place in (0.0, 1.7, 300.0):
        ids, z = batch_of()
        if place:
            z[:] = place
        z[2] = place
        value, gradient = value_and_gradient(loss, ids, z, "float32")
        assert np.isfinite(value), place
        assert np.isfinite(gradient).all(), place


@tiers.parametrize("case", NON_DEFAULT, tiers.few_elsewhere(NON_DEFAULT, is_one_of_few), ids=str)
def test_configuration_round_trip_with_non_default_arguments(case):
    given = {**case.arguments, "reduction": "sum", "name": "mine", "dtype": "float64"}
    loss = losses.get(case.name, **given)
    copy = keras.saving.deserialize_keras_object(keras.saving.serialize_keras_object(loss))
    assert copy.get_config() == loss.get_config()
    assert given.items() <= copy.get_config().items()
    ids, z = batch_of()
    assert float(copy(ids, z)) == float(loss(ids, z))


# A margin beyond a right angle takes more than eight epochs to fit.
FITTED = [case for case in NON_DEFAULT if case.arguments.get("margin") != 1.6]


@each(FITTED, {"contrastive"}, tiers.THOROUGH)
def test_fit_lowers_the_loss_and_the_compiled_model_is_saved(case, tmp_path):
    ids, x = batch_of(seed=5, sizes=(20, 10, 15, 19), dimensions=8)
    model, loss = model_of(case), make(case)
    both = [LossPart(loss, "tightness"), LossPart(loss, "contrastive")]
    model.compile(keras.optimizers.Adam(0.02), loss, metrics=both)
    history = model.fit(x, ids, batch_size=32, epochs=8, verbose=0).history
    assert history["loss"][-1] < history["loss"][0]
    total = history["tightness"][-1] + history["contrastive"][-1]
    assert total == pytest.approx(history["loss"][-1], rel=1e-3, abs=1e-5)

    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    assert loaded.loss.get_config() == loss.get_config()
    assert loaded.evaluate(x, ids, verbose=0) == pytest.approx(
        model.evaluate(x, ids, verbose=0), rel=1e-4, abs=1e-6
    )


@pytest.mark.slow
@each(FITTED, {"ce", "contrastive"}, pytest.mark.thorough)
def test_fit_under_mixed_precision(case):
    ids, x = batch_of(seed=5, sizes=(20, 10, 15, 19), dimensions=8)
    model = model_of(case, "mixed_bfloat16")
    model.compile(keras.optimizers.Adam(0.02), make(case))
    history = model.fit(x, ids, batch_size=32, epochs=8, verbose=0).history
    assert history["loss"][-1] < history["loss"][0]


@case_of_base_class
def test_half_precision_embeddings_are_compared_in_float32(case):
    ids, z = batch_of()
    z = z.astype("float16")
    loss = make(case, reduction=None)
    far = ids + 2**15 if case.pairs else ids  # float16 would merge these ids
    each = np.asarray(loss(far, keras.ops.convert_to_tensor(z)))
    assert each.dtype == np.float32
    np.testing.assert_allclose(each, np.asarray(loss(ids, z.astype("float32"))), rtol=1e-5)


@each(DEFAULTS, {"ce", "contrastive", "arcface"}, tiers.THOROUGH)
@pytest.mark.parametrize(
    ("ids", "shape", "message"),
    [
        ([0, 1], (2, 3, 4), r"y_pred must be.* but got shape \(2, 3, 4\)"),
        ([0, 1, 1], (2, 4), "3 class ids and 2 embeddings"),
    ],
)
def test_bad_shapes(case, ids, shape, message):
    with pytest.raises(ValueError, match=message):
        make(case)(np.array(ids), np.ones(shape))


@pytest.mark.slow
@pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="TensorFlow's graphs")
@each(CASES, {"contrastive", "triplet", "quadruplet", "fastap", "pce"}, pytest.mark.thorough)
def test_compiled_by_xla_for_any_batch_size(case):
    """Like `fit` for data with a smaller last batch."""
    import tensorflow as tf

    loss = make(case, dtype="float64")
    dimensions = batch_of()[1].shape[1]
    signature = [tf.TensorSpec([None], "int64"), tf.TensorSpec([None, dimensions], "float64")]

    @tf.function(input_signature=signature, jit_compile=True)
    def step(ids, z):
        with tf.GradientTape() as tape:
            tape.watch(z)
            value = loss(ids, z)
        return value, tape.gradient(value, z)

    for sizes in ((5, 3, 2), (4, 1), (2,)):
        ids, z = batch_of(sizes=sizes)
        value, gradient = step(tf.constant(ids), tf.constant(z))
        expected, expected_gradient = value_and_gradient(loss, ids, z)
        assert float(value) == pytest.approx(expected, rel=1e-9, abs=1e-12)
        scale = max(1.0, np.abs(expected_gradient).max())
        np.testing.assert_allclose(gradient, expected_gradient, atol=1e-9 * scale)


@each(DEFAULTS, {"ce", "contrastive"}, tiers.THOROUGH)
def test_embeddings_that_are_not_finite(case):
    ids, z = batch_of()
    z[3, 1] = np.inf
    z[4, 0] = np.nan
    loss = make(case)
    with pytest.raises(ValueError, match="y_pred must be finite.* 2 of 11 rows, .*row 3"):
        loss(ids, z)
    if keras.backend.backend() != "torch":  # PyTorch has no graphs
        assert np.isnan(float(compiled(loss)(ids, z.astype("float32"))))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: losses.InstanceCrossEntropyLoss(reweight=False, anchor_gradient=True),
         "anchor_gradient must be False without reweight"),
        (lambda: losses.MarginLoss(beta=1.0, boundaries=1), "beta must be .* boundaries"),
        (lambda: losses.RankMILoss(keras.layers.Dense(3)), r"values of shape \(2, 3\)"),
    ],
)  # fmt: skip
def test_arguments_that_exclude_each_other(make, message):
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.parametrize(
    ("name", "arguments", "length"),
    [
        ("multi_similarity", {"alpha": 500.0, "beta": 5000.0}, 1.0),
        ("snca", {"temperature": 1e-4}, 1e37),
        ("n_pairs", {}, 100.0),
        ("lifted_structure", {"margin": 200.0, "normalize": False}, 1e3),
    ],
)
def test_large_numbers_do_not_overflow(name, arguments, length):
    ids, z = batch()
    loss = losses.get(name, **arguments)
    value, gradient = value_and_gradient(loss, ids, length * z, "float32")
    assert np.isfinite(value)
    assert np.isfinite(gradient).all()


def test_a_loss_by_configuration_or_as_a_callable():
    loss = losses.get({"class_name": "triplet", "config": {"margin": 0.3}})
    assert (type(loss), loss.margin) == (losses.TripletLoss, 0.3)
    again = losses.get(keras.losses.serialize(loss))
    assert (type(again), again.get_config()) == (losses.TripletLoss, loss.get_config())
    assert losses.get(loss) is loss and losses.get(abs) is abs and losses.get(None) is None
    with pytest.raises(ValueError, match="loss must be one of .*contrastive.* but got 'hinge'"):
        losses.get("hinge")
    with pytest.raises(TypeError, match="loss must be a name in .* but got 3"):
        losses.get(3)
    with pytest.raises(TypeError, match="loss must be a name to have arguments.*margin"):
        losses.get(loss, margin=0.3)


def test_the_parts_metric_refuses_losses_without_parts():
    with pytest.raises(TypeError, match=r"loss must be a keras_dml\.losses\.EmbeddingLoss"):
        LossPart("mse", "tightness")
    with pytest.raises(ValueError, match="part must be"):
        LossPart(losses.ContrastiveLoss(), "spread")
