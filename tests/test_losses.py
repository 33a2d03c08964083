"""Each loss against its loop oracle, and at the edges of what a batch can be."""

import keras
import numpy as np
import oracles
import pytest
import tensorflow as tf

from keras_dml import losses
from keras_dml.metrics import LossPart

# (loss name, oracle, arguments): defaults and one set of non-defaults each.
CASES = [
    ("ce", oracles.cross_entropy, {}),
    ("ce", oracles.cross_entropy, {"epsilon": 0.3}),
    ("contrastive", oracles.contrastive, {}),
    (
        "contrastive",
        oracles.contrastive,
        {"margin": 1.3, "normalize": True, "pair_reduction": "mean"},
    ),
    ("multi_similarity", oracles.multi_similarity, {}),
    ("multi_similarity", oracles.multi_similarity, {"epsilon": 0.1, "base": 0.3, "alpha": 3.0}),
    ("multi_similarity", oracles.multi_similarity, {"beta": 10.0}),
]
NAMES = ["ce", "contrastive", "multi_similarity"]
NON_DEFAULT = {name: arguments for name, _, arguments in CASES if arguments}


def batch(seed=0, sizes=(5, 1, 3, 2), dimensions=6):
    """Unequal classes (one of a single image), shuffled; features of very unequal lengths."""
    rng = np.random.default_rng(seed)
    ids = rng.permutation(np.repeat(np.arange(len(sizes)), sizes))
    z = rng.normal(size=(len(ids), dimensions)) * rng.uniform(0.2, 1.2, size=(len(ids), 1))
    return ids, z


def value_and_gradient(loss, ids, z, dtype="float64", **call):
    variable = tf.Variable(z, dtype=dtype)
    with tf.GradientTape() as tape:
        value = loss(ids, variable, **call)
    return float(value), tape.gradient(value, variable).numpy()


