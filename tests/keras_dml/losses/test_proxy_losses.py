"""The losses over class cosines: which of them coincide, and edge cases."""

import math

import keras
import numpy as np
import pytest
from backend import compiled, value_and_gradient
from batches import batch
from sklearn.metrics.pairwise import cosine_similarity

from keras_dml import losses

pytestmark = pytest.mark.any_backend

OF_COSINES = [name for name, loss in losses.LOSSES.items() if loss.kind == "proxies"]
every_loss = pytest.mark.parametrize("name", OF_COSINES)


def cosines(seed=0):
    """Return class ids and the cosines of 11 images to 4 classes."""
    ids, z = batch(seed)
    rng = np.random.default_rng(seed)
    proxies = rng.normal(size=(4, z.shape[1]))
    return ids, cosine_similarity(z, proxies)


@pytest.mark.parametrize(
    "same",
    [
        losses.CosFaceLoss(10.0, margin=0.0, dtype="float64"),
        losses.ArcFaceLoss(10.0, margin=0.0, dtype="float64"),
        losses.ArcFaceLoss(10.0, margin=0.0, easy_margin=True, dtype="float64"),
        losses.SoftTripleLoss(10.0, margin=0.0, dtype="float64"),
        losses.ProxyNCALoss(0.2, dtype="float64"),
    ],
    ids=["cosface", "arcface", "arcface, easy", "soft_triple", "proxy_nca"],
)
def test_without_a_margin_they_equal_norm_softmax(same):
    ids, c = cosines()
    expected, gradient = value_and_gradient(losses.NormSoftmaxLoss(0.1, dtype="float64"), ids, c)
    value, computed = value_and_gradient(same, ids, c)
    assert value == pytest.approx(expected, rel=1e-12)
    np.testing.assert_allclose(computed, gradient, atol=1e-12)


@every_loss
def test_an_image_on_its_proxy_or_opposite_is_finite(name):
    c = np.full((5, 5), 0.1)
    np.fill_diagonal(c, [1.0, 1.0 + 1e-7, -1.0, -1.0 - 1e-7, 0.0])
    value, gradient = value_and_gradient(losses.get(name), np.arange(5), c, "float32")
    assert np.isfinite(value)
    assert np.isfinite(gradient).all()


def test_a_zero_embedding_is_equally_near_to_all_classes():
    ids = np.array([0, 2])
    expected = pytest.approx(math.log(5), rel=1e-6)
    for loss in (losses.NormSoftmaxLoss(), losses.CosFaceLoss(margin=0.0), losses.ProxyNCALoss()):
        assert float(loss(ids, np.zeros((2, 5)))) == expected


@pytest.mark.parametrize(
    ("name", "strange"), [*((name, 4) for name in [*OF_COSINES, "ce"]), ("arcface", -1)]
)
def test_a_class_missing_in_the_head(name, strange):
    ids, c = cosines()
    ids[3] = strange
    loss = losses.get(name, reduction=None)
    with pytest.raises(ValueError, match=f"y_true must be .* but got {strange} in row 3"):
        loss(ids, c)
    if keras.backend.backend() == "torch":
        return  # PyTorch has no graphs.
    of_parts = compiled(loss.parts)(ids, c) if name in OF_COSINES else ()
    for values in (compiled(loss)(ids, c), *of_parts):
        lost = np.isnan(np.asarray(values))
        assert lost.all() if name == "proxy_anchor" else np.flatnonzero(lost).tolist() == [3]


@pytest.mark.parametrize("name", ["arcface", "proxy_anchor"])
def test_embeddings_instead_of_cosines(name):
    ids, c = cosines()
    loss = losses.get(name, reduction=None)
    with pytest.raises(ValueError, match="y_pred must be cosines .* but got .*proxy_model"):
        loss(ids, 9 * c)
    if keras.backend.backend() != "torch":
        assert np.isnan(np.asarray(compiled(loss)(ids, 9 * c))).any()


def test_a_single_class():
    for loss in (losses.ArcFaceLoss(), losses.CrossEntropyLoss()):
        with pytest.raises(ValueError, match=r"at least 2 classes.*\(3, 1\)"):
            loss(np.zeros(3, int), np.ones((3, 1)))


def test_proxy_anchor_of_a_single_class_batch_only_pushes_from_the_other_proxy():
    c = np.full((4, 2), -0.3)
    push = np.asarray(losses.ProxyAnchorLoss(2.0, margin=0.1).parts(np.zeros(4, int), c)[1])
    expected = np.log(1 + 4 * math.exp(2.0 * (-0.3 + 0.1))) / 2  # from the other class's proxy
    np.testing.assert_allclose(push, expected, rtol=1e-5)
