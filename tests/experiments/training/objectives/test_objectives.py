"""The objective of each loss, combinations that are refused, and losses with proxies."""

import numpy as np
import pytest

import pipelines
from experiments.evaluation.evaluators import ClassifierAccuracy, ClassMeanAccuracy
from experiments.training.objectives.proxies import HEADS
from experiments.training.optimizer import backbone_optimizer
from keras_dml import layers, losses

OVER_PROXIES = [name for name, loss in losses.LOSSES.items() if issubclass(loss, losses.ProxyLoss)]


@pytest.mark.parametrize("name", losses.LOSSES)
def test_every_loss_has_an_objective(name, objective):
    kinds = {type(each) for each in objective(f"--loss={name}").evaluators()}
    assert (ClassifierAccuracy in kinds) == (name in ("ce", "center", *OVER_PROXIES))
    assert (ClassMeanAccuracy in kinds) != (ClassifierAccuracy in kinds)


def test_the_heads_of_the_losses_have_their_settings():
    assert set(HEADS) <= set(OVER_PROXIES)
    for given in HEADS.values():
        head = layers.ProxyHead(3, **given)
        assert {name: getattr(head, name) for name in given} == given


REFUSED = [
    ("spce --classifier", "loss must be one of .* with classifier=.*spce"),
    ("ice --objective=alternating", "loss must be one of .* with objective=.*ice"),
    ("arcface --mining=hard", "loss must be one of .* with mining=.*arcface"),
    ("arcface --relation=hierarchy", "loss must be one of .* with relation=.*arcface"),
    ("snca --dropout=0.5", "loss must be one of .* with dropout=.*snca"),
    ("rankmi --matryoshka=4,8", "loss must be one of .* with matryoshka=.*rankmi"),
    ("rankmi --chunk_size=3", "loss must be one of .* with chunk_size=.*rankmi"),
    ("n_pairs --memory_size=500", "loss must be one of .* with memory_size=.*n_pairs"),
    ("arcface --memory_size=500", "loss must be one of .* with memory_size=.*arcface"),
    ("snca --proxies_centers=2", "loss must be one of .* with proxies_centers=.*snca"),
    ("supcon --relation=hierarchy --relation_min_overlap=0.5", "relation must be shares_label"),
    ("supcon --relation_min_overlap=0.5", "relation_min_overlap must be unset without --relation"),
    ("supcon --relation=hierarchy --relation_positives=shelf", "relation_positives must be"),
    ("ce --also=arcface", "also must be one of .*, but got arcface"),
    ("arcface --also=tcm", "also must come with a loss over pairs or with ce"),
    ("contrastive --also=tcm --memory_size=9", "also .*memory_size"),
    ("ce --also=tcm --also_flags=scale=2", "also_flags must be an argument of tcm"),
    ("ce --objective=alternating --label_smoothing=0.1", "label_smoothing must be 0"),
    ("contrastive --mining=hardest", "mining must be one of hard, semi_hard, .*hardest"),
    ("contrastive --mining=", "mining must not be empty"),
    ("snca --matryoshka=4,a", "matryoshka must be whole numbers"),
    ("snca --matryoshka=8,4,8", "matryoshka must be increasing lengths"),
    ("snca --matryoshka=0,8", "each at least 1"),
    ("snca --track=nothing", "track must be of .*nothing"),
    ("snca --track=arcface", "track must be of losses over embeddings.*arcface.*proxies"),
    ("snca --track=rankmi", "track must be of losses over embeddings.*rankmi.*network"),
    ("snca --track=spce --track_flags=margin=1", "track_flags must be an argument of spce"),
    ("snca --track=triplet --track_flags=margin=x", "track_flags: margin must be a finite number"),
    ("snca --track_flags=margin=1", "track_flags must be LOSS/ARGUMENT=VALUE"),
    ("snca --memory_weight=2", "memory_size must be at least batch_size=128, but got none"),
    ("snca --memory_size=100", "memory_size must be at least batch_size=128.*100"),
    ("ice --memory_size=500", "anchor_gradient must be True"),
    ("snca --memory_size=500 --memory_batch_term=false", "start_step must be 0 without batch_term"),
    ("snca --memory_size=500 --levels=stage1_conv2_relu", "memory_size must be unset with"),
    ("snca --chunk_size=3", "chunk_size must be unset without --frozen_batch_norm or .*norm"),
    ("margin --boundaries=3", "boundaries must be 1, or 4, .*3"),
]