@pytest.mark.parametrize(("name", "oracle", "arguments"), CASES)
def test_value_parts_and_gradient_match_the_loops(name, oracle, arguments):
    ids, z = batch()
    loss = losses.get(name, dtype="float64", **arguments)
    value, gradient = value_and_gradient(loss, ids, z)
    assert value == pytest.approx(oracles.mean_loss(oracle, ids, z, **arguments), rel=1e-9)
    expected = oracles.numeric_gradient(oracle, ids, z, **arguments)
    np.testing.assert_allclose(gradient, expected, atol=1e-7 + 1e-6 * np.abs(expected).max())
    for ours, theirs in zip(loss.parts(ids, z), oracle(ids, z, **arguments)):
        np.testing.assert_allclose(ours, theirs, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(("name", "oracle", "arguments"), CASES)
def test_float32_is_close(name, oracle, arguments):
    ids, z = batch(seed=3, sizes=(4, 2, 7, 1, 3), dimensions=16)
    value, _ = value_and_gradient(losses.get(name, **arguments), ids, z, dtype="float32")
    assert value == pytest.approx(oracles.mean_loss(oracle, ids, z, **arguments), rel=2e-5)


@pytest.mark.parametrize("name", NAMES)
def test_mean_over_anchors_sum_and_none(name):
    ids, z = batch()
    each = losses.get(name, reduction=None)(ids, z)
    assert each.shape == (len(ids),)
    total = float(losses.get(name, reduction="sum")(ids, z))
    assert total == pytest.approx(float(tf.reduce_sum(each)), rel=1e-6)
    mean = float(losses.get(name)(ids, z))
    assert mean == pytest.approx(float(tf.reduce_mean(each)), rel=1e-6)


@pytest.mark.parametrize("name", NAMES)
def test_sample_weights_weigh_anchors(name):
    ids, z = batch()
    weights = np.linspace(0, 2, len(ids)).astype("float32")
    each = losses.get(name, reduction=None)(ids, z).numpy()
    weighted = float(losses.get(name)(ids, z, sample_weight=weights))
    assert weighted == pytest.approx(float(np.mean(each * weights)), rel=1e-5)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("dtype", ["int32", "int64", "float32"])
def test_label_shapes_and_types(name, dtype):
    ids, z = batch()
    loss = losses.get(name)
    expected = float(loss(ids, z))
    assert float(loss(ids.astype(dtype), z)) == expected
    assert float(loss(ids.astype(dtype)[:, None], z)) == expected


@pytest.mark.parametrize("name", ["contrastive", "multi_similarity"])
def test_no_pairs_give_zero_and_zero_gradient(name):
    value, gradient = value_and_gradient(losses.get(name), [3], np.ones((1, 4)), dtype="float32")
    assert value == 0.0
    assert (gradient == 0.0).all()


@pytest.mark.parametrize("name", ["contrastive", "multi_similarity"])
def test_one_class_has_no_contrastive_part(name):
    _, z = batch()
    tightness, contrastive = losses.get(name).parts(np.zeros(len(z)), z)
    assert (contrastive.numpy() == 0.0).all()
    assert (tightness.numpy() > 0.0).all()


@pytest.mark.parametrize("name", ["contrastive", "multi_similarity"])
def test_single_image_classes_have_no_tightness_part(name):
    _, z = batch()
    tightness, contrastive = losses.get(name).parts(np.arange(len(z)), 0.2 * z)
    assert (tightness.numpy() == 0.0).all()
    assert float(tf.reduce_sum(contrastive)) > 0.0


@pytest.mark.parametrize("name", ["contrastive", "multi_similarity"])
@pytest.mark.parametrize("place", [0.0, 1.7, 300.0])
def test_coincident_embeddings_have_finite_gradients(name, place):
    z = np.full((6, 5), place)
    value, gradient = value_and_gradient(losses.get(name), [0, 0, 1, 1, 2, 2], z, dtype="float32")
    assert np.isfinite(value)
    assert np.isfinite(gradient).all()


def test_coincident_negatives_cost_the_whole_margin_without_a_gradient():
    loss = losses.ContrastiveLoss(margin=1.5)
    value, gradient = value_and_gradient(loss, [0, 1], np.full((2, 7), 123.4), dtype="float32")
    assert value == pytest.approx(1.5**2)
    assert (gradient == 0.0).all()


def test_zero_rows_do_not_break_the_normalised_losses():
    ids, z = batch()
    z[2] = 0.0
    for loss in (losses.MultiSimilarityLoss(), losses.ContrastiveLoss(normalize=True)):
        value, gradient = value_and_gradient(loss, ids, z, dtype="float32")
        assert np.isfinite(value)
        assert np.isfinite(gradient).all()
        assert (gradient[2] == 0.0).all()


def test_multi_similarity_does_not_overflow():
    z = np.array([[1.0, 0.0], [1.0, 1e-3], [1.0, 0.0], [-1.0, 0.0]])
    loss = losses.MultiSimilarityLoss(alpha=500.0, beta=5000.0)
    value, gradient = value_and_gradient(loss, [0, 1, 2, 0], z, dtype="float32")
    assert np.isfinite(value)
    assert np.isfinite(gradient).all()
    # The largest term rules: positives at -1 (anchors 0 and 3) and negatives at +1.
    assert value == pytest.approx((2 * 1.5 + 3 * 0.5) / 4, rel=1e-2)


def test_smoothing_is_keras_label_smoothing_rescaled():
    ids, logits = batch(dimensions=7)
    keras_loss = keras.losses.CategoricalCrossentropy(from_logits=True, label_smoothing=0.2 * 7 / 6)
    expected = float(keras_loss(np.eye(7)[ids], logits))
    assert float(losses.CrossEntropyLoss(epsilon=0.2)(ids, logits)) == pytest.approx(expected, 1e-6)


def test_a_class_id_without_logit_is_nan_not_a_wrong_number():
    each = losses.CrossEntropyLoss(reduction=None)([0, 4, 1], np.zeros((3, 4))).numpy()
    assert np.isnan(each[1])
    assert np.isfinite(each[[0, 2]]).all()


@pytest.mark.parametrize("name", NAMES)
def test_configuration_round_trip_with_non_default_arguments(name):
    arguments = {**NON_DEFAULT[name], "reduction": "sum", "name": "mine", "dtype": "float64"}
    loss = losses.get(name, **arguments)
    copy = keras.saving.deserialize_keras_object(keras.saving.serialize_keras_object(loss))
    assert copy.get_config() == loss.get_config()
    assert arguments.items() <= copy.get_config().items()
    ids, z = batch()
    assert float(copy(ids, z)) == float(loss(ids, z))


@pytest.mark.parametrize("name", NAMES)
def test_fit_lowers_the_loss_and_the_compiled_model_is_saved(name, tmp_path):
    keras.utils.set_random_seed(1)
    ids, x = batch(seed=5, sizes=(20, 10, 15, 19), dimensions=8)
    model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(12), keras.layers.Dense(4)])
    loss = losses.get(name, **NON_DEFAULT[name])
    parts = [LossPart(loss, "tightness"), LossPart(loss, "contrastive")]
    model.compile(keras.optimizers.Adam(0.02), loss, metrics=parts)
    history = model.fit(x, ids, batch_size=32, epochs=8, verbose=0).history
    assert history["loss"][-1] < history["loss"][0]
    both = history["tightness"][-1] + history["contrastive"][-1]
    assert both == pytest.approx(history["loss"][-1], rel=1e-4)

    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    assert loaded.loss.get_config() == loss.get_config()
    assert loaded.evaluate(x, ids, verbose=0) == pytest.approx(model.evaluate(x, ids, verbose=0))


