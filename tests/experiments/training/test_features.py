"""Features of a frozen backbone on disk, and the head that trains on them."""

import types

import keras
import numpy as np
import pytest
from tiny_run import TINY, assert_serves_its_embeddings, command, final_weights, history

from experiments.options import RunOptions, UsageError, parse
from experiments.training import encoders, fit
from experiments.training.features import FeatureFeed, model_fingerprint, view_seeds
from experiments.training.fit import Trainability
from keras_dml import models
from pipelines import EvaluationTransform, ImageTable

PLAIN = ["--crop=none", "--noflip", "--freeze_backbone"]
# Random weights, so that a run takes seconds.
HEAD = [*TINY, "--freeze_backbone", "--loss=ce", "--deterministic"]


def run_of(folder, photos, *more, code=0):
    assert command(*HEAD, f"--data_dir={photos}", f"--output_dir={folder}", *more) == code
    return folder


@pytest.fixture(scope="module")
def cached(photos, tmp_path_factory):
    root = tmp_path_factory.mktemp("cached")
    flags = ["--cache_features", f"--cache_dir={root / 'features'}"]
    return run_of(root / "run", photos, *PLAIN, *flags)


@pytest.mark.thorough
@pytest.mark.slow
def test_a_head_trains_the_same_on_cached_features_as_on_images(cached, photos, tmp_path):
    on_images = run_of(tmp_path / "images", photos, *PLAIN)
    ours, theirs = history(cached), history(on_images)
    assert [row.keys() for row in ours] == [row.keys() for row in theirs]
    for row, expected in zip(ours, theirs):
        assert row == pytest.approx(expected, rel=1e-4)
    embeddings = [np.load(f / "test_embeddings.npz")["embeddings"] for f in (cached, on_images)]
    np.testing.assert_allclose(*embeddings, atol=1e-5)
    # The checkpoint has only the head's weights, since the backbone does not change.
    assert len(final_weights(cached)) < len(final_weights(on_images))
    assert len(list(cached.parent.glob("features/*.npy"))) == 2
    # The backbone and the head are exported as one model.
    assert_serves_its_embeddings(cached)
    assert models.load_keras_file(cached / "best.keras").input_shape == (None, 16, 16, 3)
    assert not (cached / "features").exists()


@pytest.mark.thorough
@pytest.mark.slow
@pytest.mark.parametrize("loss", ["contrastive", "rankmi", "center"])
def test_other_losses_share_the_cached_features(loss, cached, photos, tmp_path, monkeypatch):
    # The final embeddings come from the features, too, not from the images.
    monkeypatch.setattr(fit, "TableEmbedder", lambda *_: None)
    shared = f"--cache_dir={cached.parent / 'features'}"
    before = {path: path.stat().st_mtime_ns for path in cached.parent.glob("features/*.npy")}
    run_of(tmp_path / "run", photos, "--cache_features", shared, f"--loss={loss}")
    assert before == {p: p.stat().st_mtime_ns for p in cached.parent.glob("features/*.npy")}
    assert "test/recall@1/cosine" in history(tmp_path / "run")[-1]


def test_view_seeds_depend_on_seed_view_and_image():
    assert (view_seeds(1, 2, 5) == view_seeds(1, 2, 9)[:5]).all()
    drawn = [view_seeds(seed, view, 50) for seed in (0, 1) for view in (0, 1)]
    assert len(np.unique(np.concatenate(drawn), axis=0)) == 200


def net(name="conv", filters=4, scale=1 / 255):
    keras.utils.set_random_seed(0)
    inputs = keras.Input((8, 8, 3))
    x = keras.layers.Rescaling(scale)(inputs)
    return keras.Model(inputs, keras.layers.Conv2D(filters, 3, name=name)(x))


def test_the_fingerprint_depends_on_weights_and_layers_but_not_on_names():
    first = model_fingerprint(net())
    assert first == model_fingerprint(net("another_name"))
    assert first != model_fingerprint(net(scale=1 / 127.5))
    assert first != model_fingerprint(net(filters=5))
    other = net()
    other.weights[0].assign_add(keras.ops.ones_like(other.weights[0]) * 1e-7)
    assert first != model_fingerprint(other)


