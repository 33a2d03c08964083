"""A classifier over the embedding, alone or beside a loss over the embeddings."""

import numpy as np
import pytest


@pytest.mark.parametrize("name", ["ce", "center"])
def test_the_classifier_takes_all_levels_together(name, tiny, level_names):
    run = tiny(f"--loss={name}")
    assert run.embedding.output_shape == (None, 10)
    assert run.model.get_layer("logits").kernel.shape == (10, 4)
    assert not any(level in str(run.objective.compile_arguments(10)) for level in level_names)


def test_the_classifier_alone_has_the_loss_of_its_logits(tiny):
    run = tiny("--loss=ce", "--epsilon=0")
    logs = run.evaluate()
    # Its weights start at zero: all four classes are alike.
    assert logs["loss"] == pytest.approx(np.log(4), rel=1e-5)
    assert logs["tightness"] + logs["contrastive"] == pytest.approx(logs["loss"], rel=1e-5)


@pytest.mark.slow
def test_beside_the_center_loss_both_have_their_weights(tiny):
    run = tiny("--loss=center", "--center_weight=0.25")
    logs = run.evaluate()
    center = float(run.objective.loss()(run.class_ids, run.embeddings()))
    assert center > 0.01
    assert logs["embeddings_loss"] == pytest.approx(center, rel=1e-4)
    assert logs["loss"] == pytest.approx(0.25 * center + np.log(4), rel=1e-4)
    # Both are logged as the two parts that they are.
    assert {run.objective.log_names.get(name, name) for name in logs} == {
        "loss",
        "tightness",
        "contrastive",
    }