@pytest.mark.parametrize("name", NAMES)
def test_half_precision_embeddings_are_compared_in_float32(name):
    ids, z = batch()
    z = z.astype("float16")
    loss = losses.get(name, reduction=None)
    each = loss(ids + 2**15, z) if name != "ce" else loss(ids, z)
    assert each.dtype == "float32"
    expected = loss(ids, z.astype("float32"))
    np.testing.assert_allclose(each, expected, rtol=1e-6)


@pytest.mark.parametrize("name", NAMES)
def test_fit_under_mixed_precision(name):
    keras.utils.set_random_seed(1)
    ids, x = batch(seed=5, sizes=(20, 10, 15, 19), dimensions=8)
    policy = keras.dtype_policies.DTypePolicy("mixed_bfloat16")
    layers = [keras.layers.Dense(12, dtype=policy), keras.layers.Dense(4, dtype=policy)]
    model = keras.Sequential([keras.Input((8,)), *layers])
    model.compile(keras.optimizers.Adam(0.02), losses.get(name))
    history = model.fit(x, ids, batch_size=32, epochs=8, verbose=0).history
    assert history["loss"][-1] < history["loss"][0]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: losses.ContrastiveLoss(margin=0), "margin must be a number above 0.*margin=0"),
        (
            lambda: losses.ContrastiveLoss(pair_reduction="max"),
            "pair_reduction must be one of 'sum'",
        ),
        (lambda: losses.MultiSimilarityLoss(alpha=-1), "alpha must be a number above 0.*alpha=-1"),
        (lambda: losses.MultiSimilarityLoss(beta=0.0), "beta must be"),
        (lambda: losses.MultiSimilarityLoss(epsilon=-0.1), "epsilon must be None or at least 0"),
        (
            lambda: losses.CrossEntropyLoss(epsilon=1.0),
            "epsilon must be a number in .*epsilon=1",
        ),
        (lambda: losses.ContrastiveLoss(dtype="float16"), "dtype must be float32 or float64"),
        (lambda: losses.get("hinge"), "loss must be one of ce, contrastive.*loss='hinge'"),
    ],
)
def test_bad_arguments(make, message):
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    ("ids", "shape", "message"),
    [
        ([0, 1], (2, 3, 4), r"y_pred must be.*y_pred.shape=\(2, 3, 4\)"),
        ([[0, 1], [1, 0]], (2, 4), r"y_true must be class ids.*y_true.shape=\(2, 2\)"),
        ([0, 1, 1], (2, 4), "3 class ids and 2 embeddings"),
    ],
)
def test_bad_shapes(name, ids, shape, message):
    with pytest.raises(ValueError, match=message):
        losses.get(name)(np.array(ids), np.ones(shape))


def test_cross_entropy_needs_two_classes():
    with pytest.raises(ValueError, match="at least 2 classes"):
        losses.CrossEntropyLoss()([0, 0], np.ones((2, 1)))


def test_the_parts_metric_refuses_what_has_no_parts():
    with pytest.raises(TypeError, match="loss must be a keras_dml.losses.EmbeddingLoss"):
        LossPart("mse", "tightness")
    with pytest.raises(ValueError, match="part must be"):
        LossPart(losses.ContrastiveLoss(), "spread")
