"""`import keras_dml` with only Keras, NumPy, and one backend: features, and errors of the rest."""

import importlib.util
import re
import sys

import numpy as np
import pytest
from without import run_without

import keras_dml
from keras_dml import metrics
from keras_dml._common.errors import ArgumentError
from keras_dml._common.extras import MissingExtraError, check_backend

OTHERS = ("tensorflow", "scann", "tensorflow_datasets", "matplotlib", "sklearn", "tqdm", "PIL")
WORKS = """
import sys
import numpy as np
import keras, keras_dml
loaded = sorted({m.partition(".")[0] for m in sys.modules} & set(%r) | {
    m for m in sys.modules if m in ("pipelines", "keras_dml.retrieval", "keras_dml.export")})
from keras_dml import *
random = np.random.default_rng(0)
x = random.uniform(0, 255, (32, 16, 16, 3)).astype("float32")
y = np.repeat(np.arange(8), 4)
backbone = models.build_backbone("small_convnet", image_size=16, weights=None)
model = models.embedding_model(backbone, 8)
loss = losses.MultiSimilarityLoss()
optimizer = optimizers.CoupledAdam(1e-3, coupled_weight_decay=1e-4)
model.compile(optimizer, loss, metrics=[metrics.LossPart(loss, "tightness")])
logs = model.fit(x, y, verbose=0, callbacks=[callbacks.RetrievalEvaluation((x, y))]).history
z = model.predict(x, verbose=0)
scores = metrics.evaluate(z, y, clustering=False)
ids, _ = retrieval.build_index(z).search(z, 1)
turns = models.RankMI(
    model, statistics_network=models.StatisticsNetwork(hidden=4, depth=0)
)
turns.compile("adam", "adam")
logs |= turns.fit(x, y, batch_size=16, verbose=0).history
bound = metrics.mutual_information_bound(z, y, steps=3).nats
plain = models.DistributedModel(model.inputs, model.outputs)
memory = models.CrossBatchMemory(models.CachedGradients(
    models.with_frozen_statistics(plain), 8), 32, start_step=0)
memory.compile("sgd", losses.ContrastiveLoss())
logs |= {"memory": memory.fit(x, y, batch_size=16, verbose=0).history["loss"]}
addon = float(addons.TripletSemiHardLoss()(y, z))
assert (keras.backend.backend(), loaded) == (sys.argv[1], [])
assert np.isfinite([addon, bound, *sum(logs.values(), [])]).all()
assert {"tightness", "loss", "statistics_loss", "beta", "memory"} <= set(logs)
np.testing.assert_allclose(logs["val_recall@1"], scores["recall@1/cosine"])
assert ids[:, 0].tolist() == list(range(32))
for call in (
    lambda: metrics.evaluate(z, y),
    lambda: export.export_saved_model(model, "saved", lambda image: image),
    lambda: retrieval.ExactIndex(z).serving_module(),
    lambda: retrieval.ScannIndex(z),
    lambda: __import__("pipelines").training_batches,
):
    try:
        print(call())
    except Exception as error:
        print(f"{type(error).__name__}: {error}")
""" % (OTHERS,)  # noqa: UP031, braces are the program's
ERRORS = (
    ("clustering_scores .*clustering=False. needs sklearn", "run"),
    ("export_saved_model needs tensorflow", "tensorflow"),
    ("an index inside a SavedModel needs tensorflow", "tensorflow"),
    ("ScannIndex needs scann", "search"),
    ("pipelines.training_batches needs tensorflow", "tensorflow"),
)


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["jax", "torch"])
def test_it_works_without_extras_and_names_the_extras_to_install(backend, tmp_path):
    if importlib.util.find_spec(backend) is None:
        pytest.skip(f"{backend} is not installed")
    done = run_without(OTHERS, ["-c", WORKS, backend], tmp_path, KERAS_BACKEND=backend)
    assert done.returncode == 0, done.stderr
    for line, (what, extra) in zip(done.stdout.splitlines()[-5:], ERRORS, strict=True):
        pattern = rf"MissingExtraError: {what}: pip install 'keras-dml\[{extra}\]'$"
        assert re.match(pattern, line), line


