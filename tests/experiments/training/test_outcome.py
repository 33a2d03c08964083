"""The outcome of a run: evaluation and export of the kept model."""

import tiny_run

from experiments.training import outcome


def test_the_last_epoch_is_not_embedded_by_a_second_function(tmp_path, photos, monkeypatch):
    """The evaluation during training has a function and a pipeline for the same weights."""

    def refuse(*args, **kwargs):
        raise AssertionError("a new function embeds the images")

    monkeypatch.setattr(outcome, "embeddings_on_disk", refuse)
    tiny_run.finished_run(tmp_path / "run", photos, "--epochs=1")
