"""A dataset with a catalog: scores between photos and pictures, and one or two encoders."""

import json
import pathlib

import keras
import numpy as np
import pytest
import tensorflow as tf
import tiers
from official_layouts import write_groceries
from photo_search import picture
from tiny_run import (
    TINY,
    assert_same_runs,
    assert_serves_its_embeddings,
    command,
    command_of,
    history,
    small_encoder,
    stopping_after_a_checkpoint,
)

import pipelines
from experiments.options import data as described
from experiments.training.run_files import CANDIDATE, SERVED
from keras_dml import relations
from keras_dml.metrics import recall_at_k

evaluate = command_of("evaluate")
WORDS = [word for word in TINY if not word.startswith(("--dataset", "--batch_size"))]
WORDS += ["--dataset=groceries", "--candidates=catalog", "--loss=nt_xent", "--batch_size=4"]
WORDS += ["--steps_per_epoch=2", "--relation=shares_label"]


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Six test classes with two photos each, and a catalog of one picture per class."""
    ids = list(range(41, 47))
    data = write_groceries(
        tmp_path_factory.mktemp("catalog"), np.arange(4).repeat(4).tolist(), ids, ids
    )
    for seed, path in enumerate(sorted(data.rglob("*.jpg"))):
        picture(seed, (25, 20)).save(path)
    return data


@pytest.fixture(scope="module")
def words(data):
    """The words of a run with two encoders."""
    other = data / "other.keras"
    small_encoder().save(other)
    return [*WORDS, f"--data_dir={data}", f"--candidate_backbone={other}"]


@pytest.fixture(scope="module")
def run(words, tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "run"
    assert command(*words, f"--output_dir={folder}") == 0
    return folder


@pytest.fixture(scope="module")
def arrays(run):
    with np.load(run / "test_embeddings.npz") as saved:
        return dict(saved)


@pytest.mark.slow
def test_each_encoder_embeds_and_serves_its_images(run, arrays):
    assert arrays["catalog_paths"][0].endswith("Kind_41_Iconic.jpg")
    assert_serves_its_embeddings(run)
    served = tf.saved_model.load(str(run / f"{CANDIDATE}{SERVED}")).signatures["serving_default"]
    files = [pathlib.Path(path).read_bytes() for path in arrays["catalog_paths"]]
    found = served(tf.constant(files))["embeddings"].numpy()
    np.testing.assert_allclose(found, arrays["catalog_embeddings"], atol=1e-4)
    names = ("best.keras", f"{CANDIDATE}best.keras")
    best, other = (keras.saving.load_model(run / name, compile=False) for name in names)
    assert best.count_params() != other.count_params()
    card = (run / "report.html").read_text()
    assert "Candidate backbone" in card and "<h2>Retrieval in the catalog</h2>" in card


@pytest.mark.slow
def test_the_scores_compare_photos_with_the_catalog_in_both_directions(run, data, arrays):
    result = json.loads((run / "result.json").read_text())
    photos = arrays["embeddings"], arrays["labels"]
    pictures = arrays["catalog_embeddings"], arrays["catalog_labels"]
    for name, queries, others in (
        ("photo to catalog", photos, pictures),
        ("catalog to photo", pictures, photos),
        ("embedding", photos, (None, None)),
    ):
        found = recall_at_k(*queries, [1, 2], gallery=others[0], gallery_labels=others[1])
        assert result["recall"][f"{name}, cosine"] == {"1": found[1], "2": found[2]}
        assert f"{name}, l2" in result["table"]
    tags = described.paths_of_classes(pipelines.load_dataset("groceries", data).test)
    shares = relations.SharesLabel(encoding="ids")
    found = recall_at_k(photos[0], tags[photos[1]], [1, 2], relation=shares)
    assert result["recall"]["shares_label, cosine"] == {"1": found[1], "2": found[2]}
    assert {"catalog/recall@1/cosine", "test/recall@1/cosine"} <= history(run)[-1].keys()


@pytest.mark.slow
def test_evaluations_of_the_run_have_its_scores(run, data, tmp_path, capsys):
    expected = json.loads((run / "result.json").read_text())["rows"]
    of_groceries = ["--dataset=groceries", f"--data_dir={data}", "--relation=shares_label"]
    models = [f"--model={run / 'best.keras'}", *of_groceries]
    models += [f"--candidate_model={run / f'{CANDIDATE}best.keras'}"]
    for name, source in (
        ("run", [f"--run={run}"]),
        ("models", models),
        ("file", [f"--embeddings={run / 'test_embeddings.npz'}"]),
    ):
        output = tmp_path / name
        given = [*source, "--recall_at=1,2", "--noclustering", f"--output_dir={output}"]
        assert evaluate(*given) == 0
        rows = json.loads((output / "evaluation.json").read_text())["rows"]
        of_file = [row for row in expected if not row.startswith("shares_label")]
        assert list(rows) == (of_file if name == "file" else list(expected))
        for row, scores in rows.items():
            assert scores == pytest.approx(expected[row], abs=1e-6)
        page = (output / "evaluation.html").read_text()
        assert page.count("<h2>Retrieval in the catalog</h2>") == 1
    # The training classes have no catalog.
    capsys.readouterr()
    given = [f"--run={run}", "--split=train", "--noclustering"]
    given += [f"--output_dir={tmp_path / 'train'}"]
    assert evaluate(*given) == 0
    assert "catalog" not in capsys.readouterr().out.lower()


@tiers.thorough
def test_a_stopped_run_resumes_identically(words, run, tmp_path):
    with stopping_after_a_checkpoint():
        assert command(*words, f"--output_dir={tmp_path / 'run'}") == 130
    assert len(history(tmp_path / "run")) == 1
    assert command(*words, f"--output_dir={tmp_path / 'run'}") == 0
    assert_same_runs(run, tmp_path / "run")
    (tmp_path / "run" / f"{CANDIDATE}best.keras").write_text("damaged")
    assert evaluate(f"--run={tmp_path / 'run'}") == 2
