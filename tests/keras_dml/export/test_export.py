"""SavedModels: the model, its check before a training, and an index in it."""

import os
import random
import textwrap
from unittest import mock

import keras
import numpy as np
import pytest
import tensorflow as tf
import tiers
from batches import functional
from image_files import encode, smooth
from processes import run_python
from retrieval_sets import OPERATIONS_LOAD, needs_operations

from keras_dml.export import check_export, export_saved_model
from keras_dml.metrics import verification
from keras_dml.retrieval import METRICS, ExactIndex, ScannIndex, TreeAH, scann_loads
from keras_dml.retrieval.serving import SearchModule
from pipelines import EvaluationTransform

SIZE, DIMENSIONS = 8, 6


class Doubled(keras.layers.Layer):
    """An unregistered layer that creates another layer, which has the global dtype policy."""

    def __init__(self, units, **kwargs):
        super().__init__(**kwargs)
        self.units = units
        self.inner = keras.layers.Dense(units, name="inner")

    def build(self, input_shape):
        self.inner.build(input_shape)

    def call(self, inputs):
        return self.inner(inputs) * 2

    def get_config(self):
        return {**super().get_config(), "units": self.units}


def with_random_weights(model, low):
    generator = np.random.default_rng(0)
    model.set_weights([generator.uniform(low, 1, w.shape) for w in model.get_weights()])
    return model


def nested_model(name="whole", backbone="backbone", embedding="embedding", first="first"):
    inputs = keras.Input((None, None, 3))
    features = keras.layers.Rescaling(1 / 127.5, offset=-1)(inputs)
    features = keras.layers.Conv2D(4, 3, strides=2, name=first)(features)
    features = keras.layers.BatchNormalization(name="norm")(features)
    backbone = keras.Model(inputs, keras.ops.relu(features), name=backbone)
    layers = [keras.layers.GlobalAveragePooling2D(), keras.layers.Dropout(0.5), Doubled(8)]
    head = keras.Sequential([keras.Input((None, None, 4)), *layers], name="head")
    layers = [backbone, head, keras.layers.Dense(DIMENSIONS, name=embedding)]
    return with_random_weights(functional((SIZE, SIZE, 3), *layers, name=name), 0.1)


def flat_model():
    layers = [keras.layers.Rescaling(1 / 127.5, offset=-1), keras.layers.Flatten()]
    layers = [keras.Input((SIZE, SIZE, 3)), *layers, Doubled(DIMENSIONS)]
    return with_random_weights(keras.Sequential(layers), -1)


def pictures(n=300):
    """Return noise images, of which the first forty are equal."""
    pixels = np.random.default_rng(0).integers(0, 256, (300, SIZE, SIZE, 3), dtype=np.uint8)
    pixels[1:40] = pixels[0]
    return pixels[:n]


def encoded(n):
    return [tf.io.encode_png(one).numpy() for one in pictures(n)]


def embeddings(model):
    """Return the embeddings of the pictures, computed in a graph as in a SavedModel."""
    return model.predict(pictures().astype(np.float32), verbose=0)


def preprocessing(data):
    image = tf.io.decode_image(data, channels=3, expand_animations=False)
    image = tf.cast(image, tf.float32)
    if tf.shape(image)[0] > 4096:  # AutoGraph must convert this branch
        image = image * 0.0
    return tf.ensure_shape(image, [SIZE, SIZE, 3])


@pytest.mark.slow
def test_a_mirrored_model_in_mixed_precision_is_copied_and_exported_in_float32(tmp_path):
    code = """
        import sys, numpy as np, tensorflow as tf, keras
        tf.config.set_logical_device_configuration(
            tf.config.list_physical_devices("CPU")[0],
            [tf.config.LogicalDeviceConfiguration()] * 2)
        from keras_dml.export import export_saved_model, float32_copy
        def build():
            return keras.Sequential([
                keras.Input((4, 4, 3)), keras.layers.BatchNormalization(),
                keras.layers.Flatten(), keras.layers.Dense(2)])
        plain = build()
        keras.config.set_dtype_policy("mixed_bfloat16")
        with tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"]).scope():
            model = build()
            model.compile("sgd", "mse")
        x = np.random.default_rng(0).normal(3, 2, (8, 4, 4, 3)).astype("float32")
        model.fit(x, np.zeros((8, 2)), batch_size=4, epochs=2, verbose=0)
        plain.set_weights(model.get_weights())
        expected = plain.predict(x, verbose=0)
        copy = float32_copy(model)
        assert not any(isinstance(w.value, tf.distribute.DistributedValues) for w in copy.weights)
        np.testing.assert_allclose(copy.predict(x, verbose=0), expected, rtol=1e-5, atol=1e-5)
        export_saved_model(model, sys.argv[1], lambda data: tf.ensure_shape(
            tf.cast(tf.io.decode_png(data, channels=3), tf.float32), [4, 4, 3]))
        loaded = tf.saved_model.load(sys.argv[1])
        served = loaded.signatures["embed_images"](tf.constant(x))["embeddings"]
        np.testing.assert_allclose(served, expected, rtol=1e-5, atol=1e-5)
        """
    run_python("-c", textwrap.dedent(code), tmp_path / "saved_model")


