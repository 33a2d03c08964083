"""JSON files of a stranger, with right checksums: one line that names the file, and exit code 2."""

import json
import os
import shutil
import types

import numpy as np
import pytest
import tensorflow as tf
from photo_search import picture
from tiny_run import command_of

from experiments.evaluation.baselines import RawPixels
from experiments.evaluation.calibration import calibration_path, read_calibration
from experiments.evaluation.result import RAW_PIXELS_FILE
from experiments.options.errors import UsageError
from experiments.searching.gallery import FolderGallery
from experiments.searching.index_folder import (
    read_settings,
    write_json_file,
    write_settings,
)
from experiments.training.run_files import (
    CHECKPOINT,
    IMAGES,
    LOG,
    RESULT,
    read_finished,
)
from experiments.training.run_folder import RunFolder
from experiments.training.run_images import settle_images
from keras_dml._files.checksums import sealed_json
from keras_dml._files.manifest import MANIFEST, DamagedError, Manifest
from keras_dml.retrieval import ExactIndex
from pipelines import ImageTable

RESULT_OF_RUN = {
    "table": "t", "rows": {"embedding, cosine": {"recall@1": 0.5}}, "scores": {"nmi": None},
    "best_epoch": 2, "train_seconds": 1.5, "seconds": 2,
}  # fmt: skip
ROW = {"epoch": 1, "step": 3, "train/loss": 0.5}
CRAFTED = [
    (RESULT, json.dumps({**RESULT_OF_RUN, name: value}), name)
    for name, value in [
        ("rows", None), ("rows", {"a": 1}), ("rows", {"a": {"b": "x"}}), ("scores", []),
        ("best_epoch", "2"), ("best_epoch", 10**400), ("seconds", None), ("table", ["x"]),
        ("baselines", {"raw pixels": {"cosine": {"recall@1": "high"}}}),
    ]
] + [
    *((RESULT, text, "") for text in ("", "null", "[]", "[" * 100_000, '{"rows":' + "1" * 5000)),
    *((LOG, text, "") for text in ("", "null\n", "[1]\n", "{}\n", "x", "\0")),
    (LOG, json.dumps({**ROW, "step": "x"}) + "\n", "step must be a number"),
    (LOG, json.dumps({**ROW, "epoch": 0}) + "\n", "epoch"),
]  # fmt: skip


@pytest.fixture
def run(tmp_path):
    folder = RunFolder(tmp_path / "run", "--epochs=2\n").open()
    folder.write_text(RESULT, json.dumps(RESULT_OF_RUN))
    folder.write_text(LOG, json.dumps(ROW) + "\n")
    yield folder
    folder.close()


@pytest.mark.parametrize(("name", "text", "named"), CRAFTED)
def test_a_crafted_result_or_log_is_named(run, name, text, named):
    assert read_finished(run.path, whole=True) == (RESULT_OF_RUN, [ROW])
    run.write_text(name, text)
    with pytest.raises(DamagedError, match=rf"{run.path / name} is damaged.*{named}") as refused:
        read_finished(run.path, whole=True)
    assert str(refused.value).endswith(f". Put it back, or delete {run.path} and repeat the run")
    assert len(str(refused.value)) < 1000 and "\n" not in str(refused.value)


@pytest.mark.parametrize(
    "images",
    [
        None,
        [],
        {"test": 1},
        {"test": {"images": "x"}},
        {"test": {"images": 1, "classes": {"a": 5}}},
    ],
)
def test_crafted_images_are_named(run, images):
    run.write_text(CHECKPOINT, "")
    run.write_text(IMAGES, json.dumps(images))
    with pytest.raises(
        DamagedError, match=f"{run.path / IMAGES} is damaged.* or delete {run.path} "
    ):
        settle_images(run, {"test": {"images": 1, "classes": {"a": ["x.png"]}}})


@pytest.mark.parametrize(
    ("crafted", "place"),
    [
        ({"cosine": {"recall@1": "high"}}, "cosine.recall@1"),
        ({"cosine": [[0.5]]}, "cosine"),
        ({"classes": [[0.5]]}, "classes"),
        ({"classes": {"recall@1": [[0.5], [1]], "map@r": [[0.5, 1, 1], [1, 1, 1]]}}, "recall@1"),
        ({"pairs": [[1, 2], [3, 4], 0.5, 0.5]}, "pairs"),
        ({"pairs": [0.5]}, "pairs"),
    ],
)
def test_a_crafted_file_of_a_baseline_is_named(run, crafted, place):
    images = ImageTable.from_arrays(np.zeros((6, 2), "float32"), [0, 0, 1, 1, 2, 2])
    options = types.SimpleNamespace(raw_pixels=True)
    data = types.SimpleNamespace(tables={"test": images}, test=images)
    of_run = types.SimpleNamespace(folder=run, options=options, data=data)
    of_classes = dict.fromkeys(("recall@1", "map@r"), [[1] * 3] * 2)
    good = {"cosine": {"recall@1": 0.5}, "classes": of_classes}
    run.write_json(RAW_PIXELS_FILE, good)
    baseline = RawPixels()
    baseline.before(of_run, None)
    assert baseline.finish(of_run, None).classes
    run.write_json(RAW_PIXELS_FILE, good | crafted)
    path = run.file(RAW_PIXELS_FILE)
    with pytest.raises(DamagedError, match=rf"{path} is damaged: .*{place}.* Delete it, and"):
        RawPixels().before(of_run, None)


