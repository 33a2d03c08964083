"""The export of a run's kept model, its comparison with the model in Keras, and its card."""

from __future__ import annotations

import json
import os
import pathlib
import statistics
import timeit
from collections.abc import Mapping, Sequence
from typing import NamedTuple, TypeAlias, cast

import numpy as np
import numpy.typing as npt

from experiments.evaluation.calibration import calibration_words
from experiments.evaluation.embed import TableEmbedder, keras_model, naming_bad_images
from experiments.evaluation.tables import markdown_table
from experiments.exporting import formats
from experiments.exporting.formats import FORMATS, Answer, Format, Images, Source
from experiments.options import RunOptions
from experiments.options.data import evaluation_transform, recall_at
from experiments.options.errors import RunError
from experiments.options.held_folder import held_beside
from experiments.pages.model_card import MODEL_CARD, NO_THRESHOLD, fenced, model_card
from experiments.training.run_files import kept_model, read_result
from experiments.training.run_images import images_of_run
from keras_dml._common.progress import Bar
from keras_dml._files.atomic import replacing_folder
from keras_dml.metrics import recall_at_k
from pipelines import EvaluationTransform, ImageTable, evaluation_batches
from pipelines.split import Split

# Measurements as JSON. A folder without this file is never replaced.
FACTS = "export.json"
#: "test", and "gallery" if there is one -> embeddings of its images, float32 `[n, d]`.
Embeddings: TypeAlias = Mapping[str, npt.NDArray[np.float32]]
# Number of timed calls with one image, and of warm-up calls.
_TIMED, _BEFORE = 30, 5


class Export(NamedTuple):
    """An export.

    Attributes:
        run: Folder of the run.
        of_run: Options of the run.
        name: Name of the format.
        output: Output folder.
    """

    run: pathlib.Path
    of_run: RunOptions
    name: str
    output: pathlib.Path

    @property
    def format(self) -> Format:
        """The format."""
        return FORMATS[self.name]

    @property
    def transform(self) -> EvaluationTransform:
        """The evaluation transform of the run."""
        return evaluation_transform(self.of_run)


class Comparison(NamedTuple):
    """An export compared with the model in Keras.

    Attributes:
        bytes: Size on disk.
        difference: Largest difference of a number of an embedding.
        length: Mean length of the embeddings from Keras, as a scale for `difference`.
        similarity: Least cosine similarity of an image's two embeddings.
        recalls: Recall at K of the export, by cosine similarity.
        keras_recalls: Recall at K of the model in Keras.
        milliseconds: Median time of a call with one image.
    """

    bytes: int
    difference: float
    length: float
    similarity: float
    recalls: Mapping[int, float]
    keras_recalls: Mapping[int, float]
    milliseconds: float


def export_run(export: Export) -> str:
    """Export the kept model of a run and return the text that the command prints.

    Raises:
        UsageError: The format lacks a layer of the model, or the run has no model.
        MissingExtraError: The packages of the format are not installed.
        RunError: The export returns embeddings that are not finite.
    """
    formats.check_packages(export.name)
    embedder: TableEmbedder = keras_model(kept_model(export.run), export.of_run, "run").embedder
    data = images_of_run(export.run, export.of_run, data_dir_moves=True, refuses=True)
    transform, output = export.transform, export.output
    output.parent.mkdir(parents=True, exist_ok=True)
    with (
        held_beside(output, "output_dir"),
        replacing_folder(output, FACTS, "an export") as folder,
    ):
        folder.mkdir()
        path = folder / export.format.file
        source = Source(embedder.model, transform)
        formats.write(export.name, export.format, source, path)
        compared = _compared(export, embedder, data, path)
        table, lines = _table(export, compared), _lines(compared)
        scores = "\n".join([table, "", *(f"- {line}" for line in lines)])
        card = _card(export, data, scores)
        (folder / MODEL_CARD).write_text(card, encoding="utf-8", errors="backslashreplace")
        facts = {"format": export.name} | compared._asdict()
        (folder / FACTS).write_text(json.dumps(facts, indent=1) + "\n")
    paths = f"export: {output / export.format.file}\ncard: {output / MODEL_CARD}"
    return "\n\n".join([table, "\n".join(lines), paths])