def test_a_failed_export_leaves_the_old_one(tmp_path):
    model, target = nested_model(), tmp_path / "saved_model"
    export_saved_model(model, target, preprocessing)
    full = mock.patch("keras_dml.export.saved_model.write_checksums", side_effect=OSError("full"))
    with full, pytest.raises(OSError, match="full"):
        export_saved_model(model, target, preprocessing)
    assert [entry.name for entry in tmp_path.iterdir()] == ["saved_model"]
    loaded = tf.saved_model.load(target)
    assert loaded.serving_default(tf.constant(encoded(3)))["embeddings"].shape == (3, DIMENSIONS)


def test_export_refuses_models_that_it_cannot_serve(tmp_path):
    model, new = nested_model(), tmp_path / "new"
    maps = keras.Model(model.input, model.get_layer("backbone")(model.input))
    flat = functional((4,), keras.layers.Dense(2))
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "mine.jpg").write_bytes(b"precious")
    small, whole = tf.zeros([4, 4, 3]), tf.zeros([SIZE, SIZE, 3], tf.uint8)
    for one, path, function, error, message in (
        (model, new / "model", preprocessing, ValueError, "path must be in an existing folder"),
        (model, tmp_path / "photos", preprocessing, ValueError, "a new folder, or a SavedModel"),
        (model, new, None, TypeError, "preprocessing must be a function"),
        (model, new, lambda _: small, ValueError, r"preprocessing must return .*\(8, 8, 3\)"),
        (model, new, lambda _: whole, ValueError, "model's input, float32"),
        (maps, new, preprocessing, ValueError, r"output shape \(None, 3, 3, 4\)"),
        (flat, new, preprocessing, ValueError, r"input shape \(None, 4\)"),
        (keras.layers.Dense(2), new, preprocessing, ValueError, "functional or sequential"),
    ):
        with pytest.raises(error, match=message):
            export_saved_model(one, path, function)
    assert [entry.name for entry in tmp_path.iterdir()] == ["photos"]


def test_export_refuses_indexes_and_thresholds_that_do_not_fit(tmp_path):
    model = flat_model()
    (point,) = verification(embeddings(model), np.arange(300) % 50, [0.05], "l2").points
    index = ExactIndex(np.eye(DIMENSIONS))
    for given, neighbors, threshold, error, message in (
        (ExactIndex(np.eye(5)), 3, None, ValueError, "of 6 dimensions, but got an index of 5"),
        (index, 7, None, ValueError, "neighbors must be .* 1 to 6, but got 7"),
        (index, 0, None, ValueError, "but got 0"),
        (np.eye(DIMENSIONS), 3, None, TypeError, "index must be None or a keras_dml.retrieval.Ind"),
        (None, 3, 0.5, ValueError, "threshold must be None without an index"),
        (index, 3, point, ValueError, "of the index's metric, cosine, but got .*metric=l2"),
        (index, 3, float("nan"), ValueError, "threshold must be a finite number"),
    ):
        with pytest.raises(error, match=message):
            export_saved_model(model, tmp_path / "m", preprocessing, given, neighbors, threshold)
    assert not any(tmp_path.iterdir())


def test_signatures_take_empty_batches_and_refuse_other_sizes(tmp_path):
    layers = keras.layers.GlobalAveragePooling2D(), keras.layers.Dense(5)
    export_saved_model(functional((None, None, 3), *layers), tmp_path / "model", preprocessing)
    loaded = tf.saved_model.load(str(tmp_path / "model"))
    embed = loaded.signatures["embed_images"]
    for count in (0, 2):
        images = pictures(count).astype(np.float32)
        assert embed(images=images)["embeddings"].shape == (count, 5)
    with pytest.raises(tf.errors.InvalidArgumentError, match="is not compatible with expected"):
        embed(images=tf.zeros([2, SIZE + 1, SIZE + 1, 3]))
    none = loaded.signatures["serving_default"](tf.constant([], tf.string))
    assert none["embeddings"].shape == (0, 5)


