"""Losses over the embeddings alone: one output, or one for each level."""

import pytest


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


def test_without_levels_there_is_one_output_and_the_class_ids_stay_as_they_are(objective):
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


def test_an_argument_of_another_loss_is_refused(objective):
    with pytest.raises(ValueError, match=r"sigma is no argument of loss fastap.*sigma=0\.5"):
        objective("--loss=fastap", "--sigma=0.5").compile_arguments(10)
