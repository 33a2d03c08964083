"""SavedModels that include an index."""

import os
import textwrap

import keras
import numpy as np
import pytest
import tensorflow as tf
import tiers
from processes import run_python
from retrieval_sets import needs_scann

from keras_dml.export import export_saved_model
from keras_dml.metrics import verification
from keras_dml.retrieval import METRICS, ExactIndex, ScannIndex, TreeAH
from keras_dml.retrieval.serving import SearchModule

SIZE, DIMENSIONS = 8, 6


def preprocessing(data):
    image = tf.io.decode_image(data, channels=3, expand_animations=False)
    return tf.ensure_shape(tf.cast(image, tf.float32), [SIZE, SIZE, 3])


def make_model():
    layers = [keras.layers.Rescaling(1 / 127.5, offset=-1)]
    layers += [keras.layers.Flatten(), keras.layers.Dense(DIMENSIONS)]
    model = keras.Sequential([keras.Input((SIZE, SIZE, 3)), *layers])
    generator = np.random.default_rng(3)
    model.set_weights([generator.normal(size=w.shape) for w in model.get_weights()])
    return model


def pictures(n=300):
    """Return noise images, of which the first forty are equal."""
    pixels = np.random.default_rng(0).integers(0, 256, (n, SIZE, SIZE, 3), dtype=np.uint8)
    pixels[1:40] = pixels[0]
    return pixels


def encoded(n):
    return [tf.io.encode_png(one).numpy() for one in pictures()[:n]]


def gallery(model):
    return model.predict(pictures().astype(np.float32), verbose=0)


def served(folder, data):
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
    export_saved_model(
        model, tmp_path / "saved_model", preprocessing, index, neighbors=np.int64(20)
    )
    data = encoded(100)
    embeddings = model.predict(np.stack([preprocessing(one) for one in data]), verbose=0)
    expected_ids, expected = index.search(embeddings, 20)
    found, scores, name = served(tmp_path / "saved_model", data)
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
            export_saved_model(model, tmp_path / "new", preprocessing, wrong, neighbours)
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
    np.save(tmp_path / "images.npy", np.array(encoded(60)[40:]))
    for name, index in indexes.items():
        export_saved_model(model, tmp_path / name, preprocessing, index, 5)
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
    data = encoded(60)[38:]
    threshold = point if metric == "cosine" else point.threshold
    folder = tmp_path / "saved_model"
    export_saved_model(model, folder, preprocessing, index, 5, threshold)
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
            export_saved_model(model, tmp_path / "m", preprocessing, given, 5, threshold)
    assert not any(tmp_path.iterdir())
