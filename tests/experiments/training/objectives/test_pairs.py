"""Losses over pairs: levels, memory, chunks, miners, prefixes, a second loss, and relations."""

import numpy as np
import pytest
import tiers
from processes import difference

from experiments.evaluation.evaluators import RetrievalScores
from experiments.options import UsageError
from experiments.options.data import paths_of_classes
from experiments.options.data import relation as relation_of
from keras_dml import losses, mining, models, relations
from pipelines import ImageTable


@pytest.mark.slow
def test_a_loss_over_pairs_is_summed_over_the_levels(tiny, level_names):
    run = tiny("--loss=multi_similarity")
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
    logs = run.evaluate(inputs=(run.images, pictures))
    loss, ids = run.objective.loss(), run.class_ids
    sets = run.embeddings(), run.embedding(pictures, training=False).numpy()
    ways = [loss.between(ids, one, ids, other) for one, other in (sets, sets[::-1])]
    assert logs["loss"] == pytest.approx(float(sum(ways)) / 2, rel=1e-4)


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


def test_a_memory_that_starts_after_the_last_step_is_refused(objective):
    message = "memory_start_step must be below the 1,000 steps.*1000"
    with pytest.raises(UsageError, match=message):
        objective("--memory_size=500").check_steps(1000)
    objective("--memory_size=500").check_steps(1001)
    objective("--memory_size=500", "--memory_start_step=0").check_steps(1)
    objective("--loss=snca").check_steps(1)


@pytest.mark.slow
@tiers.parametrize(
    "loss",
    ["snca", "margin", "memory", "levels", "ce", "center", "proxy_anchor"],
    ["memory", "snca"],
    pytest.mark.thorough,
)
def test_chunks_give_the_weights_of_the_whole_batch(tiny, loss):
    losses_of = {"memory": ["snca", "--memory_size=20", "--memory_start_step=0"]}
    losses_of["levels"] = ["multi_similarity"]
    name, *flags = losses_of.get(loss, [loss])
    flags += [f"--loss={name}", "--frozen_batch_norm", "--batch_size=8"]
    trained = []
    for more in ([], ["--chunk_size=3"]):
        run = tiny(*flags, *more, two_levels=loss == "levels")
        run.model.run_eagerly = True
        history = run.fit(2)
        trained.append((run.embedding.get_weights(), history))
    (plain, logs), (chunked, chunked_logs) = trained
    assert difference(plain, chunked) < 1e-5
    assert set(logs) == set(chunked_logs)
    assert chunked_logs["loss"] == pytest.approx(logs["loss"], rel=1e-4)


@pytest.mark.slow
def test_miners_are_applied_in_order(tiny):
    run = tiny("--loss=contrastive", "--mining=easy_positive,semi_hard", two_levels=False)
    by_hand = losses.ContrastiveLoss(mining=[mining.EasyPositive(), mining.SemiHard()])
    expected = float(by_hand(run.class_ids, run.embeddings()))
    assert run.evaluate()["loss"] == pytest.approx(expected, rel=1e-4)
    assert expected < float(losses.ContrastiveLoss()(run.class_ids, run.embeddings()))


def test_loss_and_scores_have_the_prefixes_of_the_flag(objective):
    one = objective("--loss=snca", "--temperature=0.2", "--matryoshka=2,4,8", "--embedding_size=8")
    loss = one.loss()
    assert isinstance(loss, losses.MatryoshkaLoss)
    assert (loss.dims, loss.loss.temperature) == ((2, 4, 8), 0.2)
    (scores,) = [each for each in one.evaluators() if isinstance(each, RetrievalScores)]
    assert scores.prefixes == (2, 4)
    assert not isinstance(objective("--loss=snca").loss(), losses.MatryoshkaLoss)


def test_prefixes_of_backbone_features_end_with_their_length(objective):
    one = objective("--loss=snca", "--matryoshka=4,8")
    one.check_dimensions(8)
    with pytest.raises(UsageError, match="matryoshka must end with 16.*4,8"):
        one.check_dimensions(16)
    objective("--loss=snca").check_dimensions(16)


@pytest.mark.parametrize("first", ["ce", "contrastive"])
def test_the_loss_is_the_sum_of_both_with_the_weight(first, tiny):
    words = ["--also=tcm", "--also_weight=0.5", "--also_flags=negative_margin=0.2"]
    run = tiny(f"--loss={first}", *words, two_levels=False)
    outputs = run.model(run.images, training=False)
    one = losses.get(first)(run.class_ids, outputs["first"])
    other = losses.ThresholdConsistentMarginLoss(negative_margin=0.2)(
        run.class_ids, outputs["also"]
    )
    assert run.evaluate()["loss"] == pytest.approx(float(one) + 0.5 * float(other), rel=1e-4)
    assert outputs["first"].shape[1] == (4 if first == "ce" else 5)


# Classes 0 and 2 have the coarse class 7, and classes 1 and 3 the coarse class 5.
CLASSES = ImageTable(
    np.arange(4),
    tuple("abcd"),
    arrays=np.zeros((4, 2), "float32"),
    coarse_ids=np.array([7, 5, 7, 5]),
)


def test_each_class_has_a_label_of_its_coarse_class_and_one_of_its_own():
    assert paths_of_classes(CLASSES).tolist() == [[1, 2], [0, 3], [1, 4], [0, 5]]
    with pytest.raises(UsageError, match="dataset must have coarse classes with --relation"):
        paths_of_classes(ImageTable.from_arrays(np.zeros((4, 2)), np.arange(4)))


@pytest.mark.parametrize(
    ("flags", "relation"),
    [
        ("hierarchy", relations.Hierarchy()),
        ("hierarchy --relation_positives=category", relations.Hierarchy("category")),
        ("shares_label", relations.SharesLabel(encoding="ids")),
        ("shares_label --relation_min_overlap=0.5", relations.SharesLabel(0.5, encoding="ids")),
    ],
)
def test_the_loss_has_the_relation_of_the_flags(objective, flags, relation):
    made = objective("--loss=supcon", *f"--relation={flags}".split())
    assert relation_of(made.options).get_config() == relation.get_config()
    z = np.random.default_rng(0).normal(size=(8, 3)).astype("float32")
    labels = paths_of_classes(CLASSES)[np.repeat(np.arange(4), 2)]
    expected = losses.SupConLoss(relation=relation)(labels, z)
    assert float(made.loss()(labels, z)) == float(expected)


@pytest.mark.slow
@pytest.mark.parametrize("more", [[], ["--memory_size=20", "--memory_start_step=0"]])
def test_a_step_with_a_relation_has_the_loss_of_the_relation(tiny, more):
    flags = ["--loss=supcon", "--relation=hierarchy", "--batch_size=8"]
    run = tiny(*flags, *more, two_levels=False)
    [(_, labels)] = run.batches(classes=CLASSES)
    expected = losses.SupConLoss(relation=relations.Hierarchy())(labels, run.embeddings())
    logs = run.evaluate(classes=CLASSES)
    assert logs["loss"] == pytest.approx(float(expected), rel=1e-4)
    assert logs["positives_per_anchor"] == 1
    before = run.embeddings()
    run.fit(1, classes=CLASSES)
    assert (before != run.embeddings()).any()
