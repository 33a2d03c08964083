"""A run with pretrained weights also shows the scores of the untrained backbone."""

import json
import re

import keras
import numpy as np
import pytest
from photo_search import write_photos
from tiny_run import finished_run

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


def baseline(folder):
    return json.loads((folder / "result.json").read_text())["baselines"][NAME]


def test_every_output_has_the_scores(photos, weights, tmp_path, capsys):
    folder = finished_run(tmp_path / "run", photos, weights, "--raw_pixels")
    # Average-pooled maps of the backbone for the test classes.
    backbone = models.build_backbone("small_convnet", 16, weights.partition("=")[2])
    table = load_dataset("folder", data_dir=str(photos)).test
    batches = evaluation_batches(table, EvaluationTransform(image_size=16), 8)
    z = np.concatenate([backbone(batch) for batch in batches]).mean(axis=(1, 2))
    expected = metrics.evaluate(z, table.labels, [1, 2], clustering=False)
    found = baseline(folder)
    assert found["cosine"]["recall@1"] < 1
    for metric in ("cosine", "l2"):
        assert found[metric]["recall@1"] == pytest.approx(expected[f"recall@1/{metric}"])
        assert found[metric]["map@r"] == pytest.approx(expected[f"map@r/{metric}"], rel=1e-4)
    result = json.loads((folder / "result.json").read_text())
    assert result["recall"][f"{NAME}, l2"]["2"] == found["l2"]["recall@2"]
    assert f"{NAME}, test: " in capsys.readouterr().err  # the progress bar
    shown = f"{100 * found['cosine']['map@r']:.1f}"
    report = (folder / "report.html").read_text()
    for text in (result["table"], (folder / "model_card.md").read_text()):
        (line,) = [line for line in text.splitlines() if line.startswith(f"{NAME}, cosine")]
        assert shown in line
    assert re.search(rf'"row">{NAME}, cosine</th>.*>{shown}<', report)
    assert f">{NAME}, " in report and ", for comparison<" in report
    assert "raw pixels, cosine, for comparison" not in report
    assert f"before, {NAME}: matching" in report


def test_cached_features_are_reused_for_the_scores(photos, weights, tmp_path, capsys):
    flags = [weights, "--freeze_backbone"]
    expected = baseline(finished_run(tmp_path / "images", photos, *flags))
    assert f"{NAME}, test: " in capsys.readouterr().err
    cached = baseline(finished_run(tmp_path / "cached", photos, *flags, "--cache_features"))
    assert NAME not in capsys.readouterr().err
    for row in ("cosine", "l2"):
        assert cached[row] == pytest.approx(expected[row], rel=1e-5)
