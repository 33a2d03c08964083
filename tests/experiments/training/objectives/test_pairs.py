"""Losses over pairs of embeddings, with one output or with an output per level."""

import numpy as np
import pytest
import tensorflow as tf
import tiers
from processes import difference

from experiments.options import UsageError
from keras_dml import losses, mining, models


@pytest.mark.slow
@pytest.mark.parametrize("name", ["ice", "multi_similarity"])
def test_a_loss_over_pairs_is_summed_over_the_levels(name, tiny, level_names):
    run = tiny(f"--loss={name}")
    embeddings, logs = run.embeddings(), run.evaluate()
    assert embeddings.shape == (8, 10)
    loss, total = run.objective.loss(), 0.0
    for number, level in enumerate(level_names):
        part = embeddings[:, 5 * number : 5 * number + 5]
        expected = float(loss(run.class_ids, part))
        assert logs[f"{level}_loss"] == pytest.approx(expected, rel=1e-4)
        parts = [logs[f"{level}_{side}"] for side in ("tightness", "contrastive")]
        assert sum(parts) == pytest.approx(expected, rel=1e-3)
        total += expected
    assert logs["loss"] == pytest.approx(total, rel=1e-4)


def test_one_encoder_embeds_photos_and_catalog_pictures(tiny):
    run = tiny("--loss=nt_xent", "--candidates=catalog", two_levels=False)
    pictures = run.images[::-1].copy()
    batches = tf.data.Dataset.from_tensors(((run.images, pictures), run.class_ids))
    logs = run.model.evaluate(run.objective.targets(batches), verbose=0, return_dict=True)
    loss, ids = run.objective.loss(), run.class_ids
    sets = run.embeddings(), run.embedding(pictures, training=False).numpy()
    ways = [loss.between(ids, one, ids, other) for one, other in (sets, sets[::-1])]
    assert logs["loss"] == pytest.approx(float(sum(ways)) / 2, rel=1e-4)


def test_without_levels_one_output_has_the_class_ids_as_targets(objective):
    one = objective("--loss=snca")
    assert not one.outputs()
    batches = object()
    assert one.targets(batches) is batches
    assert set(one.compile_arguments(10)) == {"loss", "metrics"}


def test_every_step_updates_the_embedding(objective):
    one = objective("--loss=snca", "--warmup_steps=1")
    assert one.updates(8) == 8
    assert one.learning_rate(9).total_steps == 9
    assert one.rate_after(0.5, 8) == 0.5


@pytest.mark.slow
def test_a_memory_of_earlier_batches_does_not_change_the_embedding(tiny):
    flags = ["--memory_size=20", "--memory_weight=0.5", "--memory_start_step=0"]
    run = tiny("--loss=snca", "--batch_size=8", *flags, two_levels=False)
    assert isinstance(run.model, models.CrossBatchMemory)
    assert run.model.get_config()["weight"] == 0.5 and run.model.batch_term
    logs = run.model.train_on_batch(run.images, run.class_ids, return_dict=True)
    assert logs["loss"] == pytest.approx(logs["tightness"] + logs["contrastive"], rel=1e-4)
    assert run.model.written.numpy() == 8
    assert run.model.count_params() == run.embedding.count_params()
    np.testing.assert_array_equal(run.model.predict(run.images, verbose=0), run.embeddings())


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--memory_weight=2"], "memory_size must be at least batch_size=128, but got none"),
        (["--memory_size=100"], "memory_size must be at least batch_size=128.*100"),
        (["--memory_size=500", "--loss=ice"], "anchor_gradient must be True"),
        (
            ["--memory_size=500", "--memory_batch_term=false"],
            "start_step must be 0 without batch_term",
        ),
    ],
)
def test_an_invalid_memory_is_refused(tiny, flags, message):
    with pytest.raises(ValueError, match=message):
        tiny("--loss=snca", *flags, two_levels=False)


def test_a_memory_with_levels_is_refused(tiny):
    with pytest.raises(ValueError, match="memory_size must be unset with --levels"):
        tiny("--loss=snca", "--memory_size=500")


def test_a_memory_that_starts_after_the_last_step_is_refused(objective):
    message = "memory_start_step must be below the 1,000 steps.*1000"
    with pytest.raises(UsageError, match=message):
        objective("--memory_size=500").check_steps(1000)
    objective("--memory_size=500").check_steps(1001)
    objective("--memory_size=500", "--memory_start_step=0").check_steps(1)
    objective("--loss=snca").check_steps(1)


def test_chunks_that_depend_on_each_other_are_refused(tiny):
    message = "chunk_size must be unset without --frozen_batch_norm or --chunk_statistics.*norm"
    with pytest.raises(ValueError, match=message):
        tiny("--loss=snca", "--chunk_size=3", two_levels=False)


@pytest.mark.slow
@tiers.parametrize(
    "loss",
    ["snca", "margin", "memory", "ce", "center", "proxy_anchor"],
    ["memory", "snca"],
    pytest.mark.thorough,
)
def test_chunks_give_the_weights_of_the_whole_batch(tiny, loss):
    flags = [f"--loss={loss}", "--frozen_batch_norm", "--batch_size=8"]
    if loss == "memory":
        flags[0] = "--loss=snca"
        flags += ["--memory_size=20", "--memory_start_step=0"]
    trained = []
    for more in ([], ["--chunk_size=3"]):
        run = tiny(*flags, *more, two_levels=False)
        batches = tf.data.Dataset.from_tensors((run.images, run.class_ids)).repeat(2)
        run.model.run_eagerly = True
        history = run.model.fit(run.objective.targets(batches), verbose=0).history
        trained.append((run.embedding.get_weights(), history))
    (plain, logs), (chunked, chunked_logs) = trained
    assert difference(plain, chunked) < 1e-5
    assert set(logs) == set(chunked_logs)
    assert chunked_logs["loss"] == pytest.approx(logs["loss"], rel=1e-4)


@pytest.mark.thorough
@pytest.mark.slow
def test_chunks_with_levels(tiny):
    trained = []
    for more in ([], ["--chunk_size=3"]):
        run = tiny("--loss=multi_similarity", "--frozen_batch_norm", *more)
        batches = tf.data.Dataset.from_tensors((run.images, run.class_ids))
        run.model.fit(run.objective.targets(batches), verbose=0)
        trained.append(run.embedding.get_weights())
    assert difference(*trained) < 1e-5


@pytest.mark.slow
def test_miners_are_applied_in_order(tiny):
    run = tiny("--loss=contrastive", "--mining=easy_positive,semi_hard", two_levels=False)
    by_hand = losses.ContrastiveLoss(mining=[mining.EasyPositive(), mining.SemiHard()])
    expected = float(by_hand(run.class_ids, run.embeddings()))
    assert run.evaluate()["loss"] == pytest.approx(expected, rel=1e-4)
    assert expected < float(losses.ContrastiveLoss()(run.class_ids, run.embeddings()))


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--mining=hardest"], "mining must be one of hard, semi_hard, .*hardest"),
        (["--mining="], "mining must not be empty"),
    ],
)
def test_invalid_mining_is_refused(objective, flags, message):
    with pytest.raises(ValueError, match=message):
        objective(*flags)