def test_a_manifest_that_is_no_file_of_checksums(run):
    path = run.path / MANIFEST
    for text in ("", "null", "[]", '{"a": 1}', '{"../a": "0"}', '{"/a": "0"}', "[" * 100_000):
        path.write_text(text)
        with pytest.raises(DamagedError, match=f"{path} is damaged"):
            Manifest(run.path).checksums()
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(DamagedError, match=f"{path} must be a regular file"):
        Manifest(run.path).checksums()


@pytest.mark.parametrize(
    "change",
    [
        {"threshold": 10**400},
        {"threshold": "x"},
        {"metric": None},
        {"false_match_rate": [1]},
        {"findings": 3},
        {"other": 1},
    ],
)
def test_a_crafted_calibration_is_named(change, tmp_path):
    found = {"metric": "cosine", "threshold": 0.5, "false_match_rate": 0.01, "fingerprint": "f"}
    path = calibration_path(tmp_path / "model")
    path.write_text(sealed_json(found))
    assert read_calibration(tmp_path / "model", "f").threshold == 0.5
    path.write_text(sealed_json(found | change))
    with pytest.raises(UsageError, match=f"{path} is damaged"):
        read_calibration(tmp_path / "model", "f")


@pytest.mark.parametrize(
    "change",
    [
        {"saved_model": 1},
        {"images": None},
        {"built": []},
        {"search": {}},
        {"saved_model": "a\0b"},
        {"store": 5},
    ],
)
def test_crafted_settings_of_an_index_are_named(change, index, tmp_path):
    copy = shutil.copytree(index, tmp_path / "index")
    path = copy / "settings.json"
    write_settings(copy, read_settings(copy) | change)
    with pytest.raises(UsageError, match=f"{path} is damaged: {next(iter(change))} must be"):
        FolderGallery(copy)


@pytest.mark.parametrize(
    "columns",
    [
        {"names": ["a"], "rows": {"x": "y"}},
        {"names": "a"},
        {},
        {"names": ["a", "b"], "rows": {"x": ["y"]}},
    ],
)
def test_crafted_columns_of_an_index_are_named(columns, index, tmp_path):
    copy = shutil.copytree(index, tmp_path / "index")
    write_json_file(copy, "columns.json", columns)
    with pytest.raises(UsageError, match=rf"{copy / 'columns.json'} is damaged"):
        FolderGallery(copy)


def test_the_settings_of_version_0_2_have_their_checksum_inside(index, tmp_path):
    copy = shutil.copytree(index, tmp_path / "index")
    (copy / "manifest.json").unlink()
    text = sealed_json(json.loads((copy / "settings.json").read_text()))
    (copy / "settings.json").write_text(text)
    assert FolderGallery(copy).paths == FolderGallery(index).paths
    (copy / "settings.json").write_text(text.replace("exact search", "exact seach"))
    with pytest.raises(UsageError, match="settings.json is damaged: its SHA-256 differs"):
        FolderGallery(copy)


def test_an_index_of_whole_numbers_is_refused(index, tmp_path):
    copy = shutil.copytree(index, tmp_path / "index")
    ExactIndex(np.eye(3, 48, dtype="float32"), ids=[4, 5, 6]).save(copy / "index")
    with pytest.raises(UsageError, match="paths of images as ids, but got whole numbers"):
        FolderGallery(copy)


@pytest.mark.parametrize("text", ["", "{", "null", "[]", "{}", '{"backbone": 5}'])
def test_crafted_flags_of_a_backbone_are_named(text, index, tmp_path, capsys):
    path = tmp_path / "new" / "model" / "assets.extra" / "backbone.json"
    path.parent.mkdir(parents=True)
    path.write_text(text)
    words = ["--backbone=small_convnet", "--weights=none", f"--images={index.parent / 'photos'}"]
    assert command_of("index")(*words, f"--output_dir={tmp_path / 'new'}") == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"error: {path} is damaged")
    assert line.endswith(f"Delete {tmp_path / 'new'}, and the same command makes the index again.")


def save_text_model(path, length):
    """Save a model of any text, as the encoder of texts of a run with two encoders."""

    @tf.function(input_signature=[tf.TensorSpec([None], tf.string, name="texts")])
    def serve(texts):
        lengths = tf.cast(tf.strings.length(texts), tf.float32)
        return {"embeddings": tf.sin(lengths[:, None] * tf.range(1.0, length + 1))}

    module = tf.Module()
    module.serve = serve
    tf.saved_model.save(module, str(path), {"serving_default": serve})


def test_a_text_model_searches_no_photograph_and_no_other_bytes(index, tmp_path, capsys):
    save_text_model(tmp_path / "model", 48)
    picture(1).save(tmp_path / "photo.png")
    given = [f"--index={index}", f"--query_model={tmp_path / 'model'}", "--k=1"]
    assert command_of("search")(*given, "--query_text=red") == 0
    capsys.readouterr()
    assert command_of("search")(*given, f"--query={tmp_path / 'photo.png'}") == 2
    assert "query_model must take images" in capsys.readouterr().err
    assert command_of("search")(*given, "--query_text=caf\udce9") == 2
    assert "query_text must be UTF-8" in capsys.readouterr().err
