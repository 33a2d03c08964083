"""Publication on the Hugging Face Hub, without a network: the staged files, and the calls."""

import json
import shutil
import sys
from unittest import mock

import keras
import numpy as np
import pytest
from tiny_run import command_of, small_encoder, write_run

from experiments.exporting import hub
from experiments.options import RunOptions, UsageError, parse
from keras_dml import models
from keras_dml._common.errors import ArgumentError
from keras_dml._common.extras import MissingExtraError
from keras_dml.retrieval import ExactIndex

CARD = "# glyphs, saved_model, float32\n\n## Use\n\n- File: `saved_model`\n\n## Data\n\nsome\n"


@pytest.fixture
def run(tmp_path):
    """A run folder with an export, and an index."""
    run = tmp_path / "glyphs-seed0"
    write_run(run, small_encoder())
    folder = run / "exports" / "saved_model"
    (folder / "saved_model").mkdir(parents=True)
    (folder / "saved_model" / "saved_model.pb").write_bytes(b"graph")
    (folder / "model_card.md").write_text(CARD)
    (folder / "export.json").write_text(json.dumps({"keras_recalls": {"1": 0.84567, "2": 0.9}}))
    (run / "saved_model-calibration.json").write_text('{"threshold": 0.6}')
    (tmp_path / "photo_index").mkdir()
    ExactIndex(np.eye(3, dtype="float32")).save(tmp_path / "photo_index" / "index")
    (tmp_path / "photo_index" / "settings.json").write_text('{"images": "/home/me/photos"}')
    return run


def options_of(*words):
    return parse(RunOptions, ["run", "--dataset=glyphs", *words])


@pytest.fixture
def api(tmp_path, monkeypatch):
    """Stands for `huggingface_hub.HfApi`: copies the files to the folder `api.repository`."""
    api = mock.Mock(repository=tmp_path / "hub")
    api.create_repo.return_value = "https://hub/me/glyphs"
    api.upload_folder.side_effect = lambda repo_id, folder_path, commit_message: shutil.copytree(
        folder_path, api.repository, dirs_exist_ok=True
    )
    monkeypatch.setattr(pytest.importorskip("huggingface_hub"), "HfApi", lambda: api)
    return api


def test_model_card_threshold_and_index_are_published(run, api, tmp_path):
    from huggingface_hub import ModelCard

    repository, index = hub.check_target("hf:me/glyphs", tmp_path / "photo_index")
    exported, published = run / "exports" / "saved_model", api.repository
    address = hub.publish(run, options_of(), exported, repository, index)
    assert address == "https://hub/me/glyphs"
    api.create_repo.assert_called_once_with("me/glyphs", private=True, exist_ok=True)
    given = api.upload_folder.call_args.kwargs
    assert given["repo_id"] == "me/glyphs" and "glyphs-seed0" in given["commit_message"]
    files = {path.relative_to(published).as_posix() for path in published.rglob("*.*")}
    assert files == {
        "README.md", "model.keras", "export.json", "threshold.json", "index/index.json",
        "index/embeddings.npy", "index/manifest.json",
        "saved_model/saved_model.pb",
    }  # fmt: skip
    images = np.ones([2, 16, 16, 3], "float32")
    expected = keras.saving.load_model(run / "best.keras").predict(images, verbose=0)
    loaded = models.from_hub(published)
    np.testing.assert_array_equal(loaded.predict(images, verbose=0), expected)
    # The Hub reads the scores from the metadata.
    card = ModelCard.load(published / "README.md")
    assert card.data.model_name == "glyphs" and card.data.library_name == "keras"
    scores = {score.metric_name: score.metric_value for score in card.data.eval_results}
    assert scores == {"R@1, cosine": 0.8457, "R@2, cosine": 0.9}
    assert {score.dataset_name for score in card.data.eval_results} == {"glyphs"}
    assert 'models.from_hub("me/glyphs")' in card.text and "## Data" in card.text
    # Scores of images that trained say nothing about new images.
    hub.publish(run, options_of("--class_split=every_class"), exported, repository, None)
    assert "model-index" not in (published / "README.md").read_text()


