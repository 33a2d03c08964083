"""Publication on the Hugging Face Hub, without a network: the staged files, and the calls."""

import json
import pathlib
import shutil
import sys
import types

import keras
import numpy as np
import pytest
from tiny_run import command_of

from experiments.exporting import hub
from experiments.options import RunOptions, UsageError, parse
from keras_dml import models
from keras_dml._common.errors import ArgumentError
from keras_dml._common.extras import MissingExtraError

CARD = "# glyphs, saved_model, float32\n\n## Use\n\n- File: `saved_model`\n\n## Data\n\nsome\n"


@pytest.fixture
def run(tmp_path, monkeypatch):
    """A run folder with an export, and an index."""
    run = tmp_path / "glyphs-seed0"
    folder = run / "exports" / "saved_model"
    (folder / "saved_model").mkdir(parents=True)
    (folder / "saved_model" / "saved_model.pb").write_bytes(b"graph")
    (folder / "model_card.md").write_text(CARD)
    (folder / "export.json").write_text(json.dumps({"keras_recalls": {"1": 0.84567, "2": 0.9}}))
    (run / "saved_model-calibration.json").write_text('{"threshold": 0.6}')
    inputs = keras.Input((4, 4, 3))
    model = keras.Model(inputs, keras.layers.Dense(2)(keras.layers.Flatten()(inputs)))
    model.save(run / "best.keras")
    monkeypatch.setattr(hub, "kept_model", lambda run: run / "best.keras")
    (tmp_path / "photo_index" / "index").mkdir(parents=True)
    (tmp_path / "photo_index" / "index" / "index.json").write_text("{}")
    (tmp_path / "photo_index" / "settings.json").write_text('{"images": "/home/me/photos"}')
    return run


def options_of(*words):
    return parse(RunOptions, ["run", "--dataset=glyphs", *words])


class FakeApi:
    """Stands for `huggingface_hub.HfApi`: copies the folder."""

    target: pathlib.Path

    def create_repo(self, repository, private, exist_ok):
        assert (repository, private, exist_ok) == ("me/glyphs", True, True)
        return f"https://hub/{repository}"

    def upload_folder(self, repo_id, folder_path, commit_message):
        assert repo_id == "me/glyphs" and "glyphs-seed0" in commit_message
        shutil.copytree(folder_path, self.target)


def test_model_card_threshold_and_index_are_published(run, tmp_path, monkeypatch):
    huggingface_hub = pytest.importorskip("huggingface_hub")
    FakeApi.target = tmp_path / "hub"
    monkeypatch.setattr(huggingface_hub, "HfApi", FakeApi)
    repository, index = hub.check_target("hf:me/glyphs", tmp_path / "photo_index")
    exported = run / "exports" / "saved_model"
    address = hub.publish(run, options_of(), exported, repository, index)
    assert address == "https://hub/me/glyphs"
    files = {path.relative_to(FakeApi.target).as_posix() for path in FakeApi.target.rglob("*.*")}
    assert files == {
        "README.md", "model.keras", "export.json", "threshold.json", "index/index.json",
        "saved_model/saved_model.pb",
    }  # fmt: skip
    images = np.ones([2, 4, 4, 3], "float32")
    expected = keras.saving.load_model(run / "best.keras").predict(images, verbose=0)
    loaded = models.from_hub(FakeApi.target)
    np.testing.assert_array_equal(loaded.predict(images, verbose=0), expected)
    # The Hub reads the scores from the metadata.
    card = huggingface_hub.ModelCard.load(FakeApi.target / "README.md")
    assert card.data.model_name == "glyphs" and card.data.library_name == "keras"
    scores = {score.metric_name: score.metric_value for score in card.data.eval_results}
    assert scores == {"R@1, cosine": 0.8457, "R@2, cosine": 0.9}
    assert {score.dataset_name for score in card.data.eval_results} == {"glyphs"}
    assert 'models.from_hub("me/glyphs")' in card.text and "## Data" in card.text
    # Scores of images that trained say nothing about new images.
    shutil.rmtree(FakeApi.target)
    hub.publish(run, options_of("--class_split=every_class"), exported, repository, None)
    assert "model-index" not in (FakeApi.target / "README.md").read_text()


def test_a_refused_upload_is_one_line(run, monkeypatch):
    huggingface_hub = pytest.importorskip("huggingface_hub")

    def refuse(self, *arguments, **more):
        raise ConnectionError("401 Unauthorized\nmore lines")

    monkeypatch.setattr(huggingface_hub, "HfApi", FakeApi)
    monkeypatch.setattr(FakeApi, "create_repo", refuse)
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
    asked = []

    def download(name, file, revision):
        asked.append((name, file, revision))
        if name == "me/nothing":
            raise OSError("404 Client Error\nmore lines")
        return str(run / "best.keras")

    fake = types.SimpleNamespace(hf_hub_download=download)
    monkeypatch.setitem(sys.modules, "huggingface_hub", fake)
    assert models.from_hub("me/glyphs", revision="v1").output_shape == (None, 2)
    assert asked == [("me/glyphs", "model.keras", "v1")]
    with pytest.raises(
        ArgumentError, match="name must be a repository.*me/nothing.*404 Client Error"
    ):
        models.from_hub("me/nothing")


@pytest.mark.slow
def test_the_command_publishes_an_export(finished, tmp_path, monkeypatch, capsys):
    huggingface_hub = pytest.importorskip("huggingface_hub")
    FakeApi.target = tmp_path / "hub"
    monkeypatch.setattr(huggingface_hub, "HfApi", FakeApi)
    run = shutil.copytree(finished, tmp_path / "glyphs-seed0")
    words = [f"--run={run}", "--format=saved_model", "--to=hf:me/glyphs"]
    assert command_of("export")(*words) == 0
    assert "published: https://hub/me/glyphs" in capsys.readouterr().out
    card = huggingface_hub.ModelCard.load(FakeApi.target / "README.md")
    assert len(card.data.eval_results) == 2
    assert models.from_hub(FakeApi.target).output_shape == (None, 8)
    assert str(tmp_path) not in card.content
