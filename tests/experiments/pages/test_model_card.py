"""The model card: sections, licenses, and a threshold that is added later."""

import dataclasses

import numpy as np
import pytest

from experiments.options import RunOptions, parse
from experiments.pages.model_card import (
    NO_THRESHOLD,
    license_of_weights,
    model_card,
    update_final_model,
    update_threshold,
)
from pipelines import EvaluationTransform, ImageTable
from pipelines.split import Split

OPTIONS = parse(RunOptions, ["run", "--dataset=glyphs", "--weights=none", "--data_dir=/of/mine"])
TABLE = ImageTable.from_arrays(np.zeros((4, 8, 8, 3), np.uint8), [0, 0, 1, 1])
CARD = model_card(
    "mine", {"File": "`f`"}, OPTIONS, Split(TABLE, TABLE, same_classes=True),
    EvaluationTransform(8, (9, 10)), "R@1 is 1", example="f(x)",
)  # fmt: skip


def test_contents_of_the_card():
    for words in (
        "# mine\n", "- File: `f`\n\n```python\nf(x)\n```", "resized to 9 × 10 pixels",
        "Training: 4 images of 2 classes", "of the same classes", "R@1 is 1", NO_THRESHOLD,
        "--loss=multi_similarity",
    ):  # fmt: skip
        assert words in CARD
    assert "/of/mine" not in CARD


def test_a_threshold_replaces_the_previous_threshold(tmp_path):
    path = tmp_path / "card.md"
    update_threshold(path, "From 0.5 on.")
    assert not path.exists()
    for card in (CARD, "# another card\n"):
        path.write_text(card, encoding="utf-8")
        update_threshold(path, "From 0.5 on.")
        changed = path.read_text(encoding="utf-8")
        assert changed == card.replace(NO_THRESHOLD, "From 0.5 on.")


def test_the_final_model_is_a_line_of_its_use(tmp_path):
    path = tmp_path / "card.md"
    path.write_text(CARD, encoding="utf-8")
    for _ in range(2):
        update_final_model(path, "refit/saved_model")
    text = path.read_text(encoding="utf-8")
    assert text.count("- Final model, of every class: `refit/saved_model`\n\n## Prepro") == 1


@pytest.mark.parametrize(
    ("backbone", "weights", "words"),
    [
        ("resnet50", "none", "random weights"),
        ("resnet50", "imagenet", "keras.io/api/applications"),
        ("resnet50_v1_5", "imagenet", "of `resnet50_v1_5` by torchvision"),
        ("efficientnet_lite0", "packaged", "(Apache-2.0)"),
        ("hub:dinov2_base", "imagenet", "`hub:dinov2_base`, which has their license"),
        ("resnet50", "mine.h5", "`mine.h5`, of unknown license"),
    ],
)
def test_licenses(backbone, weights, words):
    assert words in license_of_weights(
        dataclasses.replace(OPTIONS, backbone=backbone, weights=weights)
    )
