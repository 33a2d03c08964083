"""Fine-tuning and cached features of frozen backbones: training, resuming, and exporting."""

import types

import keras
import numpy as np
import pytest
import tiers
from batches import functional
from tiny_run import (
    TINY,
    assert_serves_its_embeddings,
    command,
    final_weights,
    finished_run,
    history,
)
from tiny_run import run_options as options
from tiny_transformer import tiny_transformer

from experiments.options import UsageError, data
from experiments.options.command_line import REFUSALS
from experiments.training import encoders, fit
from experiments.training.features import FeatureFeed, ImageFeed, model_fingerprint, view_seeds
from experiments.training.fit import Trainability
from experiments.training.optimizer import backbone_optimizer, optimizer, scheduled
from keras_dml import models, optimizers
from pipelines import EvaluationTransform, ImageTable

REFUSED = [
    ("--lora_rank=2", "lora_layers must be layers of small_convnet"),
    ("--rematerialize", "backbone must be a transformer"),
    ("--levels=stage9_conv2_relu", "levels must be different layers of the backbone"),
    ("--layer_decay=0", r"^layer_decay must be .*0\.0"),
    ("--ema=1", r"^ema must be .*1\.0"),
    ("--schedule=step", "decay_steps must be set for schedule=step"),
    ("--decay_steps=3", "schedule must be step with --decay_steps"),
]


@pytest.mark.parametrize(("word", "message"), REFUSED)
def test_flags_that_a_convolutional_net_or_a_schedule_does_not_support(word, message):
    small = ["--backbone=small_convnet", "--filters=4", "--weights=none", "--image_size=16"]
    given = options(*small, word)
    with pytest.raises(REFUSALS, match=message):
        scheduled(given, 0.8, 10)
        backbone, _ = encoders.embedding_model(given)
        backbone_optimizer(given, [backbone], 0.1)


@pytest.mark.parametrize("name", optimizers.OPTIMIZERS)
def test_flags_configure_every_optimizer(name):
    words = [f"--optimizer={name}", "--weight_decay=0.1", "--global_clipnorm=2"]
    found = optimizer(options(*words), 0.1)
    assert type(found) is optimizers.OPTIMIZERS[name] and found.global_clipnorm == 2
    decays = found.coupled_weight_decay, found.decoupled_weight_decay
    assert decays == ((0.0, 0.1) if name == "adamw" else (0.1, 0.0))


@pytest.mark.parametrize("name", optimizers.SCHEDULES)
def test_flags_configure_every_schedule(name):
    more = ["--decay_steps=4", "--decay_factor=0.5"] if name == "step" else []
    rate = scheduled(options(f"--schedule={name}", *more), 0.8, 10)
    assert callable(rate) == (name != "constant")
    if name == "step":
        assert [float(rate(i)) for i in (0, 3, 4, 7, 8)] == pytest.approx([0.8, 0.8, 0.4, 0.4, 0.2])


def test_layer_decay_is_multiplied_by_pretrained_factor():
    flags = ["--layer_decay=0.5", "--pretrained_factor=0.1", "--ema=0.9"]
    made = backbone_optimizer(options(*flags), [tiny_transformer()], 0.1)
    found = sorted(set(made.learning_rate_multipliers.values()))
    assert found == pytest.approx([0.0125, 0.025, 0.05, 0.1])
    assert made.use_ema and made.ema_momentum == 0.9


@pytest.mark.slow
def test_layer_decay_of_two_backbones():
    given = options("--layer_decay=0.5")
    backbones = [tiny_transformer(), tiny_transformer(seed=1)]  # one decay for the shared paths
    one, two = (backbone_optimizer(given, backbones[:count], 0.1) for count in (1, 2))
    assert two.learning_rate_multipliers == one.learning_rate_multipliers
    backbones[1] = tiny_transformer(blocks=3)
    with pytest.raises(UsageError, match="layer_decay must be unset for two backbones that both"):
        backbone_optimizer(given, backbones, 0.1)