def test_an_upload_has_no_files_that_links_name(run, api, tmp_path):
    secret = tmp_path / "secret"
    secret.write_text("a password")
    folder, exported = tmp_path / "photo_index" / "index", run / "exports" / "saved_model"
    (folder / "notes.txt").symlink_to(secret)
    (folder / "other.txt").write_text("not of the index")
    repository, index = hub.check_target("hf:me/glyphs", folder.parent)
    hub.publish(run, options_of(), exported, repository, index)
    assert {path.name for path in (api.repository / "index").iterdir()} == {
        "index.json", "embeddings.npy", "manifest.json",
    }  # fmt: skip
    # A link under the name of a file of the index, and a link to a whole index.
    rows = folder / "embeddings.npy"
    rows.rename(tmp_path / "rows.npy")
    rows.symlink_to(tmp_path / "rows.npy")
    (tmp_path / "linked").mkdir()
    (tmp_path / "linked" / "index").symlink_to(folder)
    for place in (folder.parent, folder, tmp_path / "linked"):
        with pytest.raises(UsageError, match="index without links.*must not be a link"):
            hub.check_target("hf:me/glyphs", place)
    for name in ("saved_model-calibration.json", "exports/saved_model/more"):
        (run / name).unlink(missing_ok=True)
        (run / name).symlink_to(secret)
        with pytest.raises(ArgumentError, match="must not be a link"):
            hub.publish(run, options_of(), exported, repository, None)
        (run / name).unlink()


def test_a_refused_upload_is_one_line(run, api):
    api.create_repo.side_effect = ConnectionError("401 Unauthorized\nmore lines")
    exported = run / "exports" / "saved_model"
    with pytest.raises(UsageError, match="to must be .*401 Unauthorized. The export is complete"):
        hub.publish(run, options_of(), exported, "me/glyphs", None)


def test_wrong_targets_are_refused(tmp_path, monkeypatch):
    pytest.importorskip("huggingface_hub")
    for to in ("me/glyphs", "hf:glyphs", "hf:a/b/c", "s3:me/glyphs"):
        with pytest.raises(UsageError, match="to must be hf:USER/NAME"):
            hub.check_target(to, None)
    with pytest.raises(UsageError, match="index must be a folder"):
        hub.check_target("hf:me/glyphs", tmp_path)
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(MissingExtraError, match=r"keras-dml\[hf\]"):
        hub.check_target("hf:me/glyphs", None)


def test_from_hub_downloads_the_model(run, monkeypatch):
    download = mock.Mock(return_value=str(run / "best.keras"))
    hub = mock.Mock(hf_hub_download=download)
    monkeypatch.setitem(sys.modules, "huggingface_hub", hub)
    assert models.from_hub("me/glyphs", revision="v1").output_shape == (None, 6)
    download.assert_called_once_with("me/glyphs", "model.keras", revision="v1")
    download.side_effect = OSError("404 Client Error\nmore lines")
    with pytest.raises(ArgumentError, match="name must be .*me/nothing.*404 Client Error"):
        models.from_hub("me/nothing")
    # The HTTP library of a client has its own classes of errors.
    download.side_effect = type("ProtocolError", (Exception,), {})("from http://me:secret@host")
    with pytest.raises(ArgumentError, match="name must be .*me/nothing.* from http://…@host"):
        models.from_hub("me/nothing")
    # A Hub that does not answer: only the cache is tried, because a download tries for minutes.
    download.reset_mock()
    hub.get_hf_file_metadata.side_effect = TimeoutError("timed out")
    hub.try_to_load_from_cache.return_value = str(run / "best.keras")
    assert models.from_hub("me/glyphs").output_shape == (None, 6)
    hub.try_to_load_from_cache.return_value = None
    with pytest.raises(ArgumentError, match="timed out"):
        models.from_hub("me/glyphs")
    download.assert_not_called()


@pytest.mark.slow
def test_the_command_publishes_an_export(finished, api, tmp_path, capsys):
    from huggingface_hub import ModelCard

    run = shutil.copytree(finished, tmp_path / "glyphs-seed0")
    words = [f"--run={run}", "--format=saved_model", "--to=hf:me/glyphs"]
    assert command_of("export")(*words) == 0
    assert "published: https://hub/me/glyphs" in capsys.readouterr().out
    card = ModelCard.load(api.repository / "README.md")
    assert len(card.data.eval_results) == 2
    assert models.from_hub(api.repository).output_shape == (None, 8)
    assert str(tmp_path) not in card.content
