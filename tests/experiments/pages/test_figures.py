import math
import re

import numpy as np
import pytest
from matplotlib.figure import Figure

from experiments.pages import figures


def history(epochs):
    return [
        {
            "epoch": epoch,
            "train/loss": 2 / epoch,
            "test/recall@1/cosine": 0.6 - 0.1 * abs(epoch - 3),
            "test/recall@1/l2": 0.5 - 0.1 * abs(epoch - 3),
        }
        for epoch in range(1, epochs + 1)
    ]


def line(svg, color):
    """Return the points of the longest path in `color`."""
    paths = re.findall(rf'<path d="([^"]*)"[^>]*stroke: {color}', svg)
    points = [re.findall(r"[ML] (\S+) (\S+)", path) for path in paths]
    return np.array(max(points, key=len), dtype=float)


def test_curves_show_the_history():
    rows = history(6)
    rows[2].pop("train/loss")
    rows[4]["train/loss"] = math.nan
    rows[5]["train/loss"] = None
    recall = line(figures.recall_svg(rows, rows[2], "raw pixels", 0.2), "#3b82d0")
    expected = [row["test/recall@1/cosine"] for row in rows]
    assert len(recall) == 6
    # The y axis of SVG points down, so y is a decreasing linear function of the value.
    slope, offset = np.polyfit(expected, recall[:, 1], 1)
    assert slope < 0
    np.testing.assert_allclose(slope * np.array(expected) + offset, recall[:, 1], atol=1e-3)
    svg = figures.loss_svg(rows)
    assert "loss from 2 at epoch 1 to 0.5 at epoch 4" in svg
    loss = line(svg, "#3b82d0")
    assert len(loss) == 3
    np.testing.assert_allclose(np.diff(loss[:, 0])[1] / np.diff(loss[:, 0])[0], 2, rtol=1e-4)


def test_curves_use_the_color_of_the_page_and_list_their_metrics():
    svg = figures.loss_svg([{"epoch": e, "train/learning_rate": 0.1} for e in (1, 2)])
    assert "currentColor" in svg
    assert "#010203" not in svg
    assert ">training loss<" not in svg
    assert ">learning rate<" in svg
    assert figures.loss_svg([{"epoch": 1}]) == ""
    assert figures.recall_svg([{"epoch": 1}], {}) == ""
    svg = figures.recall_svg(history(2), {}, "raw pixels, l2", 0.25)
    assert ">raw pixels, l2<" in svg
    assert "kept" not in svg
    assert ">raw pixels" not in figures.recall_svg(history(2), {})


def test_each_path_has_a_panel_and_labels_its_ends():
    path = [{"train/tightness": 3.0 - n, "train/contrastive": 0.5 + n} for n in range(3)]
    nan = [{"train/tightness": float("nan"), "train/contrastive": 1.0}]
    text = figures.paths_svg({"one": path, "none": [{"train/loss": 1.0}], "nan": nan, "two": path})
    assert text.count("from tightness 3, contrastive 0.5 to 1, 2.5") == 2
    assert "nan" not in text.lower().replace("instance", "")
    assert figures.paths_svg({"none": [{"train/loss": 1.0}]}) == ""


@pytest.mark.parametrize(
    ("labels", "lines"),
    [
        (["cosine", "l2"], 1),
        (["loss", "tightness", "contrastive"], 1),
        (["false matches", "missed matches", "threshold, 95 %"], 2),
        (["cosine", "l2", "kept, epoch 2", "raw pixels, cosine"], 2),
        (["x" * 60, "y" * 60], 2),
    ],
)
def test_a_long_legend_wraps(labels, lines):
    axes = Figure().add_subplot()
    for label in labels:
        axes.plot([0, 1], label=label)
    figures.legend(axes)
    assert -(-len(labels) // axes.get_legend()._ncols) == lines


def test_the_longest_baseline_fits_into_the_legend():
    figure = Figure(figsize=(5.2, 3.4))
    axes = figure.add_subplot()
    for label in ("cosine", "l2", "kept, epoch 10", "untrained backbone, cosine"):
        axes.plot([0, 1], label=label)
    figures.legend(axes)
    figure.draw_without_rendering()
    assert axes.get_legend().get_window_extent().x1 <= figure.bbox.x1
