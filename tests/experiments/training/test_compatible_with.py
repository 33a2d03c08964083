"""`run --compatible_with`: old embeddings in the batches, the report's scores, and refusals."""

import json

import numpy as np
import pytest
import tensorflow as tf
from tiny_run import (
    TINY,
    assert_same_runs,
    command,
    history,
    run_options,
    stopping_after_a_checkpoint,
)

from experiments.options import data as described
from experiments.training.old_model import OldModel
from keras_dml import upgrade
from pipelines import training_batches


def compatible(photos, old, folder, *more):
    words = [f"--data_dir={photos}", f"--compatible_with={old}", f"--output_dir={folder}", *more]
    return command(*TINY, "--embedding_size=12", *words)


@pytest.mark.slow
def test_batches_have_the_old_embeddings_of_their_images(photos, finished, tmp_path):
    """From any step on, and on the folder of a run as well as on an index of its model."""
    words = [*TINY, f"--data_dir={photos}", f"--output_dir={tmp_path}"]
    options = run_options(*words, f"--compatible_with={finished}")
    data, _ = described.data(options)
    sampler = described.sampler(options, data.train, seed=3)
    old = OldModel(options)
    embedded = old.embeddings("training", data.train)
    served = tf.saved_model.load(str(finished / "saved_model")).signatures["serving_default"]
    files = [tf.io.read_file(str(path)) for path in data.train.paths]
    expected = served(tf.stack(files))["embeddings"].numpy()
    np.testing.assert_allclose(embedded, expected, atol=1e-5)
    assert old.dimensions == expected.shape[1]
    context = tf.distribute.InputContext()
    augmentation = described.training_transform(options)
    batches = training_batches(data.train, sampler, augmentation, start_step=2, num_steps=2)
    found = old.beside(batches, data.train, sampler, 2, None, context)
    for step, (_, (labels, rows)) in enumerate(found, start=2):
        np.testing.assert_array_equal(labels, data.train.labels[sampler(step)])
        np.testing.assert_array_equal(rows, embedded[sampler(step)])


@pytest.mark.slow
def test_a_run_reports_the_scores_of_both_models(photos, finished, tmp_path):
    more = ["--compatible_weight=2", "--compatible_alignment=1"]
    assert compatible(photos, finished, tmp_path / "new", *more) == 0
    result = json.loads((tmp_path / "new" / "result.json").read_text())
    old, new = (np.load(each / "test_embeddings.npz") for each in (finished, tmp_path / "new"))
    with pytest.warns(UserWarning):
        table = upgrade.cross_scores(old["embeddings"], new["embeddings"], new["labels"])
    compared = 0
    for row in table:
        if row.score in ("recall@1", "map@r"):
            shown = result["rows"][f"{row.queries} queries in {row.gallery} rows, cosine"]
            names = row.score, f"{row.score}_low", f"{row.score}_high"
            assert [shown[name] for name in names] == pytest.approx(row[3:], abs=1e-6)
            compared += 1
    assert compared == 6
    assert "Update gain in MAP@R" in (tmp_path / "new" / "report.html").read_text()
    assert all(row["train/compatible_loss"] > 0 for row in history(tmp_path / "new"))
    assert f"--compatible_with={finished}" in (tmp_path / "new" / "flags.txt").read_text()
    assert not (tmp_path / "new" / "old_embeddings").exists()


@pytest.mark.slow
def test_a_run_starts_from_the_old_weights(photos, finished, tmp_path):
    """With a rate of almost 0, the embeddings begin with the numbers of the old model."""
    more = ["--compatible_start", "--learning_rate=1e-20", "--frozen_batch_norm", "--epochs=1"]
    assert compatible(photos, finished, tmp_path / "new", *more) == 0
    old, new = (np.load(each / "test_embeddings.npz") for each in (finished, tmp_path / "new"))
    assert new["embeddings"].shape[1] == 12
    np.testing.assert_allclose(new["embeddings"][:, :8], old["embeddings"], rtol=1e-4, atol=1e-5)


@pytest.mark.slow
@pytest.mark.thorough
def test_a_stopped_run_resumes_identically(photos, finished, tmp_path):
    whole, stopped = tmp_path / "whole", tmp_path / "stopped"
    assert compatible(photos, finished, whole, "--deterministic") == 0
    with stopping_after_a_checkpoint():
        assert compatible(photos, finished, stopped, "--deterministic") == 130
    assert compatible(photos, finished, stopped, "--deterministic") == 0
    assert_same_runs(whole, stopped)


@pytest.mark.slow
def test_a_run_is_compatible_with_an_index_on_cached_features(photos, index, tmp_path):
    more = ["--freeze_backbone", "--cache_features", f"--cache_dir={tmp_path / 'features'}"]
    more += ["--embedding_size=48"]  # the length of the index
    assert compatible(photos, index, tmp_path / "new", *more) == 0
    names = {path.name.split("-")[1] for path in (tmp_path / "features").glob("old-*.npy")}
    assert names == {"training", "test"}


def test_a_start_from_an_index_is_refused(photos, index, tmp_path, capsys):
    more = ["--embedding_size=48", "--compatible_start"]
    assert compatible(photos, index, tmp_path / "new", *more) == 2
    assert "Set the run whose model built it" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize(
    "more, words",
    [
        (["--compatible_with=nowhere"], "compatible_with must be the folder of a finished run"),
        (["--embedding_size=4"], "embedding_size=8"),
        (["--loss=ce"], "compatible_with"),
        (["--loss=lifted_structure"], "compatible_with"),
        (["--memory_size=20"], "memory_size must be unset"),
        (["--matryoshka=4,12"], "matryoshka"),
        (["--compatible_weight=-1"], "compatible_weight"),
        (["--compatible_alignment=-1"], "compatible_alignment"),
        (["--compatible_start", "--filters=8"], "compatible_start must be unset"),
    ],
)
def test_mistakes_are_one_line(photos, finished, tmp_path, capsys, more, words):
    assert compatible(photos, finished, tmp_path / "new", *more) == 2
    said = capsys.readouterr().err
    assert said.count("error:") == 1 and words in said and said.rstrip().count("\n") == 0
    assert not (tmp_path / "new").exists()


def test_a_damaged_or_mapped_index_is_refused(photos, tmp_path, capsys):
    folder = tmp_path / "index"
    folder.mkdir()
    (folder / "model").mkdir()
    (folder / "model" / "saved_model.pb").write_bytes(b"another model")
    settings = {"saved_model": "model", "fingerprint": "0" * 64}
    for content, words in (
        ("{", "undamaged index"),
        (json.dumps(settings), "changed since"),
        (json.dumps({**settings, "map": {"kind": "affine"}}), "has a map"),
    ):
        (folder / "settings.json").write_text(content)
        assert compatible(photos, folder, tmp_path / "new") == 2
        assert words in capsys.readouterr().err
