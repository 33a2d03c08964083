"""`experiments.audit`: planted errors, output files, exit codes, and invalid input."""

import csv
import shutil

import numpy as np
import pytest
from PIL import Image
from synthetic_photographs import catalog, photographs
from tiny_run import command_of, small_encoder, write_run

RNG = np.random.default_rng(0)
# A class name with characters of HTML, CSV, and right-to-left text.
NASTY = '<b>"a",\u202eb'
# 6 separate classes of 15 rows, with two swapped labels, one outlier, and one duplicate.
CENTERS = np.eye(6, 8)
EMBEDDINGS = np.repeat(CENTERS, 15, axis=0) + RNG.normal(0, 0.1, (90, 8))
LABELS = np.repeat([NASTY, *(f"class {number}" for number in range(1, 6))], 15)
LABELS[[7, 40]] = LABELS[[40, 7]]
EMBEDDINGS[3] = [0, 0, 0, 0, 0, 0, -1, -1]
EMBEDDINGS[60] = EMBEDDINGS[61]


command = command_of("audit")


def findings(folder):
    with open(folder / "findings.csv", newline="", encoding="utf-8") as stream:
        return list(csv.DictReader(stream))


def of_kind(lines, kind):
    return [line for line in lines if line["finding"] == kind]


@pytest.fixture
def audited(tmp_path):
    """A function that audits the arrays of a file, and returns the findings."""

    def audited(*words, **arrays):
        np.savez(tmp_path / "mine.npz", **arrays)
        assert command(f"--embeddings={tmp_path / 'mine.npz'}", *words) == 0
        return findings(tmp_path / "mine-audit")

    return audited


def test_third_party_embeddings_and_limits(audited, tmp_path, capsys):
    limits = ["--max_label_errors=3", "--max_outliers=2", "--max_duplicates=1"]
    given = ["--similarity=0.999", *limits]
    lines = audited(*given, embeddings=EMBEDDINGS, labels=LABELS)
    wrong = {line["row"]: line["suggested_class"] for line in of_kind(lines, "label error")}
    assert wrong["7"] == NASTY and wrong["40"] == "class 2"
    assert set(wrong) <= {"3", "7", "40"}  # row 3 is the outlier
    assert of_kind(lines, "outlier")[0]["row"] == "3"
    (pair,) = of_kind(lines, "near-duplicate")
    assert (pair["row"], pair["other_row"], pair["group"]) == ("60", "61", "60")
    assert pair["score"] == "1.0000" and pair["image"] == "image 60"
    assert len(of_kind(lines, "confused classes")) >= 1
    page = (tmp_path / "mine-audit" / "audit.html").read_text()
    assert "<img" not in page and "Labels probably wrong: " in page and "class 2" in page
    assert "<b>&quot;" not in page and "&lt;b&gt;" in page and "\u202e" not in page
    assert "images that training has seen" not in capsys.readouterr().out
    assert command(f"--embeddings={tmp_path / 'mine.npz'}", *given, "--max_outliers=0") == 3
    printed = capsys.readouterr()
    assert "found: 2 outliers (--max_outliers=0): more than is allowed" in printed.err
    assert "findings.csv" in printed.out  # also written if a limit is exceeded


@pytest.mark.slow
def test_duplicates_between_the_sets_of_a_file(tmp_path, capsys):
    pictures = photographs(catalog(4, seed=1), 3, seed=1)
    paths = [tmp_path / f"{number}.png" for number in range(len(pictures))]
    for path, pixels in zip(paths, pictures):
        Image.fromarray(pixels).resize((64, 64)).save(path)
    copies = [tmp_path / name for name in ("copy.png", "again.bmp", "mirrored.png")]
    shutil.copy(paths[0], copies[0])
    Image.open(paths[1]).save(copies[1])
    Image.open(paths[2]).transpose(Image.Transpose.FLIP_LEFT_RIGHT).save(copies[2])
    (tmp_path / "broken.png").write_bytes(b"no image")
    z = RNG.normal(size=(12, 4))
    arrays = {
        "train_embeddings": z,
        "train_labels": np.arange(12) // 3,
        "train_paths": list(map(str, paths)),
        "embeddings": np.concatenate([z[:3], -z[:1]]),
        "labels": np.array([0, 0, 0, 7]),
        "paths": list(map(str, [*copies, tmp_path / "broken.png"])),
    }
    np.savez(tmp_path / "sets.npz", **arrays)
    assert command(f"--embeddings={tmp_path / 'sets.npz'}", "--max_leaks=2") == 3
    assert "3 images that training has seen (--max_leaks=2)" in capsys.readouterr().err
    lines = findings(tmp_path / "sets-audit")
    pairs = of_kind(lines, "near-duplicate")
    assert sorted(line["row"] for line in pairs) == ["0", "1", "2"]
    assert pairs[0]["score"] == "1.0000"
    assert {(line["set"], line["other_set"]) for line in pairs} == {("train", "test")}
    page = (tmp_path / "sets-audit" / "audit.html").read_text()
    assert "Near-duplicates across train and test: 3" in page and "<img" in page
    assert "1, the first" in page and "broken.png" in page


@pytest.mark.slow
def test_a_run_with_its_training_images(photos, tmp_path, capsys):
    folder, run = tmp_path / "photos", tmp_path / "run"
    shutil.copytree(photos, folder)
    # The first classes by name train, and the last classes test. Leak a training image.
    shutil.copy(folder / "class0" / "1.jpg", folder / "class9" / "seen.jpg")
    write_run(run, small_encoder(), f"--data_dir={folder}")
    assert command(f"--run={run}", "--max_leaks=1") == 0
    assert "images that training has seen      1        1" in capsys.readouterr().out
    pair = of_kind(findings(run / "audit"), "near-duplicate")[0]
    assert (pair["set"], pair["class"]) == ("train", "class0")
    assert (pair["other_set"], pair["other_class"]) == ("test", "class9")
    assert np.load(run / "audit" / "train.npy").shape == (20, 6)
    assert np.load(run / "audit" / "test.npy").shape == (21, 6)


@pytest.mark.parametrize("count", [1, 2, 30])
def test_identical_embeddings(audited, count):
    labels = np.arange(count) % 2 + 2**40
    lines = audited(f"--max_duplicates={count - 1}", embeddings=np.ones((count, 3)), labels=labels)
    groups = [line["group"] for line in of_kind(lines, "near-duplicate")]
    assert len(groups) >= count - 1 and set(groups) <= {"0"}
    assert not of_kind(lines, "outlier")
    assert "1099511627776" in str(lines) or count == 1


def test_one_class_and_rows_of_zeros(audited):
    rows = np.concatenate([EMBEDDINGS, np.zeros((2, 8))])
    lines = audited(embeddings=rows, labels=np.zeros(92))
    assert not of_kind(lines, "label error") and not of_kind(lines, "confused classes")
    assert {"90", "91"} <= {line["row"] for line in of_kind(lines, "outlier")}
