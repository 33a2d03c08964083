"""`DistributedModel` on one device: a Keras model like others.

`test_distribute.py` trains it on several.
"""

import keras
import numpy as np
import pytest

from keras_dml import losses
from keras_dml.models import DistributedModel, FunctionalDistributedModel

X = np.random.default_rng(0).normal(size=(28, 6)).astype("float32")
Y = np.arange(28) % 3


def made(cls):
    keras.utils.set_random_seed(1)
    inputs = keras.Input((6,))
    norm = keras.layers.BatchNormalization()(inputs)
    return cls(inputs, keras.layers.Dense(3)(norm), name="net")


class Subclass(DistributedModel):
    """A model that counts its steps on the replicas."""

    def __init__(self, embedding, factor=1.0):
        super().__init__(name="subclass")
        self.embedding, self.factor, self.traced = embedding, factor, 0

    def call(self, x, training=False):
        return self.factor * self.embedding(x, training=training)

    def step_on_replicas(self, data):
        self.traced += 1
        return super().step_on_replicas(data)


@pytest.mark.slow
@pytest.mark.parametrize(
    "how", [{}, {"steps_per_execution": 3}, {"run_eagerly": True}, {"jit_compile": True}]
)
def test_it_trains_and_evaluates_like_a_keras_model(how):
    """Seven batches, three steps per execution: the data ends within the third execution."""
    found = []
    for cls in (keras.Model, DistributedModel):
        model = made(cls)
        model.compile("sgd", losses.get("ce"), metrics=["accuracy"], **how)
        history = model.fit(X, Y, batch_size=4, epochs=2, shuffle=False, verbose=0).history
        history |= model.evaluate(X, Y, batch_size=4, verbose=0, return_dict=True)
        history |= model.train_on_batch(X, Y, return_dict=True)
        found.append((history, [w.tolist() for w in model.get_weights()]))
    assert found[0] == found[1]


def test_functional_models_do_not_change_subclasses():
    """Keras would turn the class itself into a functional one."""
    functional = made(DistributedModel)
    assert isinstance(functional, DistributedModel)
    model = Subclass(functional, 2.0)
    model.compile("sgd", losses.get("ce"))
    model.fit(X, Y, verbose=0)
    assert model.traced > 0
    np.testing.assert_allclose(
        model.predict(X, verbose=0), 2.0 * functional.predict(X, verbose=0), rtol=1e-6
    )
    model.average_statistics()  # nothing to do on one device


def test_a_subclass_with_inputs_and_outputs_raises_an_error_with_the_right_base():
    class Wrong(DistributedModel):
        pass

    class Right(FunctionalDistributedModel):
        pass

    with pytest.raises(TypeError, match="Wrong.*derive from FunctionalDistributedModel"):
        made(Wrong)
    assert isinstance(made(Right), DistributedModel)
