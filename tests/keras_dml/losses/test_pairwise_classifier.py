"""The pairwise cross-entropy with assignments from a classifier layer."""

import json

import keras
import numpy as np
import oracles
import pytest
from backend import value_and_gradient
from batches import batch, small_model, softmax

from keras_dml import losses

pytestmark = pytest.mark.any_backend


@pytest.mark.skipif(
    keras.backend.backend() == "torch", reason="Keras' Dense computes float64 in float32 there"
)
def test_a_classifier_sets_the_assignments_and_gets_no_gradient():
    """With a bias, other numbers of classes than in the batch, and dropout that must stay off."""
    ids, z = batch()
    dropout = keras.layers.Dropout(0.5, dtype="float64")
    dense = keras.layers.Dense(7, dtype="float64", bias_initializer="normal")
    classifier = keras.Sequential([keras.Input((6,), dtype="float64"), dropout, dense])
    kernel, bias = (np.asarray(weight) for weight in dense.get_weights())
    p = softmax(z @ kernel + bias)
    loss = losses.PairwiseCrossEntropyLoss(0.3, classifier=classifier, dtype="float64")
    frozen = {"p": p, "lam": 0.3}
    value, gradient = value_and_gradient(loss, ids, z)
    expected = oracles.mean_loss(oracles.pairwise_cross_entropy, ids, z, **frozen)
    assert value == pytest.approx(expected, rel=1e-9)
    numeric = oracles.numeric_gradient(oracles.pairwise_cross_entropy, ids, z, **frozen)
    np.testing.assert_allclose(gradient, numeric, atol=1e-7)

    from_eigenvalue = losses.PairwiseCrossEntropyLoss(classifier=classifier, dtype="float64")
    expected = oracles.mean_loss(oracles.pairwise_cross_entropy, ids, z, p=p)
    assert float(from_eigenvalue(ids, z)) == pytest.approx(expected, rel=1e-9)


@pytest.mark.slow
def test_the_classifier_of_the_model_is_shared_while_both_train(tmp_path):
    """The loss uses the layer's current weights, not the weights at construction."""
    ids, x = batch(seed=5, sizes=(20, 10, 15, 19), dimensions=8)
    inputs = keras.Input((8,))
    embeddings = keras.layers.Dense(5, name="embeddings")(inputs)
    classifier = keras.layers.Dense(4, name="classes", kernel_initializer="zeros")
    model = keras.Model(inputs, {"embeddings": embeddings, "classes": classifier(embeddings)})
    loss = losses.PairwiseCrossEntropyLoss(0.5, classifier=classifier)
    model.compile(
        keras.optimizers.Adam(0.02),
        {"embeddings": loss, "classes": losses.CrossEntropyLoss(label_smoothing=0.0)},
    )
    targets = {"embeddings": ids, "classes": ids}
    model.fit(x, targets, batch_size=32, epochs=4, verbose=0)
    assert np.abs(np.asarray(classifier.get_weights()[0])).max() > 0
    logs = model.evaluate(x, targets, batch_size=len(x), verbose=0, return_dict=True)
    outputs = model.predict(x, verbose=0)
    z = outputs["embeddings"].astype("float64")
    p = softmax(outputs["classes"].astype("float64"))
    expected = oracles.mean_loss(oracles.pairwise_cross_entropy, ids, z, lam=0.5, p=p)
    assert logs["embeddings_loss"] == pytest.approx(expected, rel=1e-4, abs=1e-5)

    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    own = loaded.loss["embeddings"].classifier
    assert own is not loaded.get_layer("classes")
    assert len(own.get_weights()) == 2
    logs = loaded.evaluate(x, targets, batch_size=len(x), verbose=0, return_dict=True)
    assert logs["embeddings_loss"] == pytest.approx(expected, rel=1e-4, abs=1e-5)


def test_weights_saved_without_a_classifier_load_into_a_model_with_one(tmp_path):
    ids, x = batch(dimensions=8)
    plain, with_classifier = small_model(), small_model()
    plain.compile("sgd", losses.PairwiseCrossEntropyLoss(0.5))
    plain.save_weights(tmp_path / "plain.weights.h5")
    classifier = keras.layers.Dense(3)
    with_classifier.compile("sgd", losses.PairwiseCrossEntropyLoss(0.5, classifier=classifier))
    with_classifier.evaluate(x, ids, verbose=0)
    kept = classifier.get_weights()
    with_classifier.load_weights(tmp_path / "plain.weights.h5")
    np.testing.assert_array_equal(classifier.get_weights()[0], kept[0])
    with_classifier.save_weights(tmp_path / "own.weights.h5")
    classifier.set_weights([0 * weight for weight in kept])
    with_classifier.load_weights(tmp_path / "own.weights.h5")
    np.testing.assert_array_equal(classifier.get_weights()[0], kept[0])


def test_a_classifier_is_saved_by_its_configuration():
    ids, z = batch()
    classifier = keras.layers.Dense(5, activation="linear", name="classes", dtype="float64")
    loss = losses.PairwiseCrossEntropyLoss(0.2, classifier=classifier, dtype="float64")
    value = float(loss(ids, z))
    saved = json.dumps(keras.saving.serialize_keras_object(loss))
    copy = keras.saving.deserialize_keras_object(json.loads(saved))
    assert json.dumps(keras.saving.serialize_keras_object(copy)) == saved
    assert copy.classifier is not classifier and copy.classifier.units == 5
    float(copy(ids, z))
    copy.classifier.set_weights(classifier.get_weights())
    assert float(copy(ids, z)) == value
