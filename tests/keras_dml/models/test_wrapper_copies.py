"""Wrapper models are cloned, pickled, saved, resumed, and exported."""

import copy
import pickle

import keras
import numpy as np
import pytest
import tensorflow as tf
from batches import functional

from keras_dml import losses, models
from keras_dml.export import export_saved_model
from keras_dml.metrics import LossPart

X = np.random.default_rng(0).normal(size=(8, 2, 3, 1)).astype("float32")
IDS = np.arange(8) // 2


def small_net():
    return functional((2, 3, 1), keras.layers.Flatten(), keras.layers.Dense(4))


WRAPPERS = {
    "RankMI": lambda: models.RankMI(small_net()),
    "memory": lambda: models.CrossBatchMemory(small_net(), 8, start_step=0),
    "chunks": lambda: models.CachedGradients(small_net(), 4),
}


@pytest.mark.parametrize(
    ("wrapper", "compiled"), [("RankMI", True), ("memory", True), ("chunks", False)]
)
def test_copies_compute_the_same(wrapper, compiled, tmp_path):
    model = WRAPPERS[wrapper]()
    if compiled:
        loss = {} if wrapper == "RankMI" else {"loss": losses.SupConLoss()}
        model.compile(keras.optimizers.SGD(0.1), **loss)
    expected = np.asarray(model(X))
    model.save(tmp_path / "model.keras")
    copies = {
        "clone": keras.models.clone_model(model),
        "serialized": keras.saving.deserialize_keras_object(
            keras.saving.serialize_keras_object(model)
        ),
        "pickled": pickle.loads(pickle.dumps(model)),
        "copied": copy.deepcopy(model),
        "loaded": keras.models.load_model(tmp_path / "model.keras"),
    }
    for kind, other in copies.items():
        other.set_weights(model.get_weights())
        assert (type(other), other.compiled) == (type(model), compiled), kind
        np.testing.assert_array_equal(np.asarray(other(X)), expected, kind)


def proxies():
    merging = models.CenterRegularizer(2)
    return models.proxy_model(small_net(), 4, 2, "soft", proxies_regularizer=merging)


def distributed():
    net = small_net()
    return models.DistributedModel(net.input, net.output)


RESUMED = {
    "RankMI": (lambda: models.RankMI(small_net(), k=2, alpha=0.3, seed=5), None),
    "memory": (lambda: models.CrossBatchMemory(small_net(), 12, weight=0.5, start_step=2),
               losses.MultiSimilarityLoss()),
    "chunks": (lambda: models.CachedGradients(small_net(), 3), losses.SupConLoss()),
    "proxies": (proxies, losses.SoftTripleLoss()),
    "distributed": (distributed, losses.SupConLoss()),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.any_backend
@pytest.mark.parametrize("kind", RESUMED)
def test_training_continues_identically_from_a_keras_file(kind, tmp_path):
    make, loss = RESUMED[kind]
    model, given = make(), {}
    if loss is not None:
        parts = [LossPart(loss, "tightness"), LossPart(losses.SNCALoss(), "tightness", "other")]
        given = {"loss": loss, "metrics": parts if kind == "memory" else None}
    model.compile(keras.optimizers.Adam(0.01), **given)
    x, ids = np.concatenate([X, X + 1, X - 1]), np.tile(IDS, 3)
    how = {"batch_size": 8, "shuffle": False, "verbose": 0}
    model.fit(x, ids, **how)  # three steps: RankMI's phases and the memory are in the middle
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    for name, value in model.get_config().items():
        assert isinstance(value, dict | list) or loaded.get_config()[name] == value, name
    assert [each.name for each in loaded.metrics] == [each.name for each in model.metrics]
    for each in (model, loaded):
        each.fit(x, ids, **how)
    for ours, theirs in zip(model.variables, loaded.variables, strict=True):
        np.testing.assert_array_equal(*(keras.ops.convert_to_numpy(v) for v in (ours, theirs)))


@pytest.mark.parametrize("wrapper", WRAPPERS)
def test_the_export_is_the_embedding_model(wrapper, tmp_path):
    model = WRAPPERS[wrapper]()
    expected = np.asarray(model(X))
    model.export(tmp_path / "keras", verbose=0)
    served = tf.saved_model.load(str(tmp_path / "keras"))
    np.testing.assert_allclose(served.serve(X), expected, rtol=1e-5, atol=1e-6)

    def preprocessing(data):
        return tf.reshape(tf.io.decode_raw(data, tf.float32), [2, 3, 1])

    export_saved_model(model, tmp_path / "served", preprocessing)
    served = tf.saved_model.load(str(tmp_path / "served"))
    found = served.signatures["serving_default"](
        images=tf.constant([image.tobytes() for image in X])
    )["embeddings"]
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)
