"""Inputs of the losses: class ids, embeddings of all types and dtypes, and empty batches."""

import warnings

import keras
import numpy as np
import pytest
import tiers
from backend import compiled, parts, value_and_gradient
from batches import functional
from keras import ops
from loss_cases import CASES, DEFAULTS, each

from keras_dml import addons, losses, models
from keras_dml.metrics import LossPart

pytestmark = pytest.mark.any_backend

ON_JAX = keras.backend.backend() == "jax"
ON_TORCH = keras.backend.backend() == "torch"
PLAIN = np.array([0, 0, 1, 1, 2, 2, 3, 3])
HASHED = np.array([2**40, 2**40, 2**40 + 1, 2**40 + 1, -(2**62), -(2**62), 5, 5])
Z = np.random.default_rng(0).normal(size=(8, 6)).astype("float32")
PAIR_CASES = [case for case in CASES if case.pairs]


@each(PAIR_CASES, {"contrastive", "spce"}, tiers.THOROUGH)
def test_hashed_ids_give_the_same_as_small_ids(case):
    loss = losses.get(case.name, **case.arguments)
    # The two orders of the class sums' slots round differently.
    assert float(loss(HASHED, Z)) == pytest.approx(float(loss(PLAIN, Z)), rel=1e-5, abs=1e-6)
    for ours, theirs in zip(parts(loss, HASHED, Z), parts(loss, PLAIN, Z)):
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-6)
    assert float(compiled(loss)(HASHED, Z)) == pytest.approx(float(loss(PLAIN, Z)), rel=1e-4)


@pytest.mark.slow
def test_fit_metric_and_evaluate_compare_integers():
    scores = []
    for ids in (PLAIN + 2**25, HASHED if not ON_JAX else 2**24 + PLAIN):
        keras.utils.set_random_seed(3)
        model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(4)])
        loss = losses.MultiSimilarityLoss()
        model.compile(keras.optimizers.SGD(0.1), loss, metrics=[LossPart(loss, "contrastive")])
        model.fit(Z, ids, batch_size=8, epochs=2, shuffle=False, verbose=0)
        scores.append(model.evaluate(Z, ids, batch_size=8, verbose=0))
    assert np.isfinite(scores).all()
    np.testing.assert_allclose(scores[0], scores[1], rtol=1e-5)
    merged = model.evaluate(Z, 0 * PLAIN, batch_size=8, verbose=0)
    assert abs(merged[0] - scores[1][0]) > 1e-3


def test_every_kind_of_integer():
    expected = float(losses.SNCALoss()(PLAIN % 2, Z))
    # Keras has no uint64 on PyTorch.
    for dtype in ("uint8", "bool") if ON_TORCH else ("uint8", "bool", "uint64"):
        ids = (PLAIN % 2).astype(dtype)
        assert float(losses.SNCALoss()(ids, Z)) == pytest.approx(expected, rel=1e-6)


BAD = {
    "2**24": (np.full(8, 2.0**24, "float32"), "16777216.0 in row 0"),
    "NaN": (np.array([0, 0, 1, np.nan, 1, 2, 2, 2], "float32"), "nan in row 3"),
    "half": (np.array([0, 0, 1, 1, 1, 1, 2, 2048], "float16"), "2048.0 in row 7"),
    "a fraction": (np.array([0, 0, 1, 1.5, 1, 2, 2, 2], "float32"), "1.5 in row 3"),
    "infinity": (np.array([0, 0, 1, -np.inf, 1, 2, 2, 2], "float32"), "inf in row 3"),
    "a column": (np.full((8, 1), -(2.0**24), "float32"), "row 0"),
}


@pytest.mark.parametrize(
    ("loss", "bad"),
    [
        *((losses.ContrastiveLoss(), bad) for bad in BAD),
        (losses.CrossEntropyLoss(), "NaN"),
        (addons.TripletHardLoss(), "NaN"),
        (addons.NpairsLoss(), "NaN"),
    ],
)
def test_floats_that_merge_classes_are_refused_and_nan_in_a_graph(loss, bad):
    ids, message = BAD[bad]
    given = np.eye(8, dtype="float32") if isinstance(loss, addons.NpairsLoss) else Z
    with pytest.raises(ValueError, match=f"y_true must be class ids, .*but got .*{message}"):
        loss(ids, given)
    if ON_TORCH:
        return  # PyTorch has no graphs.
    ids = ops.convert_to_tensor(ids)
    assert np.isnan(float(compiled(loss)(ids, given)))
    if bad == "NaN" and isinstance(loss, losses.EmbeddingLoss):
        assert np.isnan(np.asarray(compiled(loss.parts)(ids, given))).all()


