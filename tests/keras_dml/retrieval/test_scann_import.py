"""The import of ScaNN next to TensorFlow 2.20, next to another TensorFlow, and without it."""

import importlib.util
import platform
import re
import sys

import numpy as np
import pytest
from retrieval_sets import needs_operations, needs_scann
from without import run_without

from keras_dml import retrieval
from keras_dml._common.extras import MissingExtraError

SEARCH = """
import sys
import numpy as np
import keras
from keras_dml import metrics, retrieval
from keras_dml.callbacks import RetrievalEvaluation

z = np.random.default_rng(0).normal(size=(600, 8)).astype("float32")
tree = retrieval.TreeAH(num_leaves=5, leaves_to_search=5, reorder=600)
exact = retrieval.ExactIndex(z).search(z, 9)
for index in (retrieval.build_index(z), retrieval.build_index(z, tree=tree)):
    assert type(index) is retrieval.ScannIndex
    np.testing.assert_array_equal(index.search(z, 9), exact)
"""
EVALUATE = """
y = np.arange(600) // 6
scores = metrics.evaluate(z, y, clustering=False)
assert scores == metrics.evaluate(z, y, clustering=False, neighbors="exact")
assert metrics.evaluate(z, y, clustering=False, neighbors="scann").items() >= scores.items()
model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(4)])
model.compile("sgd", "mse")
evaluation = RetrievalEvaluation((z, y))
model.fit(z, z[:, :4], verbose=0, callbacks=[evaluation])
print(keras.backend.backend(), "tensorflow" in sys.modules, "scann" in sys.modules)
"""


@needs_scann
@pytest.mark.slow
@pytest.mark.parametrize("backend", ["jax", "torch"])
@pytest.mark.parametrize("blocked", [(), ("tensorflow",)])
def test_search_and_evaluation_by_scann_do_not_load_tensorflow(backend, blocked, tmp_path):
    if importlib.util.find_spec(backend) is None:
        pytest.skip(f"{backend} is not installed")
    done = run_without(blocked, ["-c", SEARCH + EVALUATE], tmp_path, KERAS_BACKEND=backend)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == f"{backend} False False"


EXPORT = """
import tensorflow as tf
module = index.serving_module()
queries = tf.constant(z[:50])
module.serve = tf.function(
    lambda z: module.search(z, 9), input_signature=[tf.TensorSpec([None, 8], tf.float32)]
)
tf.saved_model.save(module, sys.argv[1])
"""
LOAD = """
import tensorflow as tf
loaded = tf.saved_model.load(sys.argv[1])
np.testing.assert_array_equal(loaded.serve(tf.constant(z[:50]))[0], exact[0][:50])
"""


@needs_operations
@pytest.mark.slow
def test_a_tree_is_exported_and_loaded_in_any_order_of_imports(tmp_path):
    programs = [
        SEARCH + EXPORT + LOAD,
        # Other processes, which load before they export, or do not export.
        "import scann" + SEARCH + LOAD + EXPORT,
        SEARCH + "import scann" + LOAD,
    ]
    for number, program in enumerate(programs):
        (tmp_path / str(number)).mkdir()
        words = ["-c", program, str(tmp_path / "saved_tree")]
        done = run_without((), words, tmp_path / str(number), KERAS_BACKEND="tensorflow")
        assert done.returncode == 0, done.stderr


@needs_scann
def test_a_tree_in_a_saved_model_with_another_tensorflow_is_one_line(monkeypatch):
    tf = pytest.importorskip("tensorflow")

    def undefined_symbol(path):
        raise tf.errors.NotFoundError(None, None, f"{path}: undefined symbol")

    rows = np.random.default_rng(0).normal(size=(60, 4))
    index = retrieval.ScannIndex(rows, tree=retrieval.TreeAH(num_leaves=3))
    with monkeypatch.context() as other:
        other.setattr(tf, "load_op_library", undefined_symbol)
        other.setattr(tf, "__version__", "2.21.0")
        other.delitem(sys.modules, "scann", raising=False)
        other.delitem(sys.modules, "scann.scann_ops.py.scann_ops", raising=False)
        other.delattr(sys.modules["scann.scann_ops.py"], "scann_ops", raising=False)
        with pytest.raises(MissingExtraError, match="TensorFlow 2.20.* got TensorFlow 2.21.0: pip"):
            index.serving_module()
    assert index.search(rows[:3], 1)[0].tolist() == [[0], [1], [2]]


@pytest.mark.parametrize(
    ("system", "machine", "version"),
    [
        ("Linux", "aarch64", (3, 11)),
        ("Darwin", "arm64", (3, 12)),
        ("Linux", "x86_64", (3, 14)),
        ("Linux", "x86_64", (3, 13)),
    ],
)
def test_a_platform_without_a_wheel_is_one_line(system, machine, version, monkeypatch, caplog):
    monkeypatch.delitem(sys.modules, "scann", raising=False)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(platform, "system", lambda: system)
    monkeypatch.setattr(platform, "machine", lambda: machine)
    monkeypatch.setattr(sys, "version_info", version)
    retrieval.scann_loads.cache_clear()
    try:
        for _ in range(2):
            found = retrieval.build_index(np.eye(4)).search(np.eye(4), 1)[0]
    finally:
        retrieval.scann_loads.cache_clear()
    assert found.tolist() == [[0], [1], [2], [3]]
    (line,) = caplog.messages
    assert ("pip install" in line) == (version == (3, 13))
    what = "keras-dml.search" if version == (3, 13) else f"wheels only for Linux.*{machine}"
    assert re.search(f"{what}.*searching by products instead: the exact results", line)