ON_JAX = """
import sys
import keras
before = set(sys.modules)  # Keras imports matplotlib where it is installed
import keras_dml
added = {name.partition(".")[0] for name in set(sys.modules) - before}
print(sorted({"tensorflow", "scann", "matplotlib", "tensorflow_datasets", "pipelines"} & added))
import numpy as np
from keras_dml import losses, metrics, mining, models

def encoder():
    return keras.Sequential([keras.Input((6,)), keras.layers.Dense(4)])

first, second = np.random.default_rng(0).normal(size=(2, 12, 6)).astype("float32")
ids = np.arange(12) // 2
loss = losses.NTXentLoss(0.2, mining=mining.Hard())
loss.between(ids, first, ids, second)
losses.MatryoshkaLoss(loss, (3, 6)).between(ids, first, ids, second)
model = models.CrossBatchMemory(encoder(), 24, start_step=0)
model.compile("adam", loss, metrics=[metrics.LossPart(loss, "tightness")])
model.fit(first, ids, verbose=0)
model.evaluate(first, ids, verbose=0)
pair = models.DualEncoder(encoder(), encoder(), scale=2.0)
for model in (pair, models.CrossBatchMemory(models.CachedGradients(pair, 5), 24, start_step=0)):
    model.compile("adam", loss)
    model.fit([first, second], ids, verbose=0)
print("tensorflow" in sys.modules)
"""


@pytest.mark.slow
def test_import_and_training_on_another_backend_load_no_installed_tensorflow(tmp_path):
    done = run_without((), ["-c", ON_JAX], tmp_path, KERAS_BACKEND="jax")
    assert done.returncode == 0, done.stderr
    assert done.stdout == "[]\nFalse\n"


def test_optional_packages_are_detected():
    assert {"addons", "export", "retrieval", "losses"} <= set(dir(keras_dml))
    assert keras_dml.export.export_saved_model and keras_dml.addons.TripletSemiHardLoss
    with pytest.raises(AttributeError, match="'keras_dml' has no attribute 'loses'"):
        keras_dml.loses  # noqa: B018


def test_a_long_search_without_tqdm_has_no_bar(monkeypatch):
    monkeypatch.setitem(sys.modules, "tqdm", None)
    assert metrics.recall_at_k(np.eye(4), [0, 0, 1, 1], [1, 3])[3] == 1.0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("backend", "blocked", "last"),
    [
        ("foo", (), "ArgumentError: KERAS_BACKEND must be tensorflow, jax, or torch, but got foo"),
        ("", ("tensorflow", "jax", "torch"), "needs tensorflow: .*keras-dml.tensorflow"),
        ("torch", ("tensorflow", "torch"), "needs torch: .*keras-dml.torch.*set KERAS_BACKEND=jax"),
    ],
)
def test_a_missing_backend_is_one_line(backend, blocked, last, tmp_path):
    if "jax" not in blocked:
        pytest.importorskip("jax")
    words = ["-c", "from keras_dml import losses"]
    done = run_without(blocked, words, tmp_path, KERAS_BACKEND=backend, KERAS_HOME=str(tmp_path))
    assert done.returncode == 1
    assert re.search(last, done.stderr.splitlines()[-1])
    assert "another exception" not in done.stderr


def test_the_backend_of_a_command_is_checked(monkeypatch):
    check_backend("tensorflow")
    with pytest.raises(ArgumentError, match="KERAS_BACKEND must be .* but got tf"):
        check_backend("tf")
    monkeypatch.setattr(importlib.util, "find_spec", {"tensorflow": "here"}.get)
    with pytest.raises(MissingExtraError, match=r"keras-dml\[jax\]', or set KERAS_BACKEND=tens"):
        check_backend("jax")
