"""A run of photographs against the texts of their classes."""

import importlib.util
import json

import numpy as np
import pytest
import tensorflow as tf
import tiers
from hub_presets import text_preset
from official_layouts import write_groceries
from photo_search import picture
from tiny_run import (
    TINY,
    assert_same_runs,
    assert_serves_its_embeddings,
    command,
    command_of,
    stopping_after_a_checkpoint,
)

from experiments.training.run_files import CANDIDATE, SERVED

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("keras_hub") is None, reason="KerasHub is in the extra hub"
)
WORDS = [word for word in TINY if not word.startswith(("--dataset", "--batch_size"))]
WORDS += ["--dataset=groceries", "--candidates=catalog", "--loss=nt_xent", "--batch_size=4"]
WORDS += ["--steps_per_epoch=2", "--text_length=8"]
IDS = [*range(4), *range(41, 45)]


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """Photos of four training and four test classes, two texts of a class, and a text encoder."""
    root = tmp_path_factory.mktemp("texts")
    ids = IDS[4:]
    data = write_groceries(root / "data", np.arange(4).repeat(4).tolist(), ids, ids)
    for seed, path in enumerate(sorted(data.rglob("*.jpg"))):
        picture(seed, (25, 20)).save(path)
    lines = [f'Kind_{number},"a {colored} apple, kind {number}"' for number in IDS
             for colored in ("red", "green")]  # fmt: skip
    (root / "texts.csv").write_text("\n".join(["class,text", *lines, "Kind_80,milk", ""]))
    text_preset(root / "bert")
    return root


@pytest.fixture(scope="module")
def words(root):
    given = [f"--texts={root / 'texts.csv'}", f"--candidate_backbone=hub:{root / 'bert'}"]
    return [*WORDS, f"--data_dir={root / 'data'}", *given]


@pytest.fixture(scope="module")
def run(words, tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "run"
    assert command(*words, f"--output_dir={folder}") == 0
    return folder


@pytest.mark.slow
def test_texts_are_embedded_scored_shown_and_served(run):
    with np.load(run / "test_embeddings.npz") as saved:
        arrays = dict(saved)
    assert arrays["catalog_labels"].tolist() == [0, 0, 1, 1, 2, 2, 3, 3]
    assert_serves_its_embeddings(run)
    served = tf.saved_model.load(str(run / f"{CANDIDATE}{SERVED}")).signatures["serving_default"]
    texts = [f"a {colored} apple, kind {kind}" for kind in IDS[4:] for colored in ("red", "green")]
    found = served(tf.constant(texts))["embeddings"].numpy()
    np.testing.assert_allclose(found, arrays["catalog_embeddings"], atol=1e-4)
    rows = json.loads((run / "result.json").read_text())["rows"]
    assert {"photo to catalog, cosine", "catalog to photo, cosine"} <= rows.keys()
    assert "8 texts of the same classes" in (run / "report.html").read_text()
    assert command_of("evaluate")(f"--run={run}") == 0
    evaluated = json.loads((run / "evaluation" / "evaluation.json").read_text())["rows"]
    for row in ("photo to catalog, cosine", "catalog to photo, cosine"):
        assert evaluated[row] == pytest.approx(rows[row], abs=1e-6)


@tiers.thorough
def test_a_stopped_run_resumes_identically_with_the_same_texts_only(words, run, root, tmp_path):
    with stopping_after_a_checkpoint():
        assert command(*words, f"--output_dir={tmp_path / 'run'}") == 130
    before = (root / "texts.csv").read_text()
    for kind in ("Kind_0", "Kind_41"):  # of a training class, of a test class
        (root / "texts.csv").write_text(before.replace(f"{kind},", f"{kind},milk\n{kind},"))
        assert command(*words, f"--output_dir={tmp_path / 'run'}") == 2
    (root / "texts.csv").write_text(before)
    assert command(*words, f"--output_dir={tmp_path / 'run'}") == 0
    assert_same_runs(run, tmp_path / "run")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("content", "flags", "message"),
    [
        ("class,text\nKind_41,a\nKind_42,\n", [], "a text for each class, but got none for 3 of 4"),
        ("name,text\nKind_0,a\n", [], "texts must have the columns class and text, but got name"),
        (None, [], "texts must be an existing CSV file"),
        ("class,text\n", ["--candidate_backbone=none"], "without --candidate_backbone"),
        ("", ["--text_length=17"], "length must be at most 16"),
        ("", ["--candidate_backbone=resnet50"], "backbone must be hub: and a KerasHub preset"),
    ],
)
def test_a_mistake_is_one_line(content, flags, message, words, root, tmp_path, capsys):
    path = root / "texts.csv" if content == "" else tmp_path / "texts.csv"
    if content:
        path.write_text(content)
    given = [*words, f"--texts={path}", *flags, f"--output_dir={tmp_path / 'run'}"]
    assert command(*given) == 2
    (line,) = capsys.readouterr().err.strip().splitlines()[-1:]
    assert message in line and not (tmp_path / "run").exists()
