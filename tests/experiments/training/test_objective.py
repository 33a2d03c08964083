"""Levels of a backbone: losses over pairs are summed over them, the others take them together."""

import numpy as np
import pytest
import tensorflow as tf

from experiments.options import RunOptions, parse
from experiments.training import objective

LEVELS = ["stage1_conv2_relu", "stage2_conv2_relu"]


def options(*words):
    small = ["--backbone=small_convnet", "--filters=4,6", "--weights=none", "--image_size=16"]
    levels = [f"--levels={','.join(LEVELS)}", "--embedding_size=5"]
    return parse(RunOptions, ["run", *small, *levels, *words])


def batch():
    rng = np.random.default_rng(0)
    images = rng.uniform(0, 255, (8, 16, 16, 3)).astype("float32")
    return images, np.repeat(np.arange(4), 2)


def evaluated(given):
    """The embeddings of a batch, and what `evaluate` tells of the compiled model on it."""
    backbone, embedding = objective.embedding_model(given)
    model = objective.training_model(given, embedding, 4)
    model.compile(objective.optimizer(given, backbone, 0.01), **objective.compiled(given, 10))
    images, ids = batch()
    batches = tf.data.Dataset.from_tensors((images, ids))
    logs = model.evaluate(objective.targets(given, batches), verbose=0, return_dict=True)
    return embedding(images, training=False).numpy(), logs


@pytest.mark.parametrize("name", ["ice", "multi_similarity"])
def test_a_loss_over_pairs_is_summed_over_the_levels(name):
    given = options(f"--loss={name}")
    embeddings, logs = evaluated(given)
    assert embeddings.shape == (8, 10)
    chosen, total = objective.loss(given), 0.0
    for number, level in enumerate(LEVELS):
        part = embeddings[:, 5 * number : 5 * number + 5]
        expected = float(chosen(batch()[1], part))
        assert logs[f"{level}_loss"] == pytest.approx(expected, rel=1e-4)
        parts = [logs[f"{level}_{side}"] for side in ("tightness", "contrastive")]
        assert sum(parts) == pytest.approx(expected, rel=1e-3)
        total += expected
    assert logs["loss"] == pytest.approx(total, rel=1e-4)


@pytest.mark.parametrize("name", ["ce", "center", "rankmi"])
def test_other_losses_take_all_levels_together(name):
    given = options(f"--loss={name}")
    _, embedding = objective.embedding_model(given)
    model = objective.training_model(given, embedding, 4)
    assert embedding.output_shape == (None, 10)
    if name != "rankmi":
        assert model.get_layer("logits").kernel.shape == (10, 4)
    assert not any(level in str(objective.compiled(given, 10)) for level in LEVELS)


@pytest.mark.parametrize("word", ["--levels=", "--levels=stage9_conv2_relu"])
def test_levels_that_are_none(word):
    with pytest.raises(ValueError, match="levels must be different layers of the backbone"):
        objective.embedding_model(options(word))


def test_rankmi_updates_the_embedding_in_every_k_plus_first_step():
    given = parse(RunOptions, ["run", "--loss=rankmi", "--k=2", "--warmup_steps=1"])
    assert [objective.updates(given, steps) for steps in (1, 2, 3, 4, 7)] == [1, 1, 1, 2, 3]
    rate = objective.learning_rate(given, 9)
    assert rate.total_steps == 3
    statistics = objective.compiled(given, 9)["statistics_optimizer"]
    # The rate that is logged is that of the last of the updates, not of so many.
    assert objective.rate_after(given, rate, 8) == pytest.approx(float(rate(2)))
    np.testing.assert_allclose(float(statistics.learning_rate), float(rate(0)))
    one = parse(RunOptions, ["run", "--loss=snca"])
    assert objective.rate_after(one, 0.5, 8) == 0.5


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("--beta=3", "beta must be a distance between 0 and 2. Received: beta=3.0"),
        ("--alpha=-1", "alpha must be a distance above 0. Received: alpha=-1.0"),
        ("--statistics_slope=2", "slope must be in"),
        ("--sampling=hard", "sampling must be one of"),
        ("--margin=1", "takes k, beta, alpha, sampling. Received: margin=1.0"),
    ],
)
def test_rankmi_refuses_what_makes_no_sense(word, message):
    given = options("--loss=rankmi", word)
    _, embedding = objective.embedding_model(given)
    with pytest.raises(ValueError, match=message):
        objective.training_model(given, embedding, 4)
