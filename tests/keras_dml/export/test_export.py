"""SavedModels: the model, its check before a training, and an index in it."""

import os
import random
import textwrap

import keras
import numpy as np
import pytest
import tensorflow as tf
import tiers
from batches import functional
from processes import run_python
from retrieval_sets import needs_scann

from keras_dml.export import check_export, export_saved_model
from keras_dml.metrics import verification
from keras_dml.retrieval import METRICS, ExactIndex, ScannIndex, TreeAH
from keras_dml.retrieval.serving import SearchModule

SIZE = 16


@keras.saving.register_keras_serializable("test_export")
class Doubled(keras.layers.Layer):
    """A layer that creates another layer, which has the global dtype policy."""

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


class Unregistered(Doubled):
    pass


def nested_model():
    inputs = keras.Input((None, None, 3))
    features = keras.layers.Rescaling(1 / 127.5, offset=-1)(inputs)
    features = keras.layers.Conv2D(4, 3, strides=2, name="first")(features)
    features = keras.layers.BatchNormalization(name="norm")(features)
    backbone = keras.Model(inputs, keras.ops.relu(features), name="backbone")
    layers = [keras.layers.GlobalAveragePooling2D(), keras.layers.Dropout(0.5)]
    layers += [Doubled(8, name="doubled"), Unregistered(8, name="unregistered")]
    head = keras.Sequential([keras.Input((None, None, 4)), *layers], name="head")
    inputs = keras.Input((SIZE, SIZE, 3), name="images")
    outputs = keras.layers.Dense(5, name="embedding")(head(backbone(inputs)))
    model = keras.Model(inputs, outputs, name="whole")
    generator = np.random.default_rng(0)
    model.set_weights([generator.uniform(0.1, 1, w.shape) for w in model.get_weights()])
    return model


def images(n=6, size=SIZE):
    return np.random.default_rng(1).uniform(0, 255, (n, size, size, 3)).astype(np.float32)


def encoded(n=3):
    pixels = images(n, SIZE).astype(np.uint8)
    return [tf.io.encode_png(image).numpy() for image in pixels]


