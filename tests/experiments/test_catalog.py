"""A dataset with a catalog has scores among photos and from photos to the catalog."""

import io
import json

import numpy as np
import pytest
from official_layouts import write_groceries
from PIL import Image
from tiny_run import TINY, command, history

from experiments import evaluate
from experiments.options.command_line import run_command
from keras_dml.metrics import recall_at_k


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A short run on six test classes, with a catalog of one picture per class."""
    root = tmp_path_factory.mktemp("catalog")
    data = write_groceries(
        root / "data", np.arange(4).repeat(4).tolist(), list(range(41, 47)), list(range(41, 47))
    )
    rng = np.random.default_rng(0)
    for path in sorted(data.rglob("*.jpg")):
        file = io.BytesIO()
        colors = rng.integers(0, 256, (4, 5, 3), dtype=np.uint8)
        Image.fromarray(colors).resize((25, 20)).save(file, "JPEG")
        path.write_bytes(file.getvalue())
    folder = root / "run"
    words = [word for word in TINY if not word.startswith("--dataset")]
    words += ["--dataset=groceries", f"--data_dir={data}", "--raw_pixels"]
    assert command(*words, f"--output_dir={folder}") == 0
    return folder


@pytest.mark.thorough
@pytest.mark.slow
def test_a_run_has_both_scores(run):
    with np.load(run / "test_embeddings.npz") as saved:
        arrays = dict(saved)
    assert arrays["catalog_labels"].tolist() == list(range(6))
    assert arrays["catalog_paths"][0].endswith("Kind_41_Iconic.jpg")
    found = recall_at_k(
        arrays["embeddings"], arrays["labels"], [1, 2],
        gallery=arrays["catalog_embeddings"], gallery_labels=arrays["catalog_labels"],
    )  # fmt: skip
    result = json.loads((run / "result.json").read_text())
    assert result["recall"]["photo to catalog, cosine"] == {"1": found[1], "2": found[2]}
    assert "photo to catalog, l2" in result["table"]
    # The scores among photos do not include the catalog.
    photos = recall_at_k(arrays["embeddings"], arrays["labels"], [1])
    assert result["recall"]["embedding, cosine"]["1"] == photos[1]
    assert {"catalog/recall@1/cosine", "test/recall@1/cosine"} <= history(run)[-1].keys()
    page = (run / "report.html").read_text()
    assert "<dt>Catalog</dt><dd>6 pictures of the same</dd>" in page
    assert "<h2>Retrieval</h2>" in page and "<h2>Retrieval in the catalog</h2>" in page


@pytest.mark.thorough
@pytest.mark.slow
def test_an_evaluation_has_the_same_scores(run, tmp_path, capsys):
    recall = json.loads((run / "result.json").read_text())["recall"]["photo to catalog, cosine"]
    for source in (f"--run={run}", f"--embeddings={run / 'test_embeddings.npz'}"):
        words = [source, "--recall_at=1,2", f"--output_dir={tmp_path / source[2:5]}"]
        assert run_command(evaluate.main, ["evaluate", *words]) == 0
        result = json.loads((tmp_path / source[2:5] / "evaluation.json").read_text())
        assert result["catalog_recall"]["cosine"] == recall
        assert "photo to catalog, l2" in capsys.readouterr().out
        page = (tmp_path / source[2:5] / "evaluation.html").read_text()
        assert page.count("<h2>Retrieval in the catalog</h2>") == 1
    # The training classes have no catalog.
    words = [f"--run={run}", "--split=train", f"--output_dir={tmp_path / 'train'}"]
    assert run_command(evaluate.main, ["evaluate", *words]) == 0
    assert "catalog" not in capsys.readouterr().out.lower()
