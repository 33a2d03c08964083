"""`keras_dml.similarity`: the numbers of TensorFlow Similarity 0.18, and its differences."""

import json

import keras
import numpy as np
import pytest
from processes import ROOT, run_python

import keras_dml.similarity as tfsim
from keras_dml.similarity import losses
from keras_dml.similarity.models import SimilarityModel

pytestmark = pytest.mark.any_backend
A = np.array([[3, 4, 0], [4, 0, 3], [0, 3, 4], [0, 5, 0]], "float32") / 5
LABELS = np.array([0, 0, 1, 1])


X = np.eye(2, dtype="float32")


def similarity_model(layer, width=2):
    inputs = keras.layers.Input((width,))
    return SimilarityModel(inputs, layer(inputs))


def identity(**options):
    model = similarity_model(keras.layers.Activation("linear"))
    model.compile("adam", **options)
    return model


def test_losses_do_not_normalize_and_large_class_ids_stay_distinct():
    loss = losses.MultiSimilarityLoss()
    for ids in (LABELS, LABELS + 2**24, LABELS[:, None] + 2**24):
        assert float(loss(ids, 2 * A)) == pytest.approx(0.665295, abs=1e-5)
    assert losses.MultiSimilarityLoss(reduction=None)(LABELS, A).shape == (4, 1)


def test_losses_are_restored_from_configurations():
    loss = losses.TripletLoss("l2", negative_mining_strategy="hard", margin=0.5)
    again = keras.saving.deserialize_keras_object(keras.saving.serialize_keras_object(loss))
    assert float(again(LABELS, A)) == float(loss(LABELS, A)) and again.margin == 0.5
    old = {
        "name": "MultiSimilarityLoss", "reduction": "auto", "alpha": 3.0,
        "distance": {
            "class_name": "CosineDistance", "module": "tensorflow_similarity.distances",
            "config": {"name": "cosine", "aliases": []},
            "registered_name": "Similarity>CosineDistance",
        },
    }  # fmt: skip
    loss = losses.MultiSimilarityLoss.from_config(old)
    assert (loss.alpha, loss.reduction) == (3.0, "sum_over_batch_size")
    assert loss.distance.name == "cosine"
    memory = losses.XBM(loss, memory_size=6, warmup_steps=2)
    again = losses.XBM.from_config(memory.get_config())
    assert (again.loss.alpha, again.memory_size, again.warmup_steps) == (3.0, 6, 2)


def test_distances():
    get = tfsim.distances.get
    names = ("L2", "pythagorean", "EuclideanDistance", {"name": "l2"}, get("l2"))
    assert {get(name).name for name in names} == {"euclidean"}
    with pytest.raises(ValueError, match="distance must.*cosine.*'nearness'"):
        get("nearness")


def test_lookup_normalizes_for_every_distance():
    items = np.array([[3.0, 4.0], [1.0, 0.0]], "float32")
    query = np.array([0.0, 2.0], "float32")
    for distance, expected in {"l2": [0.632456, 1.414214], "sql2": [0.4, 2.0]}.items():
        model = identity(distance=distance)
        model.index(items, [0, 1], verbose=0)
        found = [one.distance for one in model.single_lookup(query)]
        assert found == pytest.approx(expected, abs=1e-5)
        np.testing.assert_array_equal(model.single_lookup(query)[0].embedding, [3.0, 4.0])
    with pytest.raises(ValueError, match="distance must.*cosine"):
        identity(distance="inner_product")


def test_index_before_and_without_examples():
    model = similarity_model(keras.layers.Activation("linear"))
    with pytest.raises(ValueError, match=r"compile\(\) or create_index\(\)"):
        model.index(X, [0, 1])
    model.create_index()
    assert model.lookup(X, verbose=0) == [[], []]
    with pytest.raises(IndexError, match="index"):
        model.evaluate_retrieval(X, [0, 1], [tfsim.retrieval_metrics.RecallAtK(k=1)])
    with pytest.raises(ValueError, match=r"calibrate\(\)"):
        model.match(X)
    model.index_single(X[0], 7, data="first", verbose=0)
    assert [(one.label, one.data) for one in model.single_lookup(X[0], k=9)] == [(7, "first")]


def test_unknown_cutpoints_and_compile_arguments():
    model = identity()
    model.index(X, [0, 1], verbose=0)
    model.calibrate(X, [0, 1], verbose=0, extra_metrics=("recall",))
    with pytest.raises(ValueError, match="cutpoint must.*optimal.*'best'"):
        model.match(X, cutpoint="best")
    with pytest.raises(ValueError, match="distance must"):
        model.compile("adam", loss="mse")
    with pytest.raises(ValueError, match="signatures must.*export"):
        model.save("folder", signatures=1)