def _first_image(table: ImageTable, transform: EvaluationTransform) -> Images:
    """Return the first image of the table, decoded, `[1, size, size, 3]`."""
    first = table.select(np.arange(1))
    with naming_bad_images(first):
        [image] = evaluation_batches(first, transform, 1)
    return cast("Images", image.numpy())


def _compared(
    export: Export, embedder: TableEmbedder, data: Split, path: pathlib.Path
) -> Comparison:
    answer = export.format.load(path)
    tables = {side: data.tables[side] for side in ("test", "gallery") if side in data.tables}
    gallery = None if data.gallery is None else len(data.gallery)
    return compare(
        {side: _answers(answer, table, export) for side, table in tables.items()},
        {side: embedder(table) for side, table in tables.items()},
        {side: table.labels for side, table in tables.items()},
        recall_at(export.of_run, len(data.test), gallery),
        sum(file.stat().st_size for file in path.parent.rglob("*") if file.is_file()),
        milliseconds(answer, _first_image(data.test, export.transform)),
    )


def _answers(answer: Answer, table: ImageTable, export: Export) -> npt.NDArray[np.float32]:
    """Embed a table with a runtime, with a progress bar."""
    rows: list[npt.NDArray[np.float32]] = []
    batches = evaluation_batches(table, export.transform, export.of_run.eval_batch_size)
    with naming_bad_images(table), Bar("comparing", total=len(table)) as bar:
        for images in batches:
            rows.append(np.asarray(answer(images.numpy()), np.float32))
            bar.update(len(rows[-1]))
    embeddings = np.concatenate(rows)
    if not np.isfinite(embeddings).all():
        raise RunError("the export gives embeddings that are not finite: nothing was written")
    return embeddings


def milliseconds(answer: Answer, image: Images) -> float:
    """Return the median time of a call with one image `[1, size, size, 3]`."""
    seconds = timeit.repeat(lambda: answer(image), number=1, repeat=_BEFORE + _TIMED)
    return 1000 * statistics.median(seconds[_BEFORE:])


def compare(
    of_export: Embeddings,
    of_keras: Embeddings,
    labels: Mapping[str, npt.NDArray[np.int64]],
    ks: Sequence[int],
    size: int,
    time_of_one: float,
) -> Comparison:
    """Compare the embeddings and their recall.

    Args:
        of_export, of_keras: Embeddings of the same images.
        labels: Class ids of the same images.
        ks: Values of K for recall at K.
        size, time_of_one: `bytes` and `milliseconds` of `Comparison`.
    """
    one, other = of_export["test"].astype(np.float64), of_keras["test"].astype(np.float64)
    lengths = np.linalg.norm(other, axis=1)
    products = np.linalg.norm(one, axis=1) * lengths
    cosines = (one * other).sum(axis=1) / np.where(products, products, 1)

    def recalls(embeddings: Embeddings) -> dict[int, float]:
        queries, gallery = embeddings["test"], embeddings.get("gallery")
        return recall_at_k(queries, labels["test"], ks, "cosine", gallery, labels.get("gallery"))

    return Comparison(
        bytes=size,
        difference=float(np.abs(one - other).max()),
        length=float(lengths.mean()),
        similarity=float(cosines.min()),
        recalls=recalls(of_export),
        keras_recalls=recalls(of_keras),
        milliseconds=time_of_one,
    )


def _table(export: Export, compared: Comparison) -> str:
    """Return the recall of both models and the loss, in Markdown."""
    found = {"Keras, float32": compared.keras_recalls, export.name: compared.recalls}
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


def _card(export: Export, data: Split, scores: str) -> str:
    size, of_run = export.transform.image_size, export.of_run
    use = {
        "File": f"`{export.format.file}`, {export.name}, computes in float32",
        "Takes": export.format.takes,
        "Decoded images": f"`images`, float32 [n, {size}, {size}, 3]",
        "Gives": "`embeddings`, float32 [n, d]; compare by cosine similarity",
    }
    images, measured = "the test images", ""
    if of_run.keeps_nothing_back:
        images = "images that were trained on"
        result = read_result(export.run) or {}
        measured = f"\n\n{fenced(result['table'])}" if "measured" in result else ""
    threshold = calibration_words(export.run / "saved_model") or NO_THRESHOLD
    return model_card(
        f"{export.run.resolve().name}, {export.name}, float32",
        use,
        of_run,
        data,
        export.transform,
        f"On {images}, next to the model in Keras:\n\n{scores}{measured}",
        threshold,
        export.format.example,
    )
