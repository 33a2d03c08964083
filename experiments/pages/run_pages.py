"""The pages of a run: its report and its model card."""

from __future__ import annotations

import dataclasses
import pathlib
from typing import Any

from experiments.evaluation.result import FLAGS_FILE, REPORT, Result
from experiments.options import RunOptions, command_line_only_words
from experiments.pages.links import add_link
from experiments.pages.made_by import made_by
from experiments.pages.model_card import MODEL_CARD, model_card, update_final_model, write_card
from experiments.pages.report import write_report


def write_run_pages(run: Any, result: Result) -> None:
    """Write the pages into the folder of a run.

    Args:
        run: The run, `experiments.training.plan.RunPlan`.
        result: Its result.
    """
    folder, options = run.folder.path, run.options
    links = {}
    if options.measured_in is not None:
        links[pathlib.Path(options.measured_in) / REPORT] = "The run that measured"
    command = made_by(folder / FLAGS_FILE, command_line_only_words(options))
    write_report(folder / REPORT, dataclasses.replace(result, reproduce=command), links)
    if result.images is None:
        return
    size, dimensions = options.image_size, result.images.queries.embeddings.shape[1]
    use = {
        "File": "`saved_model`, for TensorFlow",
        "Takes": f"the bytes of image files (`serving_default`), or decoded images float32 [n, "
        f"{size}, {size}, 3] (`embed_images`)",
        "Gives": f"`embeddings`, float32 [n, {dimensions}]; compare by cosine similarity",
    }
    scores = f"{result.note or 'Of the test images:'}\n\n```\n{result.table}\n```"
    card = model_card(run.name, use, options, run.data, run.preprocessing, scores)
    write_card(folder / MODEL_CARD, card)


def link_final_model(options: RunOptions, refit: pathlib.Path) -> None:
    """Let the report and the model card of a run point to its final model.

    Args:
        options: The options of the run.
        refit: Folder of the run that trained the final model on every class.
    """
    update_final_model(options.folder / MODEL_CARD, f"{refit.name}/saved_model")
    add_link(options.folder / REPORT, refit / REPORT, "The final model, of every class")