def test_trainability_is_restored_after_head_epochs():
    backbone = tiny_transformer()
    models.enable_lora(backbone, 2)
    backbone.get_layer("patches").trainable = True
    expected = [v.path for v in backbone.trainable_variables]
    kept = Trainability(backbone)
    kept.freeze()
    assert backbone.trainable_variables == []
    kept.restore()
    assert [v.path for v in backbone.trainable_variables] == expected


# Tests of whole runs.


@pytest.mark.slow
def test_training_images_can_be_smaller_than_test_images(photos, tmp_path):
    folder = finished_run(tmp_path, photos, "--loss=ce", "--training_size=12")
    assert data.training_transform(options(*TINY, "--training_size=12")).image_size == 12
    best = keras.saving.load_model(folder / "best.keras", compile=False)
    assert best.input_shape == (None, 16, 16, 3)
    assert_serves_its_embeddings(folder)


def test_a_training_size_that_the_backbone_does_not_accept(photos, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(models, "build_backbone", lambda *_: tiny_transformer(seed=3))
    flags = [*TINY, f"--data_dir={photos}", f"--output_dir={tmp_path}", "--training_size=12"]
    assert command(*flags) == 2
    assert "training_size must be image_size=16 for backbone small" in capsys.readouterr().err


PLAIN = ["--crop=none", "--noflip"]
HEAD = ["--freeze_backbone", "--loss=ce", "--deterministic"]


@pytest.fixture(scope="module")
def cached(photos, tmp_path_factory):
    root = tmp_path_factory.mktemp("cached")
    flags = ["--cache_features", f"--cache_dir={root / 'features'}"]
    return finished_run(root / "run", photos, *HEAD, *PLAIN, *flags)


@tiers.thorough
def test_a_head_trains_the_same_on_cached_features_as_on_images(cached, photos, tmp_path):
    on_images = finished_run(tmp_path / "images", photos, *HEAD, *PLAIN)
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


@tiers.thorough
@pytest.mark.parametrize("loss", ["contrastive", "rankmi", "center"])
def test_other_losses_share_the_cached_features(loss, cached, photos, tmp_path, monkeypatch):
    # The final embeddings come from the features, too, not from the images.
    monkeypatch.setattr(fit, "TableEmbedder", lambda *_: None)
    shared = f"--cache_dir={cached.parent / 'features'}"
    before = {path: path.stat().st_mtime_ns for path in cached.parent.glob("features/*.npy")}
    more = ["--cache_features", shared, f"--loss={loss}"]
    folder = finished_run(tmp_path / "run", photos, *HEAD, *more)
    assert before == {p: p.stat().st_mtime_ns for p in cached.parent.glob("features/*.npy")}
    assert "test/recall@1/cosine" in history(folder)[-1]


def test_view_seeds_depend_on_seed_view_and_image():
    assert (view_seeds(1, 2, 5) == view_seeds(1, 2, 9)[:5]).all()
    drawn = [view_seeds(seed, view, 50) for seed in (0, 1) for view in (0, 1)]
    assert len(np.unique(np.concatenate(drawn), axis=0)) == 200


def net(name="conv", filters=4, scale=1 / 255):
    keras.utils.set_random_seed(0)
    convolution = keras.layers.Conv2D(filters, 3, name=name)
    return functional((8, 8, 3), keras.layers.Rescaling(scale), convolution)


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


def with_backbone(model, folder, *more):
    """Save a model. Return the options of a run with the file as the backbone."""
    model.save(folder / "mine.keras")
    words = [f"--backbone={folder / 'mine.keras'}", "--image_size=8", "--embedding_size=2"]
    return options(*words, *more)


@pytest.fixture
def subclassed():
    model = Subclassed(trainable=False)
    model(np.zeros((1, 8, 8, 3), "float32"))
    return model


@pytest.mark.parametrize("waits", [["--freeze_backbone"], ["--epochs=2", "--head_epochs=1"]])
def test_freezing_a_subclassed_backbone_freezes_its_layers(waits, subclassed, tmp_path):
    given = with_backbone(subclassed, tmp_path, *waits)
    backbone, embedding = encoders.embedding_model(given)
    if "--freeze_backbone" not in waits:
        Trainability(backbone).freeze()
    assert len(embedding.trainable_variables) == 2  # kernel and bias of the projection


def test_a_backbone_that_was_saved_frozen_needs_a_flag(tmp_path):
    model = net()
    model.trainable = False
    with pytest.raises(UsageError, match=r"backbone must be trainable.*mine.keras.*--freeze_b"):
        encoders.embedding_model(with_backbone(model, tmp_path))
    for more in (["--lora_rank=1", "--lora_layers=conv"], ["--freeze_backbone"]):
        backbone, _ = encoders.embedding_model(with_backbone(model, tmp_path, *more))
        assert bool(backbone.trainable_variables) == (more != ["--freeze_backbone"])


@pytest.mark.parametrize("pooling", ["average", "gem"])
def test_the_best_model_of_a_subclassed_backbone_reuses_the_features(pooling, subclassed, tmp_path):
    """GeM has weights, so the cache holds feature maps."""
    words = ["--freeze_backbone", f"--pooling={pooling}", f"--cache_dir={tmp_path}"]
    options = with_backbone(subclassed, tmp_path, *words)
    _, embedding = encoders.embedding_model(options)
    images = np.random.default_rng(0).integers(0, 256, (4, 8, 8, 3)).astype("uint8")
    table = ImageTable.from_arrays(images, [0, 0, 1, 1])
    run = types.SimpleNamespace(
        options=options,
        data=types.SimpleNamespace(tables={"test": table}),
        objective=types.SimpleNamespace(sides=()),
        evaluators=[],
        preprocessing=EvaluationTransform(8),
        refreshed_sampler=None,
    )
    feed = FeatureFeed(run, *models.split_at_features(embedding))
    embedding.save(tmp_path / "best.keras")
    best = keras.saving.load_model(tmp_path / "best.keras", compile=False)
    expected = embedding.predict(images.astype("float32"), verbose=0)
    np.testing.assert_allclose(feed.embeddings_by(best)["test"], expected, rtol=1e-4)


def test_images_are_not_embedded_again_by_the_weights_of_the_last_evaluation():
    images = np.random.default_rng(0).integers(0, 256, (4, 8, 8, 3)).astype("uint8")
    table = ImageTable.from_arrays(images, [0, 0, 1, 1])
    run = types.SimpleNamespace(
        options=types.SimpleNamespace(eval_batch_size=2),
        data=types.SimpleNamespace(tables={"test": table, "training": table}),
        transform_of=lambda encoder: EvaluationTransform(8),
    )
    inputs = keras.Input((8, 8, 3))
    encoder = keras.Model(inputs, keras.layers.Dense(2)(keras.layers.Flatten()(inputs)))
    feed = ImageFeed(run, {"": encoder})
    kept = keras.models.clone_model(encoder)
    kept.set_weights(encoder.get_weights())
    assert list(feed.embeddings_by(kept, "")) == ["test"]  # no evaluation yet
    last = feed.embeddings("test", "epoch 1")
    assert feed.embeddings_by(kept, "")["test"] is last
    encoder.set_weights([2 * weights for weights in encoder.get_weights()])
    assert feed.embeddings_by(kept, "") == {}  # not the weights of the encoder
    kept.set_weights(encoder.get_weights())
    again = feed.embeddings_by(kept, "")["test"]  # not the weights of the last evaluation
    assert again is not last
    np.testing.assert_allclose(again, encoder.predict(images.astype("float32"), verbose=0), 1e-5)
