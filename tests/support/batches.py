"""Batches, images, and small models, shared by the tests of losses and models."""

import keras
import numpy as np


def batch(seed=0, sizes=(5, 1, 3, 2), dimensions=6):
    """Return shuffled, unequal classes (one of a single image), with features of unequal length."""
    rng = np.random.default_rng(seed)
    ids = rng.permutation(np.repeat(np.arange(len(sizes)), sizes))
    z = rng.normal(size=(len(ids), dimensions)) * rng.uniform(0.2, 1.2, size=(len(ids), 1))
    return ids, z


def images(size=16, n=2):
    """Return random images in 0..255."""
    return np.random.default_rng(0).uniform(0, 255, (n, size, size, 3)).astype("float32")


def small_model(policy="float32"):
    keras.utils.set_random_seed(1)
    policy = keras.dtype_policies.DTypePolicy(policy)
    layers = [keras.layers.Dense(12, dtype=policy), keras.layers.Dense(4, dtype=policy)]
    return keras.Sequential([keras.Input((8,)), *layers])


def functional(shape, *layers, **named):
    """Return a functional model of layers in a row."""
    inputs = x = keras.Input(shape)
    for layer in layers:
        x = layer(x)
    return keras.Model(inputs, x, **named)
