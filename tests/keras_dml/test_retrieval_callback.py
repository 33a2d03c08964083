"""Retrieval metrics at the end of an epoch, and callbacks that monitor them."""

import warnings

import keras
import numpy as np
import pytest
import tensorflow as tf
from processes import run_python
from retrieval_sets import clusters

from keras_dml._common.errors import ArgumentError
from keras_dml.callbacks import RetrievalEvaluation
from keras_dml.losses import TripletLoss
from keras_dml.metrics import precision_at_r, recall_at_k

IMAGES, LABELS = clusters(6, 4, 5, 1)
VALIDATION, _ = clusters(6, 4, 5, 1, seed=1)


def network(run_eagerly=True):
    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.Input([5]), keras.layers.Dense(3, name="embedding")])
    model.compile("sgd", TripletLoss(), run_eagerly=run_eagerly)
    return model


def fit(model, callbacks, epochs=2, labels=LABELS):
    how = {"epochs": epochs, "batch_size": 24, "verbose": 0}
    return model.fit(IMAGES, labels, callbacks=callbacks, **how).history


class Batches(keras.utils.PyDataset):
    def __len__(self):
        return 3

    def __getitem__(self, number):
        part = slice(8 * number, 8 * number + 8)
        return VALIDATION[part], LABELS[part], np.ones(8)


class Endless(Batches):
    num_batches = None


def test_the_logs_match_the_metrics():
    shuffled = tf.data.Dataset.from_tensor_slices((VALIDATION, LABELS[:, None])).shuffle(24)
    kinds = [
        (VALIDATION, LABELS),
        shuffled.batch(7),
        Batches(workers=1),
        [(VALIDATION[:10], LABELS[:10]), (VALIDATION[10:], LABELS[10:])],
    ]
    callbacks = [
        RetrievalEvaluation(kind, ks=(1, 5), prefix=f"{number}_", batch_size=9)
        for number, kind in enumerate(kinds)
    ]
    gallery = (IMAGES, LABELS)
    callbacks.append(RetrievalEvaluation(kinds[0], ks=24, gallery=gallery, metric="l2"))
    model = network()
    logs = fit(model, callbacks)
    z = model.predict(VALIDATION, verbose=0)
    for number in range(len(kinds)):
        recall = recall_at_k(z, LABELS, [1, 5])
        for k in (1, 5):
            assert logs[f"{number}_recall@{k}"][-1] == recall[k]
        assert logs[f"{number}_map@r"][-1] == pytest.approx(precision_at_r(z, LABELS).map_at_r)
    sets = {"gallery": model.predict(IMAGES, verbose=0), "gallery_labels": LABELS}
    expected = precision_at_r(z, LABELS, "l2", **sets)
    assert logs["val_r_precision"][-1] == pytest.approx(expected.r_precision)
    assert logs["val_recall@24"] == [1.0, 1.0]


def test_checkpoints_and_early_stopping_can_monitor_it(tmp_path):
    wanted = [0.3, 0.8, 0.5, 0.4, 0.9]

    class Scripted(RetrievalEvaluation):
        def evaluate(self):
            return super().evaluate() | {"val_recall@1": wanted.pop(0)}

    model = network()
    watched = {"monitor": "val_recall@1", "mode": "max"}
    path = str(tmp_path / "{epoch}-{val_recall@1:.2f}.keras")
    keep = keras.callbacks.ModelCheckpoint(path, save_best_only=True, **watched)
    stop = keras.callbacks.EarlyStopping(patience=2, restore_best_weights=True, **watched)
    evaluation = Scripted((VALIDATION, LABELS))
    logs = fit(model, [evaluation, keep, stop], epochs=5)
    assert logs["val_recall@1"] == [0.3, 0.8, 0.5, 0.4]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["1-0.30.keras", "2-0.80.keras"]
    # The second epoch's weights are restored.
    wanted.append(0.0)
    assert evaluation.evaluate()["val_map@r"] == pytest.approx(logs["val_map@r"][1])


@pytest.mark.slow
def test_every_third_epoch_and_the_last():
    seen = []
    watch = keras.callbacks.LambdaCallback(
        on_epoch_end=lambda epoch, logs: seen.append("val_recall@1" in logs)
    )
    fit(network(), [RetrievalEvaluation((VALIDATION, LABELS), every=3), watch], epochs=5)
    assert seen == [False, False, True, False, True]


def test_a_model_with_a_classifier_needs_embedding_model():
    keras.utils.set_random_seed(0)
    inputs = keras.Input([5])
    embeddings = keras.layers.Dense(3, name="embedding")(inputs)
    model = keras.Model(inputs, {"logits": keras.layers.Dense(6)(embeddings), "z": embeddings})
    model.compile("sgd", {"logits": keras.losses.SparseCategoricalCrossentropy(from_logits=True)})
    embedding = keras.Model(inputs, embeddings)
    callback = RetrievalEvaluation((VALIDATION, LABELS), embedding_model=embedding)
    logs = fit(model, [callback], labels={"logits": LABELS})
    z = embedding.predict(VALIDATION, verbose=0)
    assert logs["val_recall@1"][-1] == recall_at_k(z, LABELS, [1])[1]
    with pytest.raises(ValueError, match=r"got shape \{.* for 24 images.* set embedding_model"):
        fit(model, [RetrievalEvaluation((VALIDATION, LABELS))], labels={"logits": LABELS})


