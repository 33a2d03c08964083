"""Class ids that a cast to float would merge: hashes, large floats, NaN, None."""

import keras
import numpy as np
import pytest
import tiers
from backend import compiled, parts
from keras import ops
from loss_cases import CASES, each

from keras_dml import addons, losses
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


@pytest.mark.parametrize(
    "dtype",
    [
        "uint8",
        "bool",
        pytest.param(
            "uint64", marks=pytest.mark.skipif(ON_TORCH, reason="Keras has no uint64 there")
        ),
    ],
)
def test_every_kind_of_integer(dtype):
    ids = (PLAIN % 2).astype(dtype)
    expected = float(losses.SNCALoss()(PLAIN % 2, Z))
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
    if isinstance(loss, losses.EmbeddingLoss):
        assert np.isnan(np.asarray(compiled(loss.parts)(ids, given))).all()


@pytest.mark.skipif(ON_JAX, reason="there float64 depends on a setting")
def test_float64_represents_more_ids():
    ids = PLAIN + 2.0**40
    expected = float(losses.SNCALoss()(PLAIN, Z))
    assert float(losses.SNCALoss()(ids, Z)) == pytest.approx(expected, rel=1e-6)
    with pytest.raises(ValueError, match="below 9007199254740992 in float64"):
        losses.SNCALoss()(ids + 2.0**53, Z)


@pytest.mark.parametrize("ids", [None, [0, None] * 4, list("aabbccdd")])
@pytest.mark.parametrize("loss", [losses.SNCALoss(), addons.TripletHardLoss()])
def test_labels_that_are_not_numbers(loss, ids):
    with pytest.raises(ValueError, match="y_true must be class ids, which are numbers, but got "):
        loss(ids, Z)


def test_labels_in_another_form_are_refused_with_a_suggestion():
    loss = losses.TripletLoss()
    with pytest.raises(ValueError, match=r"y_true must be .*shape \(8, 2\).*np.argmax"):
        loss(np.eye(2)[PLAIN % 2], Z)
    with pytest.raises(ValueError, match=r"y_true must be .*loss\(class_ids, embeddings\)"):
        loss(Z, PLAIN)
    with pytest.raises(ValueError, match="return_inverse"):
        loss(np.array(list("aabbccdd")), Z)


@pytest.mark.parametrize("name", ["norm_softmax", "ce"])
def test_class_ids_of_8_bits_among_more_classes(name):
    cosines = np.clip(0.2 * np.random.default_rng(0).normal(size=(2, 300)), -1, 1)
    loss = losses.get(name)
    expected = float(loss(np.array([3, 100]), cosines))
    assert float(loss(np.array([3, 100], "uint8"), cosines)) == pytest.approx(expected)
