"""A run with pretrained weights also shows the scores of the untrained backbone."""

import contextlib
import io
import json
import re
import sys

import keras
import numpy as np
import pytest
from photo_search import write_photos
from tiny_run import command_of, finished_run

from keras_dml import metrics, models
from pipelines import EvaluationTransform, evaluation_batches, load_dataset

pytestmark = pytest.mark.slow
NAME = "untrained backbone"


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    """10 classes of 4 pictures without a similarity, so that no score is 100 %."""
    names = [f"class{number // 4}/{number % 4}.png" for number in range(40)]
    return write_photos(tmp_path_factory.mktemp("photos"), names)


@pytest.fixture(scope="module")
def weights(tmp_path_factory):
    """The flag that sets the initial weights of a run."""
    keras.utils.set_random_seed(5)
    path = tmp_path_factory.mktemp("weights") / "net.weights.h5"
    models.build_backbone("small_convnet", 16).save_weights(path)
    return f"--weights={path}"


def with_weights_for(size, monkeypatch):
    """Let the weights of the small net come from a training at this image size."""
    of_size = models.backbones.BACKBONES["small_convnet"]._replace(native_size=size)
    monkeypatch.setitem(models.backbones.BACKBONES, "small_convnet", of_size)


@pytest.fixture(scope="module")
def run_and_bars(photos, weights, tmp_path_factory):
    """The folder of a run at the size of its weights, and its progress bars."""
    folder, bars = tmp_path_factory.mktemp("runs") / "run", io.StringIO()
    bars.isatty = lambda: True  # so that short bars are shown
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stderr(bars):
        with_weights_for(16, patch)
        finished_run(folder, photos, weights, "--raw_pixels")
    return folder, bars.getvalue()


@pytest.fixture
def run(run_and_bars):
    return run_and_bars[0]


def baseline(folder):
    return json.loads((folder / "result.json").read_text())["baselines"][NAME]


def test_every_output_has_the_scores(run, photos, weights):
    # Average-pooled maps of the backbone for the test classes.
    backbone = models.build_backbone("small_convnet", 16, weights.partition("=")[2])
    table = load_dataset("folder", data_dir=str(photos)).test
    batches = evaluation_batches(table, EvaluationTransform(image_size=16), 8)
    z = np.concatenate([backbone(batch) for batch in batches]).mean(axis=(1, 2))
    expected = metrics.evaluate(z, table.labels, [1, 2], clustering=False)
    found = baseline(run)
    assert found["cosine"]["recall@1"] < 1
    for metric in ("cosine", "l2"):
        assert found[metric]["recall@1"] == pytest.approx(expected[f"recall@1/{metric}"])
        assert found[metric]["map@r"] == pytest.approx(expected[f"map@r/{metric}"], rel=1e-4)
    result = json.loads((run / "result.json").read_text())
    assert list(result["baselines"]) == [NAME, "raw pixels"]
    assert result["recall"][f"{NAME}, l2"]["2"] == found["l2"]["recall@2"]
    shown = f"{100 * found['cosine']['map@r']:.1f}"
    report = (run / "report.html").read_text()
    for text in (result["table"], (run / "model_card.md").read_text()):
        (line,) = [line for line in text.splitlines() if line.startswith(f"{NAME}, cosine")]
        assert shown in line
    assert re.search(rf'"row">{NAME}, cosine</th>.*>{shown}<', report)
    assert f">{NAME}, " in report and ", for comparison<" in report
    assert "raw pixels, cosine, for comparison" not in report
    assert f"before, {NAME}: matching" in report


def test_a_run_at_another_size_than_its_weights_shows_both_sizes(
    photos, weights, tmp_path, monkeypatch, capsys
):
    with_weights_for(24, monkeypatch)
    # Without a projection, the weights of the embedding are those of the backbone.
    words = [weights, "--resize=18", "--embedding_size=none"]
    folder = finished_run(tmp_path / "run", photos, *words)
    printed, result = capsys.readouterr().out, json.loads((folder / "result.json").read_text())
    backbone = models.build_backbone("small_convnet", 24, weights.partition("=")[2])
    table = load_dataset("folder", data_dir=str(photos)).test
    batches = evaluation_batches(table, EvaluationTransform(24, resize=27), 8)
    z = np.concatenate([backbone(batch) for batch in batches]).mean(axis=(1, 2))
    expected = metrics.evaluate(z, table.labels, [1, 2], clustering=False)
    found = result["baselines"][f"{NAME} at 24 px"]
    assert found["l2"]["recall@2"] == expected["recall@2/l2"]
    assert found["cosine"]["map@r"] == pytest.approx(expected["map@r/cosine"], rel=1e-4)
    assert found["cosine"] != result["baselines"][NAME]["cosine"]
    assert f"\n{NAME} at 24 px, cosine " in result["table"]
    (conclusion,) = result["conclusions"]
    assert conclusion.startswith("Too few test classes, 5 instead of 6 or more, to conclude")
    assert conclusion in printed
    _, _, body = (folder / "report.html").read_text().partition("</h1>")
    assert body.index(conclusion) < body.index('class="headline"')


def test_evaluate_and_a_run_show_the_same_untrained_backbone(run, photos, weights, tmp_path):
    words = ["--backbone=small_convnet", weights, "--image_size=16", f"--data_dir={photos}"]
    assert command_of("evaluate")(*words, "--recall_at=1,2", f"--output_dir={tmp_path}") == 0
    rows = json.loads((tmp_path / "evaluation.json").read_text())["rows"]
    for distance, row in baseline(run).items():
        assert rows[f"embedding, {distance}"] == pytest.approx(row)


def test_cached_features_are_reused_for_the_scores(
    run_and_bars, photos, weights, tmp_path, monkeypatch, capsys
):
    run, bars = run_and_bars
    assert f"{NAME}, test: " in bars
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    flags = [weights, "--freeze_backbone", "--cache_features"]
    cached, expected = baseline(finished_run(tmp_path / "cached", photos, *flags)), baseline(run)
    assert NAME not in capsys.readouterr().err
    for row in ("cosine", "l2"):
        assert cached[row] == pytest.approx(expected[row], rel=1e-5)
