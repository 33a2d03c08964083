"""The callback that stops a training at NaN and logs its cause, on any backend."""

import logging

import keras
import numpy as np
import pytest
import tiers

from keras_dml import layers, losses
from keras_dml.callbacks import StopAtNaN

pytestmark = pytest.mark.any_backend

X = np.random.default_rng(0).normal(size=(8, 4)).astype("float32")
CLASSES = np.arange(8) % 4


def fitted(x, y, loss, last=None, weight=None, dataset=None, rate=0.01):
    """Return the callback after three epochs, and the number of epochs that ran."""
    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.Input([4]), last or keras.layers.Dense(4)])
    if weight is not None:
        model.set_weights([np.full_like(each, weight) for each in model.get_weights()])
    model.compile(keras.optimizers.SGD(rate), loss)
    stop = StopAtNaN((x, y) if dataset is None else dataset, batch_size=4)
    how = {"epochs": 3, "batch_size": 4, "shuffle": False, "verbose": 0}
    return stop, len(model.fit(x, y, callbacks=[stop], **how).history["loss"])


def with_nan(x):
    x = x.copy()
    x[1, 1] = np.nan
    return x


@tiers.parametrize(
    "loss", ["ArcFaceLoss", "NormSoftmaxLoss", "ProxyAnchorLoss"], ["ArcFaceLoss"], pytest.mark.slow
)
def test_a_dense_layer_in_the_place_of_a_proxy_head(loss, caplog):
    loss = getattr(losses, loss)()
    names = "(?s)y_pred must be cosines .*ProxyHead.*proxy_model"
    if keras.backend.backend() == "torch":  # fit runs eagerly, so that the loss raises the error
        with pytest.raises(ValueError, match=names):
            fitted(9 * X, CLASSES, loss)
        return
    with caplog.at_level(logging.WARNING, "keras_dml"):
        _, epochs = fitted(9 * X, CLASSES, loss)
    (line,) = [record.getMessage() for record in caplog.records if record.name == "keras_dml"]
    assert line.startswith("The loss is not finite in epoch 1. y_pred must be cosines")
    assert "ProxyHead" in line and "proxy_model" in line and "\n" not in line and epochs == 1


def test_a_dense_layer_raises_an_error_in_eager_training():
    model = keras.Sequential([keras.Input([4]), keras.layers.Dense(4)])
    model.compile("sgd", losses.ArcFaceLoss(), run_eagerly=True)
    with pytest.raises(ValueError, match="y_pred must be cosines .*ProxyHead"):
        model.fit(9 * X, CLASSES, verbose=0)


# In the order of the tests, and each with the causes of the later tests.
@pytest.mark.parametrize(
    ("x", "y", "loss", "weight", "cause"),
    [
        (X, CLASSES + 1, losses.CrossEntropyLoss(), None, "y_true must be class ids from 0 to 3"),
        (
            with_nan(X), np.array([9, *CLASSES[1:]]), losses.CrossEntropyLoss(), None,
            "y_true must be class ids from 0 to 3, but got 9",
        ),
        (with_nan(X), CLASSES, losses.SupConLoss(), None, "A batch of dataset contains NaN"),
        (with_nan(X), CLASSES, losses.SupConLoss(), np.nan, "A batch of dataset contains NaN"),
        (X, CLASSES, losses.SupConLoss(), np.nan, "kernel contained NaN or infinity before"),
    ],
)  # fmt: skip
def test_the_first_cause_that_holds(x, y, loss, weight, cause):
    if keras.backend.backend() == "torch" and "y_true" in cause:
        with pytest.raises(ValueError, match=cause):
            fitted(x, y, loss, weight=weight)
        return
    stop, epochs = fitted(x, y, loss, weight=weight)
    assert cause in stop.cause and epochs == 1


def test_a_diverged_training():
    stop, _ = fitted(X, X[:, :1], "mean_squared_error", rate=1e30)
    assert "kernel became NaN or infinite" in stop.cause and "global_clipnorm=1" in stop.cause


def test_a_sound_training_has_no_cause():
    head = layers.ProxyHead(4)
    stop, epochs = fitted(X, CLASSES, losses.ArcFaceLoss(), last=head)
    assert stop.cause is None and epochs == 3


def test_an_endless_dataset():
    class Endless(keras.utils.PyDataset):
        num_batches = None

        def __getitem__(self, index):
            assert index < 2, "the training has seen two batches"
            return X[4 * index : 4 * index + 4], CLASSES[:4]

    stop, _ = fitted(X, CLASSES, losses.SupConLoss(), weight=np.nan, dataset=Endless())
    assert "kernel contained NaN" in stop.cause


def test_bad_arguments():
    with pytest.raises(TypeError, match="dataset must be a repeatable dataset"):
        StopAtNaN(iter([(X, CLASSES)]))
    with pytest.raises(ValueError, match="batch_size must be"):
        StopAtNaN((X, CLASSES), batch_size=0)
