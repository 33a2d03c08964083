"""Wrapper models are cloned, pickled, saved, resumed, and exported."""

import pickle

import keras
import numpy as np
import pytest
import tensorflow as tf
from batches import functional

from keras_dml import layers, losses, models
from keras_dml.export import export_saved_model
from keras_dml.metrics import LossPart

X = np.random.default_rng(0).normal(size=(8, 2, 3, 1)).astype("float32")
IDS = np.arange(8) // 2


def small_net():
    return functional((2, 3, 1), keras.layers.Flatten(), keras.layers.Dense(4))


def proxies():
    merging = layers.CenterRegularizer(2)
    return models.proxy_model(small_net(), 4, 2, "soft", proxies_regularizer=merging)


def with_boundaries(num_classes):
    net = small_net()
    return keras.Model(net.input, layers.Boundary(num_classes, initial=1.1)(net.output))


def distributed():
    net = small_net()
    return models.DistributedModel(net.input, net.output)


MODELS = {
    "RankMI": (lambda: models.RankMI(small_net(), k=2, alpha=0.3, seed=5), None),
    "memory": (lambda: models.CrossBatchMemory(small_net(), 12, weight=0.5, start_step=2),
               losses.MultiSimilarityLoss()),
    "chunks": (lambda: models.CachedGradients(small_net(), 3), losses.SupConLoss()),
    "proxies": (proxies, losses.SoftTripleLoss()),
    "boundary": (lambda: with_boundaries(None), losses.MarginLoss(nu=0.01, boundaries=1)),
    "boundaries": (lambda: with_boundaries(4), losses.MarginLoss(nu=0.01, boundaries=4)),
    "distributed": (distributed, losses.SupConLoss()),
}  # fmt: skip


def compiled(kind, optimizer, **given):
    make, loss = MODELS[kind]
    model = make()
    model.compile(optimizer, **given, **({} if loss is None else {"loss": loss}))
    return model


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["RankMI", "memory", "chunks"])
def test_copies_and_exports_compute_the_same(kind, tmp_path):
    model = MODELS[kind][0]() if kind == "chunks" else compiled(kind, keras.optimizers.SGD())
    expected = np.asarray(model(X))
    model.save(tmp_path / "model.keras")
    copies = {
        "clone": keras.models.clone_model(model),
        "serialized": keras.saving.deserialize_keras_object(
            keras.saving.serialize_keras_object(model)
        ),
        "pickled": pickle.loads(pickle.dumps(model)),
        "loaded": keras.models.load_model(tmp_path / "model.keras"),
    }
    for how, other in copies.items():
        other.set_weights(model.get_weights())
        assert (type(other), other.compiled) == (type(model), kind != "chunks"), how
        np.testing.assert_array_equal(np.asarray(other(X)), expected, how)

    def preprocessing(data):
        return tf.reshape(tf.io.decode_raw(data, tf.float32), [2, 3, 1])

    model.export(tmp_path / "keras", verbose=0)
    served = tf.saved_model.load(str(tmp_path / "keras"))
    np.testing.assert_allclose(served.serve(X), expected, rtol=1e-5, atol=1e-6)
    export_saved_model(model, tmp_path / "served", preprocessing)
    served = tf.saved_model.load(str(tmp_path / "served"))
    given = tf.constant([image.tobytes() for image in X])
    found = served.signatures["serving_default"](images=given)["embeddings"]
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


def values_of(variables):
    return [keras.ops.convert_to_numpy(variable) for variable in variables]


@pytest.mark.slow
@pytest.mark.any_backend
@pytest.mark.parametrize("kind", MODELS)
def test_training_continues_identically_from_a_keras_file(kind, tmp_path):
    parts = (losses.MultiSimilarityLoss(), losses.SNCALoss())
    metrics = [LossPart(loss, "tightness", loss.name) for loss in parts]
    given = {"metrics": metrics} if kind == "memory" else {}
    model = compiled(kind, keras.optimizers.Adam(0.01), **given)
    x, ids = np.concatenate([X, X + 1, X - 1]), np.tile(IDS, 3)
    how = {"batch_size": 8, "shuffle": False, "verbose": 0}
    before = values_of(model.trainable_variables)
    model.fit(x, ids, **how)  # three steps: RankMI's phases and the memory are in the middle
    for old, new in zip(before, values_of(model.trainable_variables)):
        assert not np.array_equal(old, new)
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    for name, value in model.get_config().items():
        assert isinstance(value, dict | list) or loaded.get_config()[name] == value, name
    assert [each.name for each in loaded.metrics] == [each.name for each in model.metrics]
    for each in (model, loaded):
        each.fit(x, ids, **how)
    for ours, theirs in zip(values_of(model.variables), values_of(loaded.variables), strict=True):
        np.testing.assert_array_equal(ours, theirs)