@keras.saving.register_keras_serializable("test_features")
class Subclassed(keras.Model):
    """A subclassed model. Its file stores `trainable` of the model, but not of its layers."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.convolution = keras.layers.Conv2D(4, 3)

    def call(self, images):
        return self.convolution(images)


def saved_frozen(path):
    model = Subclassed(trainable=False)
    model(np.zeros((1, 8, 8, 3), "float32"))
    model.save(path)
    return path


@pytest.mark.parametrize("waits", [["--freeze_backbone"], ["--epochs=2", "--head_epochs=1"]])
def test_freezing_a_subclassed_backbone_freezes_its_layers(waits, tmp_path):
    path = saved_frozen(tmp_path / "mine.keras")
    given = [f"--backbone={path}", "--image_size=8", "--embedding_size=2", *waits]
    backbone, embedding = encoders.embedding_model(parse(RunOptions, ["run", *given]))
    if "--freeze_backbone" not in waits:
        Trainability(backbone).freeze()
    assert len(embedding.trainable_variables) == 2  # kernel and bias of the projection


def test_a_backbone_that_was_saved_frozen_needs_a_flag(tmp_path):
    inputs = keras.Input((8, 8, 3))
    model = keras.Model(inputs, keras.layers.Conv2D(4, 3)(inputs))
    model.trainable = False
    model.save(tmp_path / "mine.keras")
    given = [f"--backbone={tmp_path / 'mine.keras'}", "--image_size=8", "--embedding_size=2"]
    with pytest.raises(UsageError, match=r"backbone must be trainable.*mine.keras.*--freeze_b"):
        encoders.embedding_model(parse(RunOptions, ["run", *given]))
    added = ["--lora_rank=1", "--lora_layers=conv2d", "--freeze_backbone"]
    for more in (added[:2], added[2:]):
        more = [word.replace("=conv2d", f"={model.layers[-1].name}") for word in more]
        backbone, _ = encoders.embedding_model(parse(RunOptions, ["run", *given, *more]))
        assert bool(backbone.trainable_variables) == ("--freeze_backbone" not in more)


@pytest.mark.parametrize("pooling", ["average", "gem"])
def test_the_best_model_of_a_subclassed_backbone_reuses_the_features(pooling, tmp_path):
    path = saved_frozen(tmp_path / "mine.keras")
    given = [f"--backbone={path}", "--image_size=8", "--embedding_size=2", "--freeze_backbone"]
    given += [f"--pooling={pooling}"]  # GeM has weights, so the cache holds feature maps
    options = parse(RunOptions, ["run", *given, f"--cache_dir={tmp_path}"])
    _, embedding = encoders.embedding_model(options)
    images = np.random.default_rng(0).integers(0, 256, (4, 8, 8, 3)).astype("uint8")
    table = ImageTable.from_arrays(images, [0, 0, 1, 1])
    run = types.SimpleNamespace(
        options=options,
        data=types.SimpleNamespace(tables={"test": table}),
        objective=types.SimpleNamespace(sides=()),
        evaluators=[],
        preprocessing=EvaluationTransform(8),
    )
    feed = FeatureFeed(run, *models.split_at_features(embedding))
    embedding.save(tmp_path / "best.keras")
    best = keras.saving.load_model(tmp_path / "best.keras", compile=False)
    expected = embedding.predict(images.astype("float32"), verbose=0)
    np.testing.assert_allclose(feed.embeddings_by(best)["test"], expected, rtol=1e-4)


@pytest.mark.parametrize("flags", [["--loss=contrastive"], ["--loss=ce"], ["--loss=rankmi"]])
def test_a_run_without_trainable_weights_is_refused(flags, photos, tmp_path, capsys):
    given = [word for word in HEAD if not word.startswith("--embedding_size")]
    given += [f"--data_dir={photos}", f"--output_dir={tmp_path / 'run'}", *flags]
    assert command(*given) == 2
    assert "embedding_size must be set with freeze_backbone" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()
