"""The export of a run's kept model, its comparison with the model in Keras, and its card."""

from __future__ import annotations

import json
import os
import pathlib
from typing import NamedTuple

import numpy as np

from experiments.evaluation.calibration import calibration_words
from experiments.evaluation.held_folder import held_beside
from experiments.evaluation.model_embeddings import keras_model, naming_bad_images
from experiments.evaluation.table_embedder import TableEmbedder
from experiments.evaluation.tables import markdown_table
from experiments.exporting.comparison import Comparison, answers, compare, milliseconds
from experiments.exporting.formats import FORMATS, Format, Images, Source, check_packages
from experiments.exporting.layers import write
from experiments.options import RunOptions, UsageError
from experiments.options import data as options_data
from experiments.pages.model_card import MODEL_CARD, NO_THRESHOLD, model_card
from experiments.training.made_of import images_of_run
from experiments.training.run_files import RESULT, kept_model, read_json
from keras_dml._files.atomic import replacing_folder
from pipelines import EvaluationTransform, ImageTable, evaluation_batches
from pipelines.split import Split

# Measurements as JSON. A folder without this file is never replaced.
FACTS = "export.json"


class Export(NamedTuple):
    """An export.

    Attributes:
        name: Name of the format.
        examples: Number of training images that set the scales of 8-bit integers. 0 for float32.
        output: Output folder.
    """

    name: str
    examples: int
    output: pathlib.Path

    @property
    def format(self) -> Format:
        """The format."""
        return FORMATS[self.name]

    @property
    def precision(self) -> str:
        """The precision, in words."""
        return "int8" if self.examples else "float32"


def export_run(run: pathlib.Path, of_run: RunOptions, export: Export) -> str:
    """Export the kept model of a run and return the text that the command prints.

    Args:
        run: Folder of the run.
        of_run: Options of the run.
        export: The export.

    Raises:
        UsageError: The format has no 8-bit integers or lacks a layer of the model, or the run has
            no model.
        MissingExtraError: The packages of the format are not installed.
        RunError: The export returns embeddings that are not finite.
    """
    with_int8 = sorted(name for name, format in FORMATS.items() if format.int8)
    if export.examples and export.name not in with_int8:
        raise UsageError(
            f"format must be {' or '.join(with_int8)} with --int8, but got {export.name}."
        )
    check_packages(export.name)
    embedder: TableEmbedder = keras_model(kept_model(run), of_run, "run").embedder
    data = images_of_run(run, of_run, data_dir_moves=True, refuses=True)
    transform = options_data.evaluation_transform(of_run)
    output = export.output
    output.parent.mkdir(parents=True, exist_ok=True)
    with (
        held_beside(output, "output_dir"),
        replacing_folder(output, FACTS, "an export") as folder,
    ):
        folder.mkdir()
        path = folder / export.format.file
        examples = _images(data.train, transform, export.examples) if export.examples else None
        write(export.name, export.format, Source(embedder.model, transform, examples), path)
        compared = _compared(of_run, export, embedder, data, transform, path)
        table, lines = _table(export, compared), _lines(compared)
        card = _card(run, of_run, export, data, transform, compared, table)
        (folder / MODEL_CARD).write_text(card, encoding="utf-8", errors="backslashreplace")
        facts = {"format": export.name, "int8": bool(export.examples)} | compared._asdict()
        (folder / FACTS).write_text(json.dumps(facts, indent=1) + "\n")
    paths = f"export: {output / export.format.file}\ncard: {output / MODEL_CARD}"
    return "\n\n".join([table, "\n".join(lines), paths])


def _images(table: ImageTable, transform: EvaluationTransform, count: int) -> list[Images]:
    """Return decoded images `[1, size, size, 3]`, evenly spaced over the table."""
    rows = np.unique(np.linspace(0, len(table) - 1, min(count, len(table))).astype(int))
    chosen = table.select(rows)
    with naming_bad_images(chosen):
        return [images.numpy() for images in evaluation_batches(chosen, transform, 1)]


def _compared(
    of_run: RunOptions,
    export: Export,
    embedder: TableEmbedder,
    data: Split,
    transform: EvaluationTransform,
    path: pathlib.Path,
) -> Comparison:
    answer = export.format.load(path)
    tables = {side: data.tables[side] for side in ("test", "gallery") if side in data.tables}
    gallery = None if data.gallery is None else len(data.gallery)
    return compare(
        {side: answers(answer, table, transform, of_run.eval_batch_size)
         for side, table in tables.items()},
        {side: embedder(table) for side, table in tables.items()},
        {side: table.labels for side, table in tables.items()},
        options_data.recall_at(of_run, len(data.test), gallery),
        sum(file.stat().st_size for file in path.parent.rglob("*") if file.is_file()),
        milliseconds(answer, _images(data.test, transform, 1)[0]),
    )  # fmt: skip


def _table(export: Export, compared: Comparison) -> str:
    """Return the recall of both models and the loss, in Markdown."""
    name = f"{export.name}, int8" if export.examples else export.name
    found = {"Keras, float32": compared.keras_recalls, name: compared.recalls}
    rows = [
        [label, *(f"{100 * share:.2f}" for share in of.values())] for label, of in found.items()
    ]
    lost = [100 * (share - compared.recalls[k]) for k, share in compared.keras_recalls.items()]
    rows.append(["lost", *(f"{points:.2f}" for points in lost)])
    return markdown_table([["R@K, %, cosine", *map(str, compared.recalls)], *rows])


def _lines(compared: Comparison) -> list[str]:
    return [
        f"size: {compared.bytes / 1e6:.1f} MB",
        f"largest difference of a number: {compared.difference:.2g}, for embeddings of length "
        f"{compared.length:.3g}; least cosine similarity of two: {compared.similarity:.6f}",
        f"time: {compared.milliseconds:.1f} ms an image, one per call, {os.cpu_count()} processor "
        "cores",
    ]


def _card(
    run: pathlib.Path,
    of_run: RunOptions,
    export: Export,
    data: Split,
    transform: EvaluationTransform,
    compared: Comparison,
    table: str,
) -> str:
    size = transform.image_size
    use = {
        "File": f"`{export.format.file}`, {export.name}, computes in {export.precision}",
        "Takes": export.format.takes,
        "Decoded images": f"`images`, float32 [n, {size}, {size}, 3]",
        "Gives": "`embeddings`, float32 [n, d]; compare by cosine similarity",
    }
    if export.examples:
        count = min(export.examples, len(data.train))
        use["Made with"] = f"{count} of the training images, to set the integers' scales"
    images, measured = "the test images", ""
    if of_run.keeps_nothing_back:
        images = "images that were trained on"
        result = read_json(run, RESULT) or {}
        measured = f"\n\n```\n{result['table']}\n```" if "measured" in result else ""
    scores = "\n".join([table, "", *(f"- {line}" for line in _lines(compared))])
    threshold = calibration_words(run / "saved_model") or NO_THRESHOLD
    if export.examples and threshold != NO_THRESHOLD:
        threshold += " It was found with the model in float32."
    return model_card(
        f"{run.resolve().name}, {export.name}, {export.precision}",
        use,
        of_run,
        data,
        transform,
        f"On {images}, next to the model in Keras:\n\n{scores}{measured}",
        threshold,
        export.format.example,
    )