def test_short_rows(capsys):
    neighbor = tfsim.types.Lookup(rank=1, distance=0.123456789, label=3)
    rows = [[neighbor, neighbor], [neighbor]]
    found = tfsim.utils.unpack_lookup_labels(rows, "int32")
    assert found.tolist() == [[3, 3], [3, 0x7FFFFFFF]]
    assert tfsim.utils.unpack_lookup_distances(rows, "float64", 2)[1].tolist() == [0.12, np.inf]
    assert "WARNING: 1 rows" in capsys.readouterr().out


def test_models_and_indexes_are_saved(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    model = similarity_model(tfsim.layers.MetricEmbedding(2))
    model.compile("adam", loss=losses.TripletLoss("l2", margin=0.3))
    x = np.array([[1, 0.1], [0.1, 1], [0.9, 0.2]], "float32")
    model.index(x, [0, 1, 0], data=["a", "b", "c"], verbose=0)
    model.calibrate(x, [0, 1, 0], verbose=0)
    for name in ("folder", "file.keras", "folder"):  # the last one replaces the first one
        model.save(name)
        again = keras.models.load_model(name)
        assert type(again).__mro__[1] is SimilarityModel and again.loss.margin == 0.3
        again.load_index(name)
        assert again.match(x) == model.match(x)
        assert again._index.distance.name == "euclidean"
        assert [one.data for one in again.single_lookup(x[1], k=1)] == ["b"]
    model.save("folder", save_index=False)
    assert (tmp_path / "folder" / "index" / "index.npz").is_file()
    (tmp_path / "folder" / "index" / "more").symlink_to("/etc/passwd")
    with pytest.raises(ValueError, match="must not be a link"):
        model.save("folder", save_index=False)
    (tmp_path / "folder" / "index" / "more").unlink()
    with pytest.raises(ValueError, match="overwrite=False"):
        model.save_index("folder", overwrite=False)
    with pytest.warns(UserWarning, match="save_format"):
        model.save("other", save_format="tf")
    (tmp_path / "mine").mkdir()
    with pytest.raises(ValueError, match="path must"):
        model.save("mine")


def test_subclasses_with_call_and_with_inputs():
    class Mine(SimilarityModel):
        def __init__(self, *args, **kwargs):
            super().__init__(*args, **kwargs)

    class Called(Mine):
        def call(self, inputs):
            return 2 * inputs

    inputs = keras.layers.Input((2,))
    model = Mine(inputs, keras.layers.UnitNormalization()(inputs))
    assert isinstance(model, Mine) and model.output_shape == (None, 2)
    called = Called()
    called.compile("adam")
    called.index(X, [0, 1], verbose=0)
    assert called.index_size() == 2


def test_layers_and_files_of_keras_2_are_refused():
    old = type("KerasTensor", (), {"__module__": "tf_keras.src.engine.keras_tensor"})()
    with pytest.raises(ValueError, match="inputs and outputs must.*TF_USE_LEGACY_KERAS"):
        SimilarityModel(old, old)
    with pytest.raises(ValueError, match="save_weights.*load_weights"):
        SimilarityModel.from_config({"name": "model", "trainable": True})


@pytest.mark.parametrize("layout", ["0.17", "0.18"])
def test_indexes_of_the_original_are_read_without_pickle(tmp_path, layout):
    folder = tmp_path / "old" / "index"
    store = folder if layout == "0.17" else folder / "store"
    store.mkdir(parents=True)
    labels = np.array([4, 5]) if layout == "0.17" else np.array([4, None])
    np.savez(store / "index.npz", embeddings=np.eye(2, dtype="float32"), labels=labels,
             data=np.array([None, None]))  # fmt: skip
    metadata = {
        "distance": "euclidean", "embedding_size": 2, "embedding_output": None,
        "stat_buffer_size": 10, "is_calibrated": True, "size": 2,
        "calibration_metric_config": {"canonical_name": "f1_score", "name": "f1"},
        "cutpoints": {"optimal": {"name": "optimal", "value": 1.0, "distance": 0.25}},
        "calibration_thresholds": {"distance": [0.25], "value": [1.0]},
    }  # fmt: skip
    if layout == "0.17":
        metadata["search_config"] = {"canonical_name": "NMSLibSearch"}
    (folder / "index_metadata.json").write_text(json.dumps(metadata))
    model = identity()
    with pytest.warns(UserWarning) as warned:
        model.load_index(tmp_path / "old")
    said = " ".join(str(one.message) for one in warned)
    assert "data are missing" in said
    assert ("labels are missing" in said) == (layout == "0.18")
    (found,) = model.single_lookup(np.array([0.0, 1.0]), k=1)
    assert found.label == (5 if layout == "0.17" else None)
    # Version 0.17 stored squared distances for l2.
    assert model._index.cutpoints["optimal"]["distance"] == (0.5 if layout == "0.17" else 0.25)


def test_samplers(capsys):
    x, y = np.arange(14.0)[:, None], np.array([0] * 6 + [1] * 5 + [2] * 2 + [3])
    batches = tfsim.samplers.MultiShotMemorySampler(
        x, y, classes_per_batch=2, examples_per_class_per_batch=3, steps_per_epoch=4,
        class_list=np.array([0, 2]),
    )  # fmt: skip
    assert (len(batches), batches.batch_size, batches.num_examples) == (4, 6, 8)
    assert batches.class_list == [0, 2] and batches.example_shape == (1,)
    rows, labels = batches[0]
    assert isinstance(rows, np.ndarray) and sorted(labels) == [0, 0, 0, 2, 2, 2]
    assert len(np.unique(rows[labels == 0])) == 3
    batches[1]
    assert capsys.readouterr().out.count("WARNING: class 2") == 1
    assert len(batches.get_slice()[0]) == len(batches.get_slice(0, -1)[0]) == 8
    assert len(batches.get_slice(2, 3)[0]) == 3 and len(batches.get_slice(6, -1)[0]) == 2
    assert batches.is_warmup
    batches.on_epoch_end()
    assert (batches.epoch, batches.is_warmup) == (1, False)
    with pytest.raises(ValueError, match="classes_per_batch must be at most.* 4"):
        tfsim.samplers.MultiShotMemorySampler(x, y, classes_per_batch=5)
    chosen, ids = tfsim.samplers.select_examples(x, y, [1, 3], 4)
    assert chosen.shape == (8, 1) and sorted(ids) == [1] * 4 + [3] * 4
    assert tfsim.training_metrics.batch_class_ratio(batches, num_batches=2) == 3.0


def test_augmenters_and_single_shots():
    seen = []

    def twice(x, y, number, is_warmup):
        seen.append((number, is_warmup))
        return np.concatenate([x, x]), np.concatenate([y, y])

    batches = tfsim.samplers.SingleShotMemorySampler(np.eye(5), twice, 3, steps_per_epoch=2)
    x, y = batches[0]
    assert x.shape == (6, 5) and np.array_equal(np.argmax(x, axis=1), y)
    assert batches.get_slice(1, 2)[0].shape == (4, 5) and seen == [(2, True)] * 2


def test_images_of_keras_and_of_files(monkeypatch, tmp_path):
    images = np.arange(10 * 12).reshape(10, 2, 2, 3).astype("uint8")
    labels = (np.arange(10) // 2)[:, None]
    halves = (images[:6], labels[:6]), (images[6:], labels[6:])
    monkeypatch.setattr(keras.datasets.cifar10, "load_data", lambda: halves)
    batches = tfsim.samplers.TFDatasetMultiShotMemorySampler(
        "cifar10", 2, splits=["train"], preprocess_fn=lambda x, y: (x / 255.0, y + 1),
        steps_per_epoch=3,
    )  # fmt: skip
    assert batches.class_list == [1, 2, 3] and batches.num_examples == 6
    assert batches[0][0].max() <= 1.0 and batches.get_slice(0, -1)[1].shape == (6,)
    with pytest.raises(ValueError, match="dataset_name must.*MultiShotMemorySampler"):
        tfsim.samplers.TFDatasetMultiShotMemorySampler("imagenet2012", 2)
    path = str(tmp_path / "image.png")
    keras.utils.save_img(path, np.full((6, 4, 3), 40.0), scale=False)
    x, _ = tfsim.samplers.MultiShotFileSampler([path] * 4, [0, 0, 1, 1])[0]
    assert x.shape == (4, 6, 4, 3) and x.dtype == "float32" and 0 <= x.max() <= 1
    assert tfsim.samplers.load_image(path, (3, 5)).shape == (3, 5, 3)


def test_tf_data_sampler():
    tf = pytest.importorskip("tensorflow")
    labels = np.array([0] * 5 + [1] * 4 + [2] * 3)
    ds = tf.data.Dataset.from_tensor_slices((np.arange(12.0), {"id": labels}))
    batches = tfsim.samplers.TFDataSampler(
        ds, 2, 2, class_list=[0, 2], total_examples_per_class=2, label_output="id", warmup=4,
        augmenter=lambda x, y: (x + 100.0, y),
    )  # fmt: skip
    first, second = (batch for batch in batches.take(2).as_numpy_iterator())
    assert sorted(first[1]["id"]) == [0, 0, 2, 2] and sorted(first[0]) == [0.0, 1.0, 9.0, 10.0]
    assert min(second[0]) >= 100
    with pytest.raises(ValueError, match="ds must"):
        tfsim.samplers.TFDataSampler(ds.repeat())


def test_a_memory_trains_in_a_similarity_model():
    model = similarity_model(tfsim.layers.MetricEmbedding(3), width=3)
    if keras.backend.backend() == "jax":  # whose steps return only the variables of the model
        plain = keras.Model(model.inputs, model.outputs)
        plain.compile("adam", losses.XBM(losses.TripletLoss(), 8))
        with pytest.raises(ValueError, match="XBM must.*SimilarityModel"):
            plain.fit(A, LABELS, verbose=0)
    loss = losses.XBM(losses.TripletLoss(), 8)
    model.compile("sgd", loss)
    model.fit(A, LABELS, batch_size=2, shuffle=False, epochs=2, verbose=0)
    _, labels, filled, step = loss.variables
    assert (int(filled.value), int(step.value)) == (8, 4)
    assert np.asarray(keras.ops.convert_to_numpy(labels.value)).tolist() == [1, 1, 0, 0] * 2
    with pytest.raises(ValueError, match="loss must"):
        losses.XBM(losses.PNLoss(), 8)


def test_approximate_searches_warn():
    with pytest.warns(UserWarning, match="exactly"):
        identity(search="nmslib")
    with pytest.raises(ValueError, match="search must.*linear"):
        identity(search="annoy")


def test_figures(monkeypatch):
    pyplot = pytest.importorskip("matplotlib.pyplot")
    monkeypatch.setattr(pyplot, "show", lambda: None)
    image = np.zeros((4, 4))
    neighbors = [tfsim.types.Lookup(1, 0.25, 1, data=image)]
    plot = tfsim.visualization.viz_neigbors_imgs(
        image, np.int64(0), neighbors, {0: "cat", 1: "dog"}, show=False
    )
    titles = [axis.get_title() for axis in plot.gcf().axes]
    assert titles == ["cat", "dog - 0.25000"]
    _, matrix = tfsim.visualization.confusion_matrix([0, 1, 2, 2], [0, 1, 1, 2], labels="abc")
    assert matrix.tolist() == [[1, 0, 0], [0, 0.5, 0.5], [0, 0, 1]]
    with pytest.raises(ValueError, match="y_pred must.*no_match_label"):
        tfsim.visualization.confusion_matrix([-1, 0], [0, 0])
    pyplot.close("all")


@pytest.mark.slow
def test_the_package_is_loaded_lazily():
    program = (
        "import sys, keras_dml; print('keras_dml.similarity' in sys.modules)\n"
        "import keras_dml.similarity as tfsim; print(tfsim.__version__)\n"
        "print('keras_dml.similarity.losses' in sys.modules, tfsim.losses.XBM.__name__)"
    )
    assert run_python("-c", program).split() == ["False", "0.18.0", "False", "XBM"]


PROGRAMS = sorted((ROOT / "tests" / "support" / "similarity_programs").glob("*"))


@pytest.mark.slow
@pytest.mark.parametrize("path", PROGRAMS, ids=lambda path: path.stem)
def test_programs_run_word_for_word(path, tmp_path, monkeypatch, capsys):
    if "to_data_frame" in path.read_text():
        pytest.importorskip("pandas")
    monkeypatch.chdir(tmp_path)
    keras.utils.set_random_seed(0)
    exec(path.read_text(), {})
    last = capsys.readouterr().out.strip().splitlines()[-1]
    if path.stem == "memory_and_schedule":
        scores = ("binary_accuracy", "f1", "recall@1")
        names = [f"{one}_{kind}_classes" for one in scores for kind in ("known", "unknown")]
        assert last == f"{sorted([*names, 'loss', 'mean_neg', 'mean_pos'])} 0"
    if path.stem == "train_and_search":
        assert float(last) > 0.5
