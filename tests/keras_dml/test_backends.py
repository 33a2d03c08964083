"""Checks of JAX and PyTorch that other tests lack: several devices, files, and export.

Each check needs processes with the right backend. Tests that run on all three backends in one
process have the mark `any_backend`.
"""

import importlib.util
import json

import numpy as np
import pytest
from loss_cases import NON_DEFAULT
from processes import difference, run_python


def run(backend, *words, **environment):
    """Return the last line that `python WORDS` prints on a backend."""
    if importlib.util.find_spec(backend) is None:
        pytest.skip(f"{backend} is not installed")
    return run_python(*words, KERAS_BACKEND=backend, **environment).strip().splitlines()[-1]


# One process each: RankMI, other kinds of training, and the losses, distributed in turn.
GROUPS = 6
SPREAD = {
    "RankMI": ["rankmi_model"],
    "others": ["dropout", "proxies", "chunks", "memory", "weighted", "masked"],
    "optimizers": ["sgd", "velocity", "adam", "clipped", "averaged"],
} | {
    f"losses {group + 1} of {GROUPS}": [str(case) for case in NON_DEFAULT[group::GROUPS]]
    for group in range(GROUPS)
}
# Each program is compiled twice and runs for milliseconds.
CHEAP = {"JAX_DISABLE_MOST_OPTIMIZATIONS": "1"}
EIGHT = "--xla_force_host_platform_device_count=8 --xla_cpu_use_fusion_emitters=false"


@pytest.mark.slow
@pytest.mark.thorough
@pytest.mark.parametrize("cases", SPREAD.values(), ids=SPREAD)
def test_eight_devices_of_jax_equal_one_device(cases):
    words = ["-m", "tests.support.distributed_training", *cases]
    found = json.loads(run("jax", *words, XLA_FLAGS=EIGHT, **CHEAP))
    assert found["devices"] == 8 and list(found["cases"]) == cases
    for case, (one, eight) in found["cases"].items():
        assert difference(one["weights"], eight["weights"]) < 2e-4, case
        assert eight["logs"] == pytest.approx(one["logs"], rel=2e-3, abs=1e-4), case


TRAIN = """
import sys, pathlib
import keras, numpy as np
from keras_dml import losses, models
first, second = map(pathlib.Path, sys.argv[1:])
rng = np.random.default_rng(0)
y = np.tile(np.repeat(np.arange(4), 3), 4)
x = rng.normal(size=(48, 6)).astype("float32") + y[:, None]
if not first.exists():
    keras.utils.set_random_seed(0)
    network = models.StatisticsNetwork(hidden=4, depth=0, seed=1)
    embedding = keras.Sequential([keras.Input((6,)), keras.layers.Dense(4)])
    model = models.RankMI(embedding, statistics_network=network, sampling="all")
    model.compile(keras.optimizers.Adam(0.01), keras.optimizers.Adam(0.01))
    model.fit(x, y, batch_size=12, epochs=1, shuffle=False, verbose=0)
    model.save(first)
model = keras.saving.load_model(first)
model.fit(x, y, batch_size=12, epochs=1, shuffle=False, verbose=0)
assert int(model.step.numpy()) == 8
np.savez(second, *model.get_weights())
"""


@pytest.mark.slow
@pytest.mark.thorough
@pytest.mark.parametrize("backend", ["jax", "torch"])
def test_training_continues_on_another_backend(backend, tmp_path):
    half = tmp_path / "half.keras"
    for name in ("tensorflow", backend):
        run(name, "-c", f"{TRAIN}\nprint('trained')", half, tmp_path / f"{name}.npz")
    weights = [list(np.load(tmp_path / f"{name}.npz").values()) for name in ("tensorflow", backend)]
    assert difference(*weights) < 1e-3


HALF = """
import keras, numpy as np
from keras_dml import losses, models
keras.config.set_dtype_policy("mixed_float16")
rng = np.random.default_rng(0)
y = np.repeat(np.arange(4), 2)
x = rng.normal(size=(8, 6)).astype("float32") + y[:, None]
def embedding():
    keras.utils.set_random_seed(0)
    return keras.Sequential([keras.Input((6,)), keras.layers.Dense(4)])
def scaling():
    return keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.1), 1024.0)
whole, pieces = embedding(), models.CachedGradients(embedding(), 3)
for model in (whole, pieces):
    model.compile(scaling(), losses.SupConLoss())
    model.fit(x, y, epochs=2, shuffle=False, verbose=0)
    assert float(model.optimizer.step_counter.value) == 2
for one, other in zip(whole.get_weights(), pieces.get_weights()):
    np.testing.assert_allclose(one, other, atol=5e-3)
rankmi = models.RankMI(embedding())
before = rankmi.embedding.get_weights()[0].copy()
rankmi.compile(scaling(), statistics_optimizer=scaling())
assert np.isfinite(rankmi.fit(x, y, verbose=0, epochs=2).history["loss"]).all()
assert np.abs(rankmi.embedding.get_weights()[0] - before).max() > 1e-6
"""


@pytest.mark.slow
def test_scaled_losses_on_jax():
    run("jax", "-c", f"{HALF}\nprint('trained')")


EXPORT = """
import sys
import keras, numpy as np, tensorflow as tf
from keras_dml import export, models, retrieval
keras.utils.set_random_seed(0)
backbone = models.build_backbone("small_convnet", image_size=8, weights=None)
model = models.embedding_model(backbone, 4)
scale = 0.5
def preprocessing(encoded):
    image = tf.io.decode_png(encoded, channels=3)
    return tf.ensure_shape(tf.cast(image, "float32") * scale, [8, 8, 3])
images = np.random.default_rng(0).integers(0, 255, (5, 8, 8, 3)).astype("uint8")
files = [tf.io.encode_png(image).numpy() for image in images]
z = keras.ops.convert_to_numpy(model(images.astype("float32") * scale))
index = retrieval.ExactIndex(z)
export.check_export(model, preprocessing)
export.export_saved_model(model, sys.argv[1], preprocessing, index, neighbors=2, threshold=0.9999)
served = tf.saved_model.load(sys.argv[1])
found = served.signatures["serving_default"](images=tf.constant(files))["embeddings"].numpy()
np.testing.assert_allclose(found, z, rtol=1e-4, atol=1e-4 * np.abs(z).max())
searched = served.signatures["search"](images=tf.constant(files))
assert searched["ids"].numpy()[:, 0].tolist() == list(range(5))
assert searched["matches"].numpy()[:, 0].all()
class Mine(keras.layers.Layer):
    def call(self, x):
        return x
try:
    mine = keras.Model(model.input, Mine()(model.output))
    export.export_saved_model(mine, sys.argv[1] + "2", preprocessing)
except ValueError as error:
    print(error)
"""


@pytest.mark.slow
@pytest.mark.thorough
@pytest.mark.parametrize("backend", ["jax", "torch"])
def test_tensorflow_exports_models_of_another_backend(backend, tmp_path):
    said = run(backend, "-c", EXPORT, tmp_path / "saved")
    assert said.startswith("model must have only layers whose classes are in an importable module")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["saved"]
