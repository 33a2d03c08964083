"""The audit finds errors that the audit benchmark plants in a dataset."""

import csv
import json

import numpy as np
import pytest
from PIL import Image
from synthetic_photographs import catalog, photographs

from experiments import audit
from experiments.benchmarks.audit import CHANGES, PHOTOS, PLANTED, plant, score
from experiments.options import UsageError
from experiments.options.command_line import run_command
from pipelines import ImageTable, load_dataset
from pipelines.split import Split, split_by_class


@pytest.fixture(scope="module")
def photographed(tmp_path_factory):
    """A dataset of 8 classes with 12 image files each."""
    folder = tmp_path_factory.mktemp("photographed")
    labels = np.repeat(np.arange(8), 12)
    for number, pixels in enumerate(photographs(catalog(8, seed=0), 12, seed=0)):
        large = Image.fromarray(pixels).resize((160, 120), Image.Resampling.BICUBIC)
        large.save(folder / f"{number}.png")
    paths = [folder / f"{number}.png" for number in range(96)]
    return split_by_class(ImageTable.from_paths(paths, labels, [f"class/{n}" for n in range(8)]))


def test_planted_errors(photographed, tmp_path):
    planted = plant(photographed, tmp_path, wrong_labels=0.1, copies=10)
    assert planted == json.loads((tmp_path / PLANTED).read_text())
    assert len(planted["labels"]) == 10 and len(planted["copies"]) == 10
    assert [change for _, change in planted["copies"].values()] == 2 * list(CHANGES)
    photos = {str(path.relative_to(tmp_path / PHOTOS)) for path in tmp_path.rglob("*/*/*.*")}
    assert len(photos) == 96 + 10
    for name, right in planted["labels"].items():
        number = int(name.partition("/")[2].partition(".")[0])
        assert right == f"class_{number // 12}" != name.partition("/")[0]
    for name, (source, _) in planted["copies"].items():
        assert {name, source} <= photos and source not in planted["labels"]
        assert name.partition("/")[0] == source.partition("/")[0]


def test_the_score_counts_found_errors():
    planted = {
        "labels": {"a/1.jpg": "b", "a/2.jpg": "c"},
        "copies": {"a/9.jpg": ["a/3.jpg", "cropped"], "b/8.jpg": ["b/4.jpg", "resized"]},
    }
    wrong = {"finding": "label error", "group": "", "other_image": ""}
    near = {"finding": "near-duplicate", "group": "3", "suggested_class": ""}
    lines = [
        {**wrong, "image": "/x/a/1.jpg", "suggested_class": "b"},
        {**wrong, "image": "/x/b/7.jpg", "suggested_class": "b"},
        {**near, "image": "/x/a/3.jpg", "other_image": "/x/a/9.jpg"},
        {**near, "image": "/x/c/1.jpg", "other_image": "/x/c/2.jpg"},
    ]
    labels, copies, *changes = score(planted, lines)
    assert "1 of 2 found, recall 0.500; 2 reported, precision 0.500" in labels
    assert (
        "1 of 2 found, recall 0.500; 2 pairs reported, 1 of them among the original photographs"
        in copies
    )
    assert changes == ["  cropped: 1 of 1", "  resized: 0 of 1"]


def test_datasets_that_are_refused(photographed, tmp_path):
    with pytest.raises(UsageError, match="and 200 images, but got 8 and 91"):
        plant(photographed, tmp_path, copies=200)
    pixels = ImageTable.from_arrays(np.zeros((4, 8, 8, 3), np.uint8), [0, 0, 1, 1])
    with pytest.raises(UsageError, match="image files"):
        plant(Split(pixels, pixels, same_classes=True), tmp_path)


@pytest.mark.slow
def test_the_audit_finds_planted_errors(photographed, tmp_path):
    # Embeddings of a good model: one center per class, plus a vector per photograph. Copies have
    # almost the same vector.
    planted = plant(photographed, tmp_path, wrong_labels=0.1, copies=10)
    split = load_dataset("folder", data_dir=tmp_path / PHOTOS)
    rng = np.random.default_rng(1)
    vectors = np.repeat(np.eye(8, 16), 12, axis=0) + 0.1 * rng.normal(size=(96, 16))
    arrays = {}
    for side, table in (("train_", split.train), ("", split.test)):
        names = ["/".join(path.split("/")[-2:]) for path in table.paths]
        sources = [planted["copies"].get(name, [name])[0] for name in names]
        numbers = [int(name.partition("/")[2].partition(".")[0]) for name in sources]
        arrays[f"{side}embeddings"] = vectors[numbers] + 0.02 * rng.normal(size=(len(table), 16))
        arrays[f"{side}labels"] = np.array(table.class_names)[table.labels]
        arrays[f"{side}paths"] = table.paths
    np.savez(tmp_path / "planted.npz", **arrays)
    assert run_command(audit.main, ["audit", f"--embeddings={tmp_path / 'planted.npz'}"]) == 0
    with open(tmp_path / "planted-audit" / "findings.csv", newline="") as stream:
        labels, copies, *_ = score(planted, list(csv.DictReader(stream)))
    # Classes of 12 images are small for 20 neighbors.
    assert "8 of 10 found, recall 0.800; 8 reported, precision 1.000" in labels
    assert "10 of 10 found, recall 1.000; 10 pairs reported, 0 of them" in copies