@pytest.mark.parametrize("name", ["a b", "_outer"])
def test_the_name_of_the_model_does_not_matter(name, tmp_path, capfd):
    model = nested_model(name)
    check_export(model, preprocessing)
    export_saved_model(model, tmp_path / "served", preprocessing)
    assert capfd.readouterr().out == ""
    loaded = tf.saved_model.load(str(tmp_path / "served"))
    some = pictures(42)[38:].astype(np.float32)
    expected = model(some).numpy()
    assert expected.std(axis=0).min() > 0.01
    for signature, images in (("embed_images", some), ("serving_default", encoded(42)[38:])):
        found = loaded.signatures[signature](tf.constant(images))["embeddings"]
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-4)
    assert model.name == name


@pytest.mark.parametrize(
    ("names", "message"),
    [
        ({"embedding": "a b"}, "letters, digits.* but got 'a b'"),
        ({"backbone": "_inner"}, "begin with a letter or digit, but got '_inner'"),
        ({"first": "_first"}, "begin with a letter or digit, but got '_first'"),
    ],
)
def test_names_that_tensorflow_refuses_are_reported(names, message, tmp_path):
    model = nested_model(**names)
    with pytest.raises(ValueError, match=message):
        check_export(model, preprocessing)
    with pytest.raises(ValueError, match=message):
        export_saved_model(model, tmp_path / "served", preprocessing)
    assert not list(tmp_path.iterdir())


def test_the_check_draws_no_random_numbers():
    keras.config.set_dtype_policy("mixed_bfloat16")  # its copy has initializers
    model = nested_model()
    keras.config.set_dtype_policy("float32")
    drawn = []
    for check in (True, False):
        keras.utils.set_random_seed(3)
        if check:
            check_export(model, preprocessing)
        of_keras = keras.initializers.GlorotUniform()((4,)), keras.random.normal((4,))
        drawn.append([random.random(), np.random.uniform(), *np.ravel(of_keras)])
    assert drawn[0] == drawn[1]


