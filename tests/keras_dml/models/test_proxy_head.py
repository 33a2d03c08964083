"""Heads with weights: cosines to proxies, several centers, the regularizer, and errors."""

import keras
import numpy as np
import pytest
from batches import batch, functional
from scipy import special

from keras_dml import layers, losses, models


def embedding():
    """A small embedding model with fixed initial weights."""
    keras.utils.set_random_seed(2)
    return functional((8,), keras.layers.Dense(12, "tanh"), keras.layers.Dense(4))


def unit(x):
    return x / np.linalg.norm(x, axis=-1, keepdims=True)


@pytest.mark.parametrize("centers", [1, 3])
@pytest.mark.parametrize("pooling", ["max", "soft"])
def test_cosines_match_the_formula(centers, pooling):
    head = layers.ProxyHead(5, centers=centers, pooling=pooling, temperature=0.3, dtype="float64")
    z = np.random.default_rng(0).normal(size=(7, 6)) * 3
    cosines = np.asarray(head(z))
    assert head.proxies.shape == (5 * centers, 6)
    of_center = (unit(z) @ unit(np.asarray(head.proxies)).T).reshape(7, 5, centers)
    pooled = (special.softmax(of_center / 0.3, axis=2) * of_center).sum(axis=2)
    expected = of_center.max(axis=2) if pooling == "max" else pooled
    np.testing.assert_allclose(cosines, expected, atol=1e-12)


def test_zero_and_huge_embeddings():
    head = layers.ProxyHead(3)
    z = np.zeros((3, 4), "float32")
    z[1], z[2] = 1e30, 1e-30
    cosines = np.asarray(head(z))
    assert (cosines[0] == 0).all()
    np.testing.assert_allclose(cosines[1], cosines[2], rtol=1e-5)
    assert np.isfinite(cosines).all()


def test_proxies_start_at_a_length_of_about_one():
    keras.utils.set_random_seed(0)
    head = layers.ProxyHead(500, centers=2)
    head.build((None, 64))
    lengths = np.linalg.norm(np.asarray(head.proxies), axis=1)
    assert np.mean(lengths) == pytest.approx(1.0, abs=0.02)


def test_the_regularizer_is_part_of_the_loss_and_merges_centers():
    ids, x = batch(seed=5, sizes=(20, 10, 15, 19), dimensions=8)
    regularizer = layers.CenterRegularizer(3, weight=0.5)
    model = models.proxy_model(embedding(), 4, 3, "soft", proxies_regularizer=regularizer)
    model.compile(keras.optimizers.SGD(0.0), losses.SoftTripleLoss())
    logged = model.train_on_batch(x, ids)
    head = model.get_layer("proxy_head")
    alone = float(losses.SoftTripleLoss()(ids, model(x)))
    added = float(regularizer(head.proxies.value))
    assert float(logged) == pytest.approx(alone + added, rel=1e-5)
    together = np.ones((12, 4), "float32")
    # float32 leaves 2.4e-7 of 2 − 2·p·q, a fortieth of the term 1e-5.
    assert float(regularizer(keras.ops.convert_to_tensor(together))) == pytest.approx(
        0.5 * np.sqrt(1e-5) / 2, rel=0.03
    )
    assert float(layers.CenterRegularizer(1)(keras.ops.ones((3, 4)))) == 0.0


def test_dominant_centers_and_the_images_near_them():
    head = layers.ProxyHead(3, centers=2)
    head.build((None, 2))
    head.set_weights([np.array([(1, 0), (0, 1), (-1, 0), (0, -1), (1, 1), (1, -1)], "float32")])
    z = np.array([(1, 0.1), (1, -0.1), (0.1, 1), (-0.1, -1), (-0.5, -1)])
    centers, near = models.dominant_centers(head, z, np.array([0, 0, 0, 1, 1]))
    assert centers.tolist() == [0, 1, -1]
    assert near.tolist() == [True, True, False, True, True]
    _, near = models.dominant_centers(head, z, np.array([0, 0, 0, 1, 1]), threshold=10)
    assert near.tolist() == [True, True, False, True, False]
    with pytest.raises(ValueError, match="class_ids must be from 0 to 2.* but got 3"):
        models.dominant_centers(head, z, np.full(5, 3))


def test_bad_shapes_of_a_head():
    with pytest.raises(ValueError, match=r"inputs must be embeddings \[n, d\].*\(2, 3, 4\)"):
        layers.ProxyHead(3)(np.ones((2, 3, 4)))
    with pytest.raises(ValueError, match="centers must divide.* but got 4 for 6 proxies"):
        layers.CenterRegularizer(4)(keras.ops.ones((6, 2)))
