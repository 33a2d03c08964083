"""Names and files from before `keras_dml.layers`."""

import pathlib

import keras
import numpy as np
import pytest
import tiers

from keras_dml import layers, models
from keras_dml._backend.cloning import all_layers

pytestmark = pytest.mark.any_backend


@pytest.mark.parametrize("name", layers.__all__)
def test_a_former_name_is_the_same_object_with_a_warning(name):
    with pytest.warns(DeprecationWarning, match=f"models.{name} is deprecated.*layers.{name}") as w:
        former = getattr(models, name)
    assert former is getattr(layers, name)
    assert name not in models.__all__
    assert w[0].filename == __file__


def test_a_name_that_never_was_in_models():
    with pytest.raises(AttributeError, match="'keras_dml.models' has no attribute 'ProxyHed'"):
        models.ProxyHed  # noqa: B018


@tiers.thorough_elsewhere
def test_a_file_of_0_2_loads_and_computes_the_same():
    """Release 0.2.0 wrote the file: every layer of the room in a `CachedGradients`, compiled."""
    model = keras.saving.load_model(pathlib.Path(__file__).parent / "layers_of_0_2.keras")
    found = {type(layer) for layer in all_layers(model)}
    ours = {value for value in vars(layers).values() if isinstance(value, type)}
    assert ours - found == {layers.CenterRegularizer}
    head = model.get_layer("cosines")
    assert type(head.proxies_regularizer) is layers.CenterRegularizer
    given = np.linspace(0, 1, 96, dtype="float32").reshape(3, 4, 4, 2)
    outputs = model.predict(given, verbose=0)
    cosines = [[0.2089, 0.1487, 0.6814], [0.2469, 0.1347, 0.7471], [0.2522, 0.1288, 0.7517]]
    np.testing.assert_allclose(outputs["cosines"], cosines, atol=1e-4)
    boundary = [-0.3649, 0.5322, 0.1489, 0.5265, 0.5331, 1.2, 1.2, 1.2]
    np.testing.assert_allclose(outputs["boundary"][2], boundary, atol=1e-4)
    ids = {"cosines": np.arange(3), "boundary": np.array([0, 0, 1])}
    assert model.evaluate(given, ids, verbose=0)[0] == pytest.approx(45.5478, rel=1e-4)