@pytest.mark.parametrize(("words", "message"), REFUSED)
def test_flags_that_do_not_fit_are_refused(words, message, objective, tiny):
    words = f"--loss={words}".split()
    with pytest.raises(ValueError, match=message):
        made = objective(*words)
        made.loss()
        made.evaluators()
        tiny(*words, two_levels=False)


def test_the_head_concatenates_all_levels_and_shares_the_embedding(tiny):
    run = tiny("--loss=arcface", "--margin=0.3")
    assert run.embedding.output_shape == (None, 10)
    head = run.model.get_layer("proxy_head")
    assert head.proxies.shape == (4, 10)
    logs = run.evaluate()
    cosines = np.asarray(head(run.embeddings()))
    expected = float(losses.ArcFaceLoss(margin=0.3)(run.class_ids, cosines))
    assert logs["loss"] == pytest.approx(expected, rel=1e-4)
    assert logs["tightness"] + logs["contrastive"] == pytest.approx(expected, rel=1e-3)


def test_the_head_follows_the_definition_of_the_loss_by_default(tiny):
    head = tiny("--loss=soft_triple").model.get_layer("proxy_head")
    assert (head.centers, head.pooling, head.proxies_regularizer) == (10, "soft", None)
    words = ["--proxies_centers=2", "--proxies_temperature=0.5", "--proxies_merging=0.3"]
    head = tiny("--loss=soft_triple", *words).model.get_layer("proxy_head")
    assert (head.centers, head.pooling, head.temperature) == (2, "soft", 0.5)
    assert head.proxies_regularizer.get_config() == {"centers": 2, "weight": 0.3}
    assert tiny("--loss=subcenter_arcface").model.get_layer("proxy_head").centers == 3


@pytest.mark.slow
def test_a_head_can_sample_classes(tiny, objective):
    run = tiny("--loss=arcface", "--proxies_sampled=0.9", "--seed=7")
    head = run.model.get_layer("proxy_head")
    assert (head.sampled, head.seed, head.sample_size) == (0.9, 7, 4)
    history = run.fit(2)
    assert np.isfinite([history["loss"], history["tightness"], history["contrastive"]]).all()
    assert run.model.predict(run.images, verbose=0).shape == (8, 4)
    table = pipelines.ImageTable.from_arrays(run.images.astype("uint8"), run.class_ids)
    data = pipelines.Split(table, table)
    run.objective.check_batches(data, pipelines.RandomSampler(8, 8))
    half = "--loss=arcface", "--proxies_sampled=0.5"
    objective(*half).check_batches(data, pipelines.RandomSampler(8, 2))
    with pytest.raises(ValueError, match="proxies_sampled must be at least 1, .* got 0.5"):
        objective(*half).check_batches(data, pipelines.RandomSampler(8, 8))
    by_class = objective(*half, "--sampler=balanced")
    by_class.check_batches(data, pipelines.BalancedSampler(run.class_ids, 2, 2))
    with pytest.raises(ValueError, match="because a batch has 3 classes"):
        by_class.check_batches(data, pipelines.BalancedSampler(run.class_ids, 3, 2))


def test_proxies_can_have_a_separate_learning_rate(tiny):
    run = tiny("--loss=proxy_anchor", "--proxies_factor=20", "--pretrained_factor=0.5")
    factors = run.objective.rate_factors(run.model)
    assert factors == {run.model.get_layer("proxy_head").proxies.path: 20.0}
    backbone = run.embedding.get_layer("stage1_conv1")
    given = backbone_optimizer(run.objective.options, [backbone], 0.1, factors)
    assert sorted(given.learning_rate_multipliers.values()) == [0.5, 20.0]
    assert tiny("--loss=proxy_anchor").objective.rate_factors(run.model) == {}


@pytest.mark.slow
@pytest.mark.parametrize("boundaries", [1, 4])
def test_the_margin_loss_can_learn_its_boundaries(boundaries, tiny, level_names):
    run = tiny("--loss=margin", f"--boundaries={boundaries}")
    layer = run.model.get_layer(f"{level_names[0]}_boundary")
    assert layer.boundaries.shape == (boundaries,)
    assert np.isfinite(run.evaluate()["loss"])
    assert run.embedding.output_shape == (None, 10)
