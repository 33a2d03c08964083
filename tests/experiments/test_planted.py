"""The audit finds errors that are planted in a dataset."""

import csv

import numpy as np
import pytest
from PIL import Image
from synthetic_photographs import catalog, photographs

from experiments import audit
from experiments.options.command_line import run_command
from pipelines import load_dataset


def plant(folder, wrong_labels, copies):
    """Write 12 photographs of 8 classes, some into a wrong folder, and copies of other photographs.

    Returns:
        The right classes of the images in a wrong folder, and the sources of the copies.
    """
    rng = np.random.default_rng(0)
    order = rng.permutation(96)
    right, source_of = {}, {}
    for row, pixels in enumerate(photographs(catalog(8, seed=0), 12, seed=0)):
        label, is_wrong = row // 12, row in order[:wrong_labels]
        name = f"class_{(label + is_wrong * rng.integers(1, 8)) % 8}/{row:06d}.png"
        if is_wrong:
            right[name] = f"class_{label}"
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        image = Image.fromarray(pixels).resize((160, 120), Image.Resampling.BICUBIC)
        image.save(folder / name)
        if row in order[-copies:]:
            copy = f"class_{label}/{96 + len(source_of):06d}.jpg"
            image.save(folder / copy, quality=40)
            source_of[copy] = name
    return right, source_of


@pytest.mark.slow
def test_the_audit_finds_planted_errors(tmp_path):
    # Embeddings of a good model: one center per class, plus a vector per photograph. Copies have
    # almost the same vector.
    right, source_of = plant(tmp_path / "photos", wrong_labels=10, copies=10)
    split = load_dataset("folder", data_dir=tmp_path / "photos")
    rng = np.random.default_rng(1)
    vectors = np.repeat(np.eye(8, 16), 12, axis=0) + 0.1 * rng.normal(size=(96, 16))
    arrays = {}
    for side, table in (("train_", split.train), ("", split.test)):
        names = ["/".join(path.split("/")[-2:]) for path in table.paths]
        sources = [source_of.get(name, name) for name in names]
        numbers = [int(name.partition("/")[2].partition(".")[0]) for name in sources]
        arrays[f"{side}embeddings"] = vectors[numbers] + 0.02 * rng.normal(size=(len(table), 16))
        arrays[f"{side}labels"] = np.array(table.class_names)[table.labels]
        arrays[f"{side}paths"] = table.paths
    np.savez(tmp_path / "planted.npz", **arrays)
    assert run_command(audit.main, ["audit", f"--embeddings={tmp_path / 'planted.npz'}"]) == 0
    with open(tmp_path / "planted-audit" / "findings.csv", newline="") as stream:
        findings = list(csv.DictReader(stream))

    def short(image):
        return "/".join(image.split("/")[-2:])

    suggested = {
        short(row["image"]): row["suggested_class"]
        for row in findings
        if row["finding"] == "label error"
    }
    # All are right. Classes of 12 images are small for 20 neighbors, so some are not found.
    assert suggested.items() <= right.items() and len(suggested) >= 8
    pairs = {frozenset((short(row["image"]), short(row["other_image"]))) for row in findings
             if row["group"]}  # fmt: skip
    assert pairs == {frozenset(pair) for pair in source_of.items()}