@pytest.mark.skipif(ON_JAX, reason="there float64 depends on a setting")
def test_float64_represents_more_ids():
    ids = PLAIN + 2.0**40
    expected = float(losses.SNCALoss()(PLAIN, Z))
    assert float(losses.SNCALoss()(ids, Z)) == pytest.approx(expected, rel=1e-6)
    with pytest.raises(ValueError, match="below 9007199254740992 in float64"):
        losses.SNCALoss()(ids + 2.0**53, Z)


@pytest.mark.parametrize("loss", [losses.SNCALoss(), addons.TripletHardLoss()])
@pytest.mark.parametrize(
    ("ids", "message"),
    [
        (None, "which are numbers, but got "),
        ([0, None] * 4, "which are numbers, but got "),
        (list("aabbccdd"), "which are numbers, but got .*return_inverse"),
        (np.eye(2)[PLAIN % 2], r"shape \(8, 2\).*np.argmax"),
    ],
)
def test_labels_that_are_not_class_ids_are_refused_with_a_suggestion(loss, ids, message):
    with pytest.raises(ValueError, match=f"y_true must be class ids.*{message}"):
        loss(ids, Z)


def test_exchanged_arguments_are_refused():
    with pytest.raises(ValueError, match=r"y_true must be .*loss\(class_ids, embeddings\)"):
        losses.TripletLoss()(Z, PLAIN)


@pytest.mark.parametrize("name", ["norm_softmax", "ce"])
def test_class_ids_of_8_bits_among_more_classes(name):
    cosines = np.clip(0.2 * np.random.default_rng(0).normal(size=(2, 300)), -1, 1)
    loss = losses.get(name)
    expected = float(loss(np.array([3, 100]), cosines))
    assert float(loss(np.array([3, 100], "uint8"), cosines)) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("given", "rel"),
    [
        (Z.tolist(), 1e-6),
        ([ops.convert_to_tensor(row) for row in Z], 1e-6),
        (ops.cast(Z, "bfloat16"), 1e-2),
    ],
    ids=["lists", "tensors", "half precision"],
)
def test_embeddings_of_every_kind(given, rel):
    expected = float(losses.SNCALoss()(PLAIN, Z))
    assert float(losses.SNCALoss()(PLAIN.tolist(), given)) == pytest.approx(expected, rel=rel)


NO_FLOAT64 = keras.backend.backend() == "jax" and not __import__("jax").config.jax_enable_x64
IDS = np.array([0, 0, 1, 1, 2, 2])
COSINES = np.random.default_rng(0).uniform(-0.5, 0.5, (6, 4))
NEEDS_FLOAT64 = pytest.mark.skipif(NO_FLOAT64, reason="needs jax_enable_x64")
FLOAT64 = pytest.param("float64", marks=NEEDS_FLOAT64)


@pytest.fixture
def floatx(request):
    keras.config.set_floatx(request.param)
    yield request.param
    keras.config.set_floatx("float32")


@pytest.mark.parametrize("floatx", [FLOAT64, "float16", "bfloat16"], indirect=True)
@each(DEFAULTS, {"ce", "contrastive", "pce", "fastap", "margin"})
def test_value_and_gradient_under_another_floatx(case, floatx):
    loss = losses.get(case.name)
    dtype = "float64" if floatx == "float64" else "float32"
    assert loss.dtype == dtype
    value, gradient = value_and_gradient(loss, IDS, COSINES, dtype=dtype)
    expected, slope = value_and_gradient(
        losses.get(case.name, dtype="float32"), IDS, COSINES, "float32"
    )
    assert value == pytest.approx(expected, rel=1e-4, abs=1e-6)
    np.testing.assert_allclose(gradient, slope, rtol=1e-3, atol=1e-4 * np.abs(slope).max() + 1e-6)
    half = keras.ops.cast(keras.ops.convert_to_tensor(COSINES), floatx)
    assert keras.backend.standardize_dtype(loss(IDS, half).dtype) == dtype