def preprocessing(data):
    image = tf.io.decode_image(data, channels=3, expand_animations=False)
    image = tf.image.resize(tf.cast(image, tf.float32), [SIZE, SIZE])
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
        keras.config.set_dtype_policy("mixed_bfloat16")
        with tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"]).scope():
            model = keras.Sequential([
                keras.Input((4, 4, 3)), keras.layers.BatchNormalization(),
                keras.layers.Flatten(), keras.layers.Dense(2)])
            model.compile("sgd", "mse")
        x = np.random.default_rng(0).normal(3, 2, (8, 4, 4, 3)).astype("float32")
        model.fit(x, np.zeros((8, 2)), batch_size=4, epochs=2, verbose=0)
        copy = float32_copy(model)
        assert not any(isinstance(w.value, tf.distribute.DistributedValues) for w in copy.weights)
        for a, b in zip(copy.get_weights(), model.get_weights()):
            np.testing.assert_array_equal(a, b)
        export_saved_model(model, sys.argv[1], lambda data: tf.ensure_shape(
            tf.cast(tf.io.decode_png(data, channels=3), tf.float32), [4, 4, 3]))
        loaded = tf.saved_model.load(sys.argv[1])
        served = loaded.signatures["embed_images"](tf.constant(x))["embeddings"]
        np.testing.assert_allclose(served, copy.predict(x, verbose=0), rtol=1e-5, atol=1e-5)
        gamma, beta, kernel, bias, mean, variance = (w.numpy() for w in (
            *copy.trainable_weights, *copy.non_trainable_weights))
        expected = ((x - mean) / np.sqrt(variance + 1e-3) * gamma + beta).reshape(8, -1)
        np.testing.assert_allclose(
            copy.predict(x, verbose=0), expected @ kernel + bias, rtol=1e-4, atol=1e-4)
        """
    run_python("-c", textwrap.dedent(code), tmp_path / "saved_model")
    assert (tmp_path / "saved_model" / "saved_model.pb").is_file()


@pytest.mark.slow
def test_the_saved_model_embeds_files_in_a_process_with_only_tensorflow(tmp_path, capfd):
    model = nested_model()
    export_saved_model(model, tmp_path / "saved_model", preprocessing)
    assert capfd.readouterr().out == ""
    data = encoded()
    for number, one in enumerate(data):
        (tmp_path / f"{number}.png").write_bytes(one)
    code = """
        import sys, numpy as np, tensorflow as tf
        folder = sys.argv[1]
        serve = tf.saved_model.load(folder + "/saved_model").signatures["serving_default"]
        data = [open(f"{folder}/{i}.png", "rb").read() for i in range(3)]
        results = [serve(images=tf.constant(batch, tf.string))["embeddings"].numpy()
                   for batch in (data, data[:1])]
        try:
            serve(images=tf.constant([data[0], b"no image"]))
        except tf.errors.InvalidArgumentError:
            results.append(serve(tf.constant(data))["embeddings"].numpy())
        assert not {"keras_dml", "pipelines"} & set(sys.modules)
        np.savez(folder + "/results.npz", *results)
        """
    run_python("-c", textwrap.dedent(code), tmp_path)
    expected = model.predict(np.stack([preprocessing(one) for one in data]), verbose=0)
    with np.load(tmp_path / "results.npz") as results:
        whole, single, after_error = (results[f"arr_{i}"] for i in range(3))
    assert whole.dtype == np.float32
    assert np.abs(expected).max() > 0.1
    np.testing.assert_allclose(whole, expected, atol=1e-4)
    np.testing.assert_allclose(single, expected[:1], atol=1e-4)
    np.testing.assert_array_equal(after_error, whole)


def served(path):
    loaded = tf.saved_model.load(path)  # a reference keeps the variables alive
    return loaded.serving_default(tf.constant(encoded()))["embeddings"].numpy()


def test_a_failed_export_leaves_the_old_one(tmp_path, monkeypatch):
    model = nested_model()
    target = tmp_path / "saved_model"
    export_saved_model(model, target, preprocessing)
    rename = os.rename

    def failing(source, destination):
        if str(source).endswith(".partial"):
            raise OSError("disk full")
        rename(source, destination)

    monkeypatch.setattr(os, "rename", failing)
    with pytest.raises(OSError, match="disk full"):
        export_saved_model(model, target, preprocessing)
    assert [entry.name for entry in tmp_path.iterdir()] == ["saved_model"]
    assert served(target).shape == (3, 5)


def test_export_refuses_models_that_it_cannot_serve(tmp_path):
    model = nested_model()
    with pytest.raises(ValueError, match="path must be in an existing folder"):
        export_saved_model(model, tmp_path / "missing" / "saved_model", preprocessing)
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "mine.jpg").write_bytes(b"precious")
    with pytest.raises(ValueError, match="path must be a new folder, or a SavedModel"):
        export_saved_model(model, tmp_path / "photos", preprocessing)
    with pytest.raises(TypeError, match="preprocessing must be a function"):
        export_saved_model(model, tmp_path / "new", None)
    with pytest.raises(ValueError, match=r"preprocessing must return .*\(16, 16, 3\)"):
        export_saved_model(model, tmp_path / "new", lambda data: tf.zeros([8, 8, 3]))
    with pytest.raises(ValueError, match=r"model's input, float32"):
        export_saved_model(model, tmp_path / "new", lambda data: tf.zeros([16, 16, 3], tf.uint8))
    with pytest.raises(ValueError, match=r"output shape \(None, 7, 7, 4\)"):
        inner = keras.Model(model.input, model.get_layer("backbone")(model.input))
        export_saved_model(inner, tmp_path / "new", preprocessing)
    with pytest.raises(ValueError, match=r"input shape \(None, 4\)"):
        flat = keras.Sequential([keras.Input((4,)), keras.layers.Dense(2)])
        export_saved_model(flat, tmp_path / "new", preprocessing)
    with pytest.raises(ValueError, match="functional or sequential"):
        export_saved_model(keras.layers.Dense(2), tmp_path / "new", preprocessing)
    assert [entry.name for entry in tmp_path.iterdir()] == ["photos"]


@pytest.mark.parametrize("shape", [(SIZE, SIZE, 3), (None, None, 3)])
def test_signatures_take_empty_batches_and_refuse_other_sizes(shape, tmp_path):
    inputs = keras.Input(shape)
    outputs = keras.layers.Dense(5)(keras.layers.GlobalAveragePooling2D()(inputs))
    export_saved_model(keras.Model(inputs, outputs), tmp_path / "model", preprocessing)
    loaded = tf.saved_model.load(str(tmp_path / "model"))
    embed = loaded.signatures["embed_images"]
    for count in (0, 2):
        assert embed(images=images(count))["embeddings"].shape == (count, 5)
    for size in (SIZE - 1, SIZE + 1, 1):
        with pytest.raises(tf.errors.InvalidArgumentError, match="is not compatible with expected"):
            embed(images=tf.constant(images(2, size)))
    none = loaded.signatures["serving_default"](tf.constant([], tf.string))
    assert none["embeddings"].shape == (0, 5)


SMALL = 8


def named(layer="conv", model="outer", nested="inner"):
    images = keras.Input((SMALL, SMALL, 3), name="images")
    maps = keras.layers.Conv2D(2, 3, name=layer)(images)
    maps = keras.layers.Dropout(0.5, name=f"{layer}_drop")(maps)
    maps = functional((6, 6, 2), keras.layers.Conv2D(2, 1, name=layer), name=nested)(maps)
    return keras.Model(images, keras.layers.GlobalAveragePooling2D()(maps), name=model)


@pytest.mark.parametrize("name", ["a b", "_outer"])
def test_the_name_of_the_model_does_not_matter(name, tmp_path):
    model = named(model=name)
    x = np.random.default_rng(0).uniform(0, 255, (3, SMALL, SMALL, 3)).astype("float32")
    check_export(model, small_image)
    export_saved_model(model, tmp_path / "served", small_image)
    loaded = tf.saved_model.load(str(tmp_path / "served"))
    found = loaded.signatures["embed_images"](tf.constant(x))["embeddings"]
    np.testing.assert_allclose(found, model(x), rtol=1e-5, atol=1e-4)
    assert model.name == name


@pytest.mark.parametrize(
    ("names", "message"),
    [
        ({"layer": "a b"}, "letters, digits.* but got 'a b'"),
        ({"layer": "größe"}, "letters, digits.* but got 'größe'"),
        ({"layer": "_conv"}, "begin with a letter or digit, but got '_conv'"),
        ({"nested": "_inner"}, "begin with a letter or digit, but got '_inner'"),
    ],
)
def test_names_that_tensorflow_refuses_are_reported(names, message, tmp_path):
    model = named(**names)
    with pytest.raises(ValueError, match=message):
        check_export(model, small_image)
    with pytest.raises(ValueError, match=message):
        export_saved_model(model, tmp_path / "served", small_image)
    assert not list(tmp_path.iterdir())


def test_the_check_draws_no_random_numbers():
    keras.config.set_dtype_policy("mixed_bfloat16")  # its copy has initializers
    model = named()
    keras.config.set_dtype_policy("float32")

    def drawn(check):
        keras.utils.set_random_seed(3)
        if check:
            check_export(model, small_image)
        dense = keras.layers.Dense(4)
        dense.build((None, 4))
        return [
            random.random(),
            np.random.uniform(),
            float(tf.random.uniform(())),
            *dense.kernel.numpy().ravel(),
            *keras.random.normal((2,)).numpy(),
        ]

    np.testing.assert_array_equal(drawn(True), drawn(False))


DIMENSIONS = 6


def small_image(data):
    image = tf.io.decode_image(data, channels=3, expand_animations=False)
    return tf.ensure_shape(tf.cast(image, tf.float32), [SMALL, SMALL, 3])


def make_model():
    layers = [keras.layers.Rescaling(1 / 127.5, offset=-1)]
    layers += [keras.layers.Flatten(), keras.layers.Dense(DIMENSIONS)]
    model = keras.Sequential([keras.Input((SMALL, SMALL, 3)), *layers])
    generator = np.random.default_rng(3)
    model.set_weights([generator.normal(size=w.shape) for w in model.get_weights()])
    return model


def pictures(n=300):
    """Return noise images, of which the first forty are equal."""
    pixels = np.random.default_rng(0).integers(0, 256, (n, SMALL, SMALL, 3), dtype=np.uint8)
    pixels[1:40] = pixels[0]
    return pixels


def encoded_pictures(n):
    return [tf.io.encode_png(one).numpy() for one in pictures()[:n]]


def gallery(model):
    return model.predict(pictures().astype(np.float32), verbose=0)


def found_by_search(folder, data):
    """Return `(ids, scores)`, ids as NumPy has them, and the name of the scores."""
    loaded = tf.saved_model.load(str(folder))  # a reference keeps the variables alive
    found = loaded.signatures["search"](tf.constant(data))
    (name,) = set(found) - {"ids"}
    return found["ids"].numpy(), found[name].numpy(), name


@pytest.mark.parametrize("kind", ["exact", pytest.param("tree", marks=needs_scann)])
@tiers.parametrize("metric", METRICS, ["cosine"])
def test_search_in_a_saved_model_equals_the_index(kind, metric, tmp_path):
    model = make_model()
    ids = [f"é{number}.jpg" for number in range(300)] if kind == "exact" else np.arange(300) * 5
    # One leaf has fewer items than the twenty neighbors of some queries.
    index = {
        "exact": lambda z: ExactIndex(z, metric, ids),
        "tree": lambda z: ScannIndex(z, metric, ids, TreeAH(num_leaves=30, leaves_to_search=1)),
    }[kind](gallery(model))
    export_saved_model(model, tmp_path / "saved_model", small_image, index, neighbors=np.int64(20))
    data = encoded_pictures(100)
    embeddings = model.predict(np.stack([small_image(one) for one in data]), verbose=0)
    expected_ids, expected = index.search(embeddings, 20)
    found, scores, name = found_by_search(tmp_path / "saved_model", data)
    assert name == {"cosine": "similarities", "l2": "distances"}[metric]
    np.testing.assert_allclose(scores, expected, rtol=1e-5, atol=1e-5)
    if kind == "exact":
        found = np.array([[one.decode() for one in row] for row in found.tolist()])
    assert found.dtype == expected_ids.dtype
    # Rows with the forty equal pictures have ties, which float32 products cut arbitrarily.
    alone = (np.abs(np.diff(expected)) > 1e-5).all(axis=1)
    assert alone.sum() > 40
    np.testing.assert_array_equal(found[alone], expected_ids[alone])


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


def test_indexes_that_do_not_match_the_model(tmp_path):
    model, index = make_model(), ExactIndex(np.eye(DIMENSIONS))
    for wrong, neighbours, error, message in (
        (ExactIndex(np.eye(5)), 3, ValueError, "of 6 dimensions, but got an index of 5"),
        (index, 7, ValueError, "neighbors must be .* 1 to 6, but got 7"),
        (index, 0, ValueError, "but got 0"),
        (index, 2.0, ValueError, "but got 2.0"),
        (np.eye(DIMENSIONS), 3, TypeError, "index must be None or a keras_dml.retrieval.Index"),
    ):
        with pytest.raises(error, match=message):
            export_saved_model(model, tmp_path / "new", small_image, wrong, neighbours)
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
@needs_scann
def test_moved_saved_models_work_in_a_process_without_this_package(tmp_path):
    model = make_model()
    weights, bias = model.get_weights()
    model.set_weights([weights, bias + 30])
    indexes = {"exact": ExactIndex(gallery(model), "l2", [f"n{i}" for i in range(300)])}
    indexes["brute"] = ScannIndex(gallery(model), "l2")  # needs no operation of ScaNN
    indexes["tree"] = ScannIndex(gallery(model), tree=TreeAH(30, 3))
    assert indexes["tree"].parameters()["lift"]  # its embeddings have a long mean
    (tmp_path / "elsewhere").mkdir()
    np.save(tmp_path / "images.npy", np.array(encoded_pictures(60)[40:]))
    for name, index in indexes.items():
        export_saved_model(model, tmp_path / name, small_image, index, 5)
        os.rename(tmp_path / name, tmp_path / "elsewhere" / name)
    code = """
        import sys, numpy as np, tensorflow as tf
        images = tf.constant(np.load(sys.argv[1] + "/images.npy"))
        for name in ("exact", "brute", "tree"):
            try:
                loaded = tf.saved_model.load(sys.argv[1] + "/elsewhere/" + name)
            except Exception as error:
                assert name == "tree" and "Scann>" in str(error), error
                import scann
                loaded = tf.saved_model.load(sys.argv[1] + "/elsewhere/" + name)
            assert name == "tree" or "scann" not in sys.modules
            ids = loaded.signatures["search"](images)["ids"].numpy()
            np.save(sys.argv[1] + f"/{name}.npy", ids.astype("S" if name == "exact" else "int64"))
        assert not {"keras_dml", "pipelines"} & set(sys.modules)
        """
    run_python("-c", textwrap.dedent(code), tmp_path)
    queries = gallery(model)[40:60]
    for name, index in indexes.items():
        found = np.load(tmp_path / f"{name}.npy")
        expected, _ = index.search(queries, 5)
        np.testing.assert_array_equal(found.astype(expected.dtype), expected)


@pytest.mark.slow
def test_the_scale_of_embeddings_does_not_change_the_neighbors():
    generator = np.random.default_rng(0)
    rows = generator.normal(size=(50, 6)).astype(np.float32)
    queries = generator.normal(size=(9, 6)).astype(np.float32)
    found = {}
    for exponent in (0, -60, -80, -115, 60, 110):
        scale = np.float32(2.0**exponent)
        module = SearchModule(rows * scale, np.arange(50), "l2", np.zeros(6))
        ids, distances = module.search(tf.constant(queries * scale), 5)
        found[exponent] = ids.numpy(), distances.numpy() / scale
        np.testing.assert_array_equal(found[exponent][0], found[0][0])
        np.testing.assert_allclose(found[exponent][1], found[0][1], rtol=1e-6)


@tiers.parametrize("metric", METRICS, ["l2"])
def test_search_reports_which_neighbors_match(metric, tmp_path):
    model = make_model()
    z = gallery(model)
    index = ExactIndex(z, metric)
    # Each picture has a different item; the threshold is the score of another one.
    (point,) = verification(z, np.arange(300) % 50, [0.05], metric, replicates=0).points
    data = encoded_pictures(60)[38:]
    threshold = point if metric == "cosine" else point.threshold
    folder = tmp_path / "saved_model"
    export_saved_model(model, folder, small_image, index, 5, threshold)
    loaded = tf.saved_model.load(str(folder))
    found = loaded.signatures["search"](tf.constant(data))
    scores = found["similarities" if metric == "cosine" else "distances"].numpy()
    side = scores >= point.threshold if metric == "cosine" else scores <= point.threshold
    np.testing.assert_array_equal(found["matches"].numpy(), side)
    assert found["matches"].numpy()[:, 0].all() and not side.all()


def test_export_refuses_bad_thresholds(tmp_path):
    model = make_model()
    z = gallery(model)
    (point,) = verification(z, np.arange(300) % 50, [0.05], "l2", replicates=0).points
    index = ExactIndex(z, "cosine")
    for given, threshold, message in [
        (None, 0.5, "threshold must be None without an index"),
        (index, point, "threshold must be of the index's metric, cosine, but got .*metric=l2"),
        (index, float("nan"), "threshold must be a finite number"),
        (index, "0.5", "threshold must be a finite number"),
    ]:
        with pytest.raises(ValueError, match=message):
            export_saved_model(model, tmp_path / "m", small_image, given, 5, threshold)
    assert not any(tmp_path.iterdir())
