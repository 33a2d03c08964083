"""Proxies of the training classes, and boundaries of the margin loss."""

import numpy as np
import pytest

from experiments.training.optimizer import backbone_optimizer
from keras_dml import losses


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


def test_boundaries_must_be_one_or_one_per_class(tiny):
    with pytest.raises(ValueError, match="boundaries must be 1, or 4, .*3"):
        tiny("--loss=margin", "--boundaries=3")