@pytest.mark.parametrize(
    ("loss", "floatx"),
    [
        pytest.param(losses.SupConLoss(), "float64", marks=NEEDS_FLOAT64),
        (losses.ContrastiveLoss(2.0), "bfloat16"),
        (None, "float16"),
    ],
    indirect=["floatx"],
)
def test_memory_chunks_and_rankmi_train_under_another_floatx(loss, floatx):
    net = functional((4,), keras.layers.Dense(3))
    eager = keras.backend.backend() != "jax"
    if loss is None:
        model = models.RankMI(net)
        model.compile("sgd", run_eagerly=eager)
    else:
        # Unused rows of the memory are zeros.
        model = models.CrossBatchMemory(models.CachedGradients(net, 3), 12, start_step=0)
        model.compile("sgd", loss, metrics=[LossPart(loss, "tightness")], run_eagerly=eager)
    history = model.fit(COSINES, IDS, batch_size=6, epochs=2, verbose=0).history
    assert np.isfinite([float(value) for values in history.values() for value in values]).all()


NO_IDS, NOTHING = np.zeros(0, int), np.zeros((0, 4), "float32")


@each(DEFAULTS)
def test_loss_and_gradient_of_no_images(case):
    loss = losses.get(case.name)
    prefixes = [losses.MatryoshkaLoss(loss, [2, 4])] if loss.kind == "pairs" else []
    for one in (loss, *prefixes):
        value, gradient = value_and_gradient(one, NO_IDS, NOTHING, "float32")
        assert (value, gradient.shape) == (0, (0, 4))
        assert [part.shape for part in parts(one, NO_IDS, NOTHING)] == [(0,), (0,)]


@pytest.fixture
def graph_optimizer():
    """Turn on TensorFlow's graph optimizer, which `conftest.py` turns off."""
    import tensorflow as tf

    before = tf.config.optimizer.get_experimental_options()
    tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": False})
    yield
    tf.config.optimizer.set_experimental_options(before)


@pytest.mark.slow
@pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="TensorFlow's graphs")
@each(DEFAULTS, {"triplet"}, tiers.THOROUGH)
def test_no_image_and_one_image_in_a_graph(case, graph_optimizer):
    """TensorFlow's graph optimizer made some of these graphs invalid, or lost the gradient."""
    import tensorflow as tf

    loss = losses.get(case.name)

    def value_and_slope(ids, z):
        with tf.GradientTape() as tape:
            tape.watch(z)
            value = loss(ids, z)
        return value, tape.gradient(value, z, unconnected_gradients="zero")

    def graph(size):
        specs = tf.TensorSpec([size], tf.int64), tf.TensorSpec([size, 4], tf.float32)
        return tf.function(value_and_slope, input_signature=specs)

    value, gradient = graph(None)(NO_IDS, NOTHING)
    assert (float(value), tuple(gradient.shape)) == (0, (0, 4))
    longest = 0.6 if loss.kind == "proxies" else 3.0  # cosines are at most 1
    one = np.array([2]), np.array([[1.0, -2.0, 0.5, 3.0]], "float32") * np.float32(longest / 3)
    expected, slope = value_and_gradient(loss, *one, "float32")
    value, gradient = graph(1)(*one)
    # PCE's value is the difference of two numbers around 1e4.
    assert float(value) == pytest.approx(expected, abs=2e-3)
    np.testing.assert_allclose(gradient.numpy(), slope, rtol=1e-5, atol=1e-6)


def test_rankmi_and_the_wrappers_take_no_images():
    loss = {"loss": losses.SupConLoss()}
    for wrap, given in (
        (models.RankMI, {}),
        (lambda net: models.CrossBatchMemory(net, 8, start_step=0), loss),
        (lambda net: models.CachedGradients(net, 2), loss),
    ):
        model = wrap(functional((4,), keras.layers.Dense(3)))
        model.compile("sgd", **given)
        before = [keras.ops.convert_to_numpy(each) for each in model.trainable_variables]
        for _ in range(2):  # RankMI alternates
            logs = model.train_on_batch(NOTHING, NO_IDS, return_dict=True)
        logs |= model.test_on_batch(NOTHING, NO_IDS, return_dict=True)
        assert np.isfinite([float(value) for value in logs.values()]).all(), type(model)
        for now, was in zip(model.trainable_variables, before):
            np.testing.assert_array_equal(keras.ops.convert_to_numpy(now), was)