@pytest.mark.parametrize(
    ("kind", "metric"),
    [
        ("exact", "l2"),
        pytest.param("tree", "cosine", marks=needs_operations),
        pytest.param("exact", "cosine", marks=tiers.THOROUGH),
        pytest.param("tree", "l2", marks=[needs_operations, *tiers.THOROUGH]),
    ],
)
def test_search_in_a_saved_model_equals_the_index(kind, metric, tmp_path):
    model = flat_model()
    z = embeddings(model)
    if kind == "exact":
        index = ExactIndex(z, metric, [f"é{number}.jpg" for number in range(300)])
    else:
        # One leaf has fewer items than the twenty neighbors of some queries.
        tree = TreeAH(num_leaves=30, leaves_to_search=1)
        index = ScannIndex(z, metric, np.arange(300) * 5, tree)
    # Each picture has a different item; the threshold is the score of another one.
    (point,) = verification(z, np.arange(300) % 50, [0.05], metric, replicates=0).points
    threshold = point if metric == "cosine" else point.threshold
    folder = tmp_path / "saved_model"
    export_saved_model(model, folder, preprocessing, index, np.int64(20), threshold)
    loaded = tf.saved_model.load(str(folder))  # a reference keeps the variables alive
    answer = loaded.signatures["search"](tf.constant(encoded(100)))
    name = {"cosine": "similarities", "l2": "distances"}[metric]
    assert set(answer) == {"ids", name, "matches"}
    found, scores = answer["ids"].numpy(), answer[name].numpy()
    expected_ids, expected = index.search(z[:100], 20)
    np.testing.assert_allclose(scores, expected, rtol=1e-5, atol=1e-5)
    if kind == "exact":
        found = np.array([[one.decode() for one in row] for row in found.tolist()])
    assert found.dtype == expected_ids.dtype
    # Rows with the forty equal pictures have ties, which float32 products cut arbitrarily.
    alone = (np.abs(np.diff(expected)) > 1e-5).all(axis=1)
    assert alone.sum() > 40
    np.testing.assert_array_equal(found[alone], expected_ids[alone])
    side = scores >= point.threshold if metric == "cosine" else scores <= point.threshold
    np.testing.assert_array_equal(answer["matches"].numpy(), side)
    assert side.any() and not side.all()
    if kind == "exact":
        assert side[:, 0].all()
    else:
        # ScaNN returns fewer than twenty columns for a query that is alone.
        for picture, data in list(enumerate(encoded(100)))[::10]:
            one = loaded.signatures["search"](tf.constant([data]))
            _, expected = index.search(z[picture : picture + 1], 20)
            np.testing.assert_allclose(one[name], expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("metric", METRICS)
def test_the_module_has_integer_ids_and_takes_batches_of_any_size(metric, monkeypatch):
    monkeypatch.setattr("keras_dml.retrieval.serving._SCORE_BLOCK", 300 * 7)
    rows = np.random.default_rng(0).normal(size=(300, 5)).astype(np.float32)
    index = ExactIndex(rows, metric, [f"\udce9{number}" for number in range(300)])
    module = index.serving_module()
    assert isinstance(module, SearchModule)
    for n in (1, 7, 100):
        found, scores = module.search(tf.constant(rows[:n]), 3)
        expected_ids, expected = index.search(rows[:n], 3)
        names = [[one.decode("utf-8", "surrogateescape") for one in row] for row in found.numpy()]
        assert names == expected_ids.tolist()
        np.testing.assert_allclose(scores, expected, atol=1e-6)
    for empty in (tf.zeros([1, 5]), tf.zeros([0, 5])):
        ids, scores = module.search(empty, 300)
        assert ids.shape == scores.shape == (len(empty), 300)
    with pytest.raises(tf.errors.InvalidArgumentError, match="an embedding is not finite"):
        module.search(tf.constant([[np.nan] * 5], tf.float32), 3)


@pytest.mark.slow
def test_moved_saved_models_work_in_a_process_without_this_package(tmp_path):
    model = flat_model()
    *weights, bias = model.get_weights()
    model.set_weights([*weights, bias + 30])
    z = embeddings(model)
    indexes = {"exact": ExactIndex(z, "l2", [f"n{number}" for number in range(300)])}
    if scann_loads():
        indexes["brute"] = ScannIndex(z, "l2")  # needs no operation of ScaNN
    if OPERATIONS_LOAD:
        indexes["tree"] = ScannIndex(z, tree=TreeAH(30, 3))
        assert indexes["tree"].parameters()["lift"]  # its embeddings have a long mean
    (tmp_path / "elsewhere").mkdir()
    np.save(tmp_path / "images.npy", np.array(encoded(60)[40:]))
    for name, index in indexes.items():
        export_saved_model(model, tmp_path / name, preprocessing, index, 5)
        os.rename(tmp_path / name, tmp_path / "elsewhere" / name)
    code = """
        import sys, numpy as np, tensorflow as tf
        folder, *names = sys.argv[1:]
        images = np.load(folder + "/images.npy").tolist()
        for name in names:
            try:
                loaded = tf.saved_model.load(folder + "/elsewhere/" + name)
            except Exception as error:
                assert name == "tree" and "Scann>" in str(error), error
                import scann
                loaded = tf.saved_model.load(folder + "/elsewhere/" + name)
            assert name == "tree" or "scann" not in sys.modules
            ids = loaded.signatures["search"](tf.constant(images))["ids"].numpy()
            embed = loaded.signatures["serving_default"]
            try:
                embed(tf.constant([images[0], b"no image"]))
            except tf.errors.InvalidArgumentError:
                after_error = embed(tf.constant(images))["embeddings"]
            ids = ids.astype("S" if name == "exact" else "int64")
            np.savez(f"{folder}/{name}.npz", ids=ids, embeddings=after_error)
        assert not {"keras_dml", "pipelines"} & set(sys.modules)
        """
    run_python("-c", textwrap.dedent(code), tmp_path, *indexes)
    for name, index in indexes.items():
        expected, _ = index.search(z[40:60], 5)
        with np.load(tmp_path / f"{name}.npz") as found:
            np.testing.assert_array_equal(found["ids"].astype(expected.dtype), expected)
            np.testing.assert_allclose(found["embeddings"], z[40:60], rtol=1e-5, atol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("scale", [2.0**-115, 2.0**-80, 2.0**110])
def test_the_scale_of_embeddings_does_not_change_the_neighbors(scale):
    rows = np.random.default_rng(0).normal(size=(50, 6)).astype(np.float32) * np.float32(scale)
    module = SearchModule(rows, np.arange(50), "l2", np.zeros(6))
    ids, distances = module.search(tf.constant(rows[:9] / 2), 5)
    expected, expected_distances = ExactIndex(rows, "l2").search(rows[:9] / 2, 5)
    np.testing.assert_array_equal(ids, expected)
    np.testing.assert_allclose(distances, expected_distances, rtol=1e-6)


@pytest.mark.slow
def test_a_saved_model_refuses_large_images(tmp_path):
    transform = EvaluationTransform(SIZE, max_pixels=100)
    export_saved_model(nested_model(), tmp_path / "model", transform)
    embed = tf.saved_model.load(str(tmp_path / "model")).signatures["serving_default"]
    files = [encode(smooth(side, 10), "PNG") for side in (10, 11)]
    name = next(iter(embed.structured_input_signature[1]))
    assert embed(**{name: tf.constant(files[:1])})["embeddings"].shape == (1, DIMENSIONS)
    with pytest.raises(tf.errors.InvalidArgumentError, match="an image of more than 100 pixels"):
        embed(**{name: tf.constant(files)})
