"""Keras knows the classes of keras_dml, in whatever order the packages are imported."""

import importlib.util

import keras
import pytest
from without import run_without

from keras_dml import losses, models

pytestmark = [pytest.mark.any_backend, pytest.mark.slow]

FIRST = "import pipelines, keras_dml"
LOADED = """
import keras
model = keras.models.load_model("../classes.keras")
print(type(model.loss).__module__, type(model.layers[-1]).__name__)
"""


@pytest.mark.parametrize(
    "before",
    [
        FIRST,
        "import pipelines; from keras_dml import retrieval",
        # The first module that imports Keras must be complete before others import it.
        "import pipelines; import keras_dml._pairwise.pairs",
        "import experiments.options, keras_dml",
        # Looking for Keras without importing it is not the occasion.
        "import importlib.util, pipelines; importlib.util.find_spec('keras')",
    ],
)
def test_a_saved_model_loads(before, tmp_path):
    net = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3)])
    model = models.proxy_model(net, 3)
    model.compile("sgd", losses.ArcFaceLoss())
    model.save(tmp_path / "classes.keras")
    # The order is the same on every backend, and TensorFlow takes the longest to import.
    faster = before != FIRST and importlib.util.find_spec("jax") is not None
    backend = "jax" if faster else keras.backend.backend()
    done = run_without((), ["-c", before + LOADED], tmp_path, KERAS_BACKEND=backend)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "keras_dml.losses.cosine_softmax ProxyHead\n"


def test_pipelines_and_help_import_no_keras(tmp_path):
    program = """
import runpy, sys
import pipelines, keras_dml
sys.argv = ["index", "--help"]
try:
    runpy.run_module("experiments.index", run_name="__main__")
except SystemExit as end:
    assert not end.code
assert "keras" not in sys.modules
"""
    done = run_without((), ["-c", program], tmp_path)
    assert done.returncode == 0, done.stderr