@pytest.mark.parametrize("loss", losses.LOSSES.values(), ids=losses.LOSSES)
def test_an_unknown_argument_names_the_loss(loss):
    with pytest.raises(TypeError) as refused:
        loss(no_such_argument=0.2)
    said = str(refused.value)
    assert said.startswith(f"no_such_argument must be an argument of {loss.__name__} (")
    assert "got no_such_argument=0.2" in said


def test_an_unknown_argument_names_the_nearest():
    with pytest.raises(TypeError, match=r"\(margin, .*got margins=0.2. Did you mean margin\?"):
        losses.TripletLoss(margins=0.2)

    class Mine(losses.PairLoss):
        def __init__(self, **options):
            self.power = options.pop("power", 2)  # not in the signature
            super().__init__(**options)

    assert Mine(power=3).power == 3

    class Broken(Mine):
        def __init__(self, **options):
            super().__init__(power=len(options["power"]))

    with pytest.raises(TypeError, match="has no len"):
        Broken(power=3)


@pytest.mark.parametrize(
    ("name", "ours"),
    [("TripletMarginLoss", "TripletLoss"), ("InfoNCELoss", "NTXentLoss"), ("Tripletloss", "Tripl")],
)
def test_a_name_of_another_library_suggests_ours(name, ours):
    with pytest.raises(AttributeError, match=f"no attribute '{name}'. Did you mean {ours}"):
        getattr(losses, name)


def test_an_eager_batch_without_positives_warns():
    loss = losses.MultiSimilarityLoss()
    with pytest.warns(UserWarning, match="A batch had no two images of a class"):
        loss(np.arange(8), Z)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        loss(PLAIN, Z)
        loss(PLAIN[:1], Z[:1])
        # The positives are the other set.
        loss.between(np.arange(8), Z, np.arange(8), Z)
        losses.ArcFaceLoss()(np.arange(4), np.eye(4, dtype="float32"))
    # Also after batches with positives: a loss has no state.
    with pytest.warns(UserWarning, match="A batch had no two images of a class"):
        loss(np.arange(8), Z)


@pytest.mark.parametrize("name", ["contrastive", "ce", "norm_softmax"])
def test_a_call_checks_its_labels_once(name, monkeypatch):
    loss, calls = losses.get(name), []
    check = loss.checked_labels
    monkeypatch.setattr(loss, "checked_labels", lambda labels: calls.append(1) or check(labels))
    loss([0, 0, 1, 1], np.eye(4, dtype="float32"))
    assert len(calls) == 1


def test_losses_are_found_by_the_names_that_keras_users_type():
    assert type(losses.get("TripletLoss", margin=0.3)) is losses.TripletLoss
    assert losses.get({"class_name": "TripletLoss", "config": {"margin": 0.3}}).margin == 0.3
    serialized = keras.losses.serialize(losses.TripletLoss(margin=0.3))
    assert losses.get(serialized).margin == 0.3


@pytest.mark.parametrize(
    ("name", "ours"),
    [
        ("InfoNCE", "NTXentLoss"),
        ("SigLIPLoss", "PairwiseSigmoidLoss"),
        ("CLIPLoss", "NTXentLoss"),
        ("TripletMarginLoss", "TripletLoss"),
        ("NCALoss", "SNCALoss"),
        ("SoftmaxLoss", "CrossEntropyLoss"),
    ],
)
def test_names_of_other_libraries_are_answered_with_ours(name, ours):
    with pytest.raises(AttributeError, match=f"Did you mean {ours}"):
        getattr(losses, name)


def test_gamma_is_the_scale_of_the_circle_loss_as_in_keras():
    random = np.random.default_rng(0)
    ids, z = np.arange(16) // 4, random.normal(size=(16, 8)).astype("float32")
    z /= np.linalg.norm(z, axis=1, keepdims=True)
    ours = losses.CircleLoss(margin=0.4, gamma=8.0)
    theirs = keras.losses.Circle(gamma=8.0, margin=0.4)
    np.testing.assert_allclose(float(ours(ids, z)), float(theirs(ids, z)), rtol=1e-5)
    assert ours.get_config()["scale"] == 8.0 and "gamma" not in ours.get_config()
