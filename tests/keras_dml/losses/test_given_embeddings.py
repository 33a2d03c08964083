"""Types of embeddings that losses accept, such as lists, arrays, and tensors, and refuse."""

import keras
import numpy as np
import pytest
from backend import value_and_gradient

from keras_dml import addons, losses
from keras_dml._common.errors import ArgumentTypeError

pytestmark = pytest.mark.any_backend

Z = np.random.default_rng(0).normal(size=(4, 3)).astype("float32")


class Rows:
    """An object like a pandas table: not an array, but convertible to one."""

    def __array__(self, dtype=None, copy=None):
        return np.asarray(Z, dtype)


TAKEN = {
    "lists": Z.tolist(),
    "tuples": tuple(map(tuple, Z.tolist())),
    "a list of arrays": list(Z),
    "a list of tensors": lambda: [keras.ops.convert_to_tensor(row) for row in Z],
    "convertible to an array": Rows(),
    "half precision": lambda: keras.ops.cast(Z, "bfloat16"),
}


@pytest.mark.parametrize("kind", TAKEN)
def test_embeddings_of_every_kind(kind):
    given = TAKEN[kind]() if callable(TAKEN[kind]) else TAKEN[kind]
    expected = float(losses.SNCALoss()(np.array([0, 0, 1, 1]), Z))
    rel = 1e-2 if kind == "half precision" else 1e-6
    assert float(losses.SNCALoss()([0, 0, 1, 1], given)) == pytest.approx(expected, rel=rel)


def test_a_list_of_tensors_has_a_gradient():
    def loss(class_ids, embeddings):
        return losses.SNCALoss()(class_ids, [embeddings[row] for row in range(4)])

    ids = np.array([0, 0, 1, 1])
    value, gradient = value_and_gradient(loss, ids, Z, "float32")
    whole_value, whole_gradient = value_and_gradient(losses.SNCALoss(), ids, Z, "float32")
    assert value == pytest.approx(whole_value, rel=1e-6)
    np.testing.assert_allclose(gradient, whole_gradient, rtol=1e-4, atol=1e-6)


@pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="no such tensors there")
def test_text_tensors():
    import tensorflow as tf

    text = tf.constant(["a", "b"])
    for loss in (losses.SNCALoss(), addons.TripletHardLoss()):
        with pytest.raises(ArgumentTypeError, match="y_pred must be .* but got dtype string"):
            loss([0, 1], text)
        with pytest.raises(ArgumentTypeError, match="y_true must be .* but got dtype string"):
            loss(text, Z[:2])