@pytest.mark.slow
def test_nan_embeddings_give_nan_scores_without_an_error():
    model = network(run_eagerly=False)  # an eager step refuses NaN
    model.get_layer("embedding").bias.assign([np.nan, 0, 0])
    logs = fit(model, [RetrievalEvaluation((VALIDATION, LABELS))], epochs=1)
    assert np.isnan(logs["val_recall@1"]) and np.isnan(logs["val_map@r"])


@pytest.mark.slow
def test_nearly_equal_embeddings_warn_once():
    model = network()
    scores = RetrievalEvaluation((VALIDATION, LABELS))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        fit(model, [scores])
        assert not caught
        model.get_layer("embedding").bias.assign([1e4, 1e4, 1e4])
        fit(model, [scores], epochs=4)
    (found,) = [str(each.message) for each in caught]
    assert "nearly equal: the mean distance between their unit vectors is 0.0001 (" in found


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"ks": ()}, r"ks must be one or more whole numbers.* but got \(\)"),
        ({"every": 0}, "every must be .* but got 0"),
        ({"metric": "dot"}, "metric must be .* but got 'dot'"),
        ({"dataset": (IMAGES, LABELS[:5])}, "24 images and 5 labels"),
        ({"dataset": (IMAGES, LABELS, LABELS)}, "but got a tuple of 3"),
        ({"dataset": 5}, "batches of these, but got 5"),
        ({"dataset": iter([])}, "dataset must be a repeatable dataset.*generator"),
        ({"gallery": iter([])}, "gallery must be a repeatable dataset"),
        ({"dataset": tf.data.Dataset.range(3).repeat()}, "must end"),
        ({"dataset": Endless()}, "dataset must end, but got an endless PyDataset"),
        ({"gallery": Endless()}, "gallery must end, but got an endless PyDataset"),
    ],
)
def test_bad_arguments(arguments, message):
    with pytest.raises(ArgumentError, match=message):
        RetrievalEvaluation(**{"dataset": (VALIDATION, LABELS), **arguments})


@pytest.mark.slow
def test_unsuitable_data_fails_before_the_first_epoch():
    model = network()
    few = [(IMAGES[:5], LABELS[:5])]
    for dataset, gallery, message in (
        ([], None, "dataset must have images, but got no batch"),
        ([IMAGES], None, "batches .images, labels., but got a batch of type ndarray"),
        ([(IMAGES, np.eye(24))], None, r"class ids \[n\]"),
        ([(IMAGES[:2], LABELS[:2])] * 3, None, "ks must be at most 5, .* but got .6,"),
        ((IMAGES[:6], LABELS[:6]), None, "ks must be at most 5, the number of other images"),
        ((IMAGES, LABELS), few, "ks must be at most 5, the number of images in gallery"),
        ((IMAGES, np.arange(24)), None, "dataset must have two images of a class, but got none"),
        ([(IMAGES[:9], np.arange(9)), (IMAGES[9:], np.arange(9, 24))], None, "two images of a"),
        ((IMAGES, LABELS), [(IMAGES, LABELS + 6)], "an image of a class of gallery, but got none"),
    ):
        with pytest.raises(ValueError, match=message):
            fit(model, [RetrievalEvaluation(dataset, ks=6, gallery=gallery)])
    # A match between the second batches of both sets is enough.
    parts = [(IMAGES[:4], LABELS[:4]), (IMAGES[4:], LABELS[4:])]
    fit(network(), [RetrievalEvaluation(parts, gallery=[(IMAGES[:4], LABELS[:4] + 6), parts[1]])])
    with pytest.raises(ValueError, match="embedding_model must be set .* but got None"):
        RetrievalEvaluation((IMAGES, LABELS)).evaluate()
    assert int(model.optimizer.iterations) == 0


ON_DEVICES = """
import keras
import numpy as np
from keras_dml.callbacks import RetrievalEvaluation, StopAtNaN
from keras_dml.losses import SupConLoss

keras.distribution.set_distribution(keras.distribution.DataParallel())
assert len(keras.distribution.list_devices()) == 4
images, labels = np.random.default_rng(0).normal(size=(10, 4)), np.arange(10) // 2
model = keras.Sequential([keras.Input([4]), keras.layers.Dense(3)])
model.compile("sgd", SupConLoss())
callbacks = [RetrievalEvaluation((images, labels), batch_size=7), StopAtNaN((images, labels))]
logs = model.fit(images[:8], labels[:8], batch_size=4, callbacks=callbacks, verbose=0).history
assert 0 <= logs["val_recall@1"][0] <= 1
model.set_weights([np.full_like(each, np.nan) for each in model.get_weights()])
model.fit(images[:8], labels[:8], batch_size=4, callbacks=callbacks[1:], verbose=0)
print(callbacks[1].cause)
"""


@pytest.mark.slow
def test_the_devices_do_not_divide_the_last_batch():
    flags = "--xla_force_host_platform_device_count=4"
    printed = run_python("-c", ON_DEVICES, KERAS_BACKEND="jax", XLA_FLAGS=flags)
    assert "kernel contained NaN or infinity before the epoch" in printed
