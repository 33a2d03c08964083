"""`python -m experiments.export --run=RUN --format=onnx`: a model for other people's servers."""

from __future__ import annotations

import dataclasses
import json
import os
import pathlib
import sys
from typing import TYPE_CHECKING

from experiments.options import (
    RunOptions,
    UsageError,
    given_words,
    option,
    parse,
    registries,
    run_command,
)
from experiments.options.run_options import CodeOptions, ImageLimitOptions
from experiments.options.values import normal_path

if TYPE_CHECKING:
    from collections.abc import Callable

    import keras
    import numpy as np

    from experiments.exporting.comparison import Comparison, Embeddings
    from experiments.exporting.formats import Format, Images
    from pipelines import EvaluationTransform, ImageTable
    from pipelines.split import Split

_WHAT, _HOW = "What", "How"
_FORMATS = registries.words("experiments.exporting.formats.FORMATS")


@dataclasses.dataclass(frozen=True, kw_only=True)
class ExportOptions(CodeOptions, ImageLimitOptions):
    """Which model, and what it becomes."""

    command = "experiments.export"
    intro = """Export the kept model of a run to a format that other servers, and phones, take.

  python -m experiments.export --run=runs/glyphs-seed0 --format=onnx
  python -m experiments.export --run=runs/glyphs-seed0 --format=litert --int8

The export takes decoded images, float32 [n, size, size, 3] of RGB in 0..255, and gives embeddings
[n, d] (saved_model: the bytes of image files too). Its runtime then embeds the run's test images:
printed are its size, the largest difference to the model in Keras, what it loses of recall, and the
time an image takes. A model card lies beside it.
"""

    run: pathlib.Path | None = option(None, _WHAT, "A folder of experiments.run: its kept model.")
    format: str | None = option(
        None,
        _WHAT,
        "saved_model: TensorFlow. onnx: onnxruntime, NVIDIA's Triton and many more (extra onnx). "
        "openvino: Intel's processors (extra openvino). litert: phones, with operations that "
        "every LiteRT has (extra litert).",
        choices=_FORMATS,
    )
    int8: bool = option(
        False,
        _WHAT,
        "Weights and what is computed in integers of 8 bits: about a quarter of the size.",
    )
    examples: int = option(
        200,
        _HOW,
        "int8: how many of the run's training images say how large the numbers within the model "
        "become.",
        lower_bound=1,
    )
    data_dir: str | None = option(
        None, _HOW, "Where the run's dataset is now, if it has been moved.", convert=normal_path
    )
    eval_batch_size: int = option(64, _HOW, "Images embedded at once.", lower_bound=1)
    output_dir: str | None = option(
        None, _HOW, "Where to: a folder of its own. Default: RUN/exports/FORMAT, or FORMAT-int8."
    )


# What was measured, as JSON: no other folder has a file of this name, and may be replaced.
FACTS = "export.json"
_OVERRIDING = ("data_dir", "eval_batch_size", "import_modules", "trust_code", "max_pixels")


def main(argv: list[str]) -> None:
    """Load, convert, compare, say."""
    options = parse(ExportOptions, argv)
    run, name = _asked(options)
    from experiments.training.run_files import flag_file_of

    given = given_words(options, _OVERRIDING)
    of_run = parse(RunOptions, ["export", f"--flagfile={flag_file_of(run)}", *given])
    _take_tensorflow()
    from experiments.embedding.held_folder import held_beside
    from experiments.embedding.model_card import MODEL_CARD
    from experiments.exporting.comparison import answers, compare, milliseconds, size_of
    from experiments.exporting.formats import FORMATS, Source
    from experiments.exporting.layers import write
    from experiments.options import data as options_data
    from experiments.training.made_of import images_of_run
    from keras_dml._files.atomic import replacing_folder

    format = FORMATS[name]
    _check_int8(options, {each for each, its in FORMATS.items() if its.int8})
    format.check()
    model = _model(run, of_run)
    data = images_of_run(run, of_run, data_dir_moves=True, refuses=True)
    transform = options_data.evaluation_transform(of_run)
    gallery = None if data.gallery is None else len(data.gallery)
    ks = options_data.recall_at(of_run, len(data.test), gallery)
    output = _output(options, run, name)
    _make_parent(output)
    with (
        held_beside(output, "output_dir"),
        replacing_folder(output, FACTS, "an export") as folder,
    ):
        folder.mkdir()
        path = folder / format.file
        examples = _examples(data.train, transform, options.examples) if options.int8 else None
        write(name, format, Source(model, transform, examples), path)
        answer = format.load(path)
        of_keras = _of_keras(run, model, data, transform, of_run.eval_batch_size)
        of_export = _embeddings(
            data, lambda table: answers(answer, table, transform, of_run.eval_batch_size)
        )
        image = _examples(data.test, transform, 1)[0]
        compared = compare(
            of_export,
            of_keras,
            (data.test.labels, None if data.gallery is None else data.gallery.labels),
            ks,
            size_of(path),
            milliseconds(answer, image),
        )
        table = _table(name, options.int8, compared)
        card = _card(options, run, of_run, format, data, transform, compared, table)
        (folder / MODEL_CARD).write_text(card, encoding="utf-8", errors="backslashreplace")
        facts = {"format": name, "int8": options.int8} | compared._asdict()
        (folder / FACTS).write_text(json.dumps(facts, indent=1) + "\n")
    print(f"{table}\n\n" + "\n".join(_lines(compared)))
    print(f"\nexport: {output / format.file}\ncard: {output / MODEL_CARD}")


def _take_tensorflow() -> None:
    """Let Keras run on TensorFlow, whatever has trained the model: all formats come from there.

    Raises:
        ArgumentError: Keras runs on another backend already.
    """
    os.environ["KERAS_BACKEND"] = "tensorflow"
    from keras_dml._common.extras import check_tensorflow_backend

    check_tensorflow_backend("experiments.export")


def _asked(options: ExportOptions) -> tuple[pathlib.Path, str]:
    """The folder of the run, and the name of the format."""
    missing = [f"--{flag}" for flag in ("run", "format") if not getattr(options, flag)]
    if options.run is None or options.format is None:
        raise UsageError(f"give {' and '.join(missing)}. Received: none")
    run = options.run.expanduser()
    from experiments.training.run_files import flag_file_of

    flag_file_of(run)
    if not options.int8 and "examples" in options.on_command_line:
        raise UsageError(f"examples is for --int8. Received: examples={options.examples}")
    return run, options.format


def _check_int8(options: ExportOptions, formats: set[str]) -> None:
    if options.int8 and options.format not in formats:
        raise UsageError(
            f"int8 is for {', '.join(sorted(formats))}. Received: --int8 with "
            f"format={options.format}"
        )


def _model(run: pathlib.Path, of_run: RunOptions) -> keras.Model:
    from experiments.options.values import import_modules
    from experiments.training.run_files import kept_model
    from keras_dml.export import float32_copy
    from keras_dml.models import load_keras_file

    path = kept_model(run)
    if not path.is_file():
        raise UsageError(
            f"run must have a model: the first evaluation writes best.keras. Received: run={run}"
        )
    import_modules(of_run.import_modules)
    try:
        return float32_copy(load_keras_file(path, of_run.trust_code))
    except ValueError as error:
        raise UsageError(f"{path} cannot be loaded: {error}") from error


def _output(options: ExportOptions, run: pathlib.Path, name: str) -> pathlib.Path:
    if options.output_dir:
        return pathlib.Path(options.output_dir).expanduser()
    return run / "exports" / (f"{name}-int8" if options.int8 else name)


def _make_parent(output: pathlib.Path) -> None:
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"output_dir cannot be made: {error}") from error


def _examples(table: ImageTable, transform: EvaluationTransform, count: int) -> list[Images]:
    """Decoded images, evenly spaced over the table: `[1, size, size, 3]` each."""
    import numpy as np

    from experiments.embedding.model_embeddings import naming_bad_images
    from pipelines import evaluation_batches

    rows = np.unique(np.linspace(0, len(table) - 1, min(count, len(table))).astype(int))
    chosen = table.select(rows)
    with naming_bad_images(chosen):
        return [images.numpy() for images in evaluation_batches(chosen, transform, 1)]


def _embeddings(data: Split, embed: Callable[[ImageTable], np.ndarray]) -> Embeddings:
    from experiments.exporting.comparison import Embeddings

    gallery = None if data.gallery is None else embed(data.gallery)
    return Embeddings(embed(data.test), gallery)


def _of_keras(
    run: pathlib.Path,
    model: keras.Model,
    data: Split,
    transform: EvaluationTransform,
    batch_size: int,
) -> Embeddings:
    """What the run has kept of its best model, or the same anew."""
    from experiments.auditing.audited_images import kept_embeddings
    from experiments.embedding.checked_json import read_checked
    from experiments.embedding.model_embeddings import naming_bad_images
    from experiments.embedding.table_embedder import TableEmbedder
    from experiments.training.run_files import RESULT

    names = {id(data.test): "test", id(data.gallery): "gallery"}
    finished = read_checked(run / RESULT) is not None  # else they may be of an earlier model

    def embed(table: ImageTable) -> np.ndarray:
        kept = kept_embeddings(run, names[id(table)], table) if finished else None
        if kept is not None:
            return kept
        with naming_bad_images(table):
            return TableEmbedder(model, transform, batch_size)(table)

    return _embeddings(data, embed)


def _table(name: str, int8: bool, compared: Comparison) -> str:
    """Recall of both, and what is lost, in Markdown."""
    from experiments.report.tables import markdown_table

    called = f"{name}, int8" if int8 else name
    rows = [
        [what, *(f"{100 * found[k]:.2f}" for k in found)]
        for what, found in (("Keras, float32", compared.keras_recalls), (called, compared.recalls))
    ]
    lost = [100 * (share - compared.recalls[k]) for k, share in compared.keras_recalls.items()]
    rows.append(["lost", *(f"{points:.2f}" for points in lost)])
    return markdown_table([["R@K, %, cosine", *map(str, compared.recalls)], *rows])


def _lines(compared: Comparison) -> list[str]:
    return [
        f"size: {compared.bytes / 1e6:.1f} MB",
        f"largest difference of a number: {compared.difference:.2g}, of embeddings that are "
        f"{compared.length:.3g} long; least cosine similarity of two: {compared.similarity:.6f}",
        f"time: {compared.milliseconds:.1f} ms an image, one a call, {os.cpu_count()} processor "
        "cores",
    ]


def _card(
    options: ExportOptions,
    run: pathlib.Path,
    of_run: RunOptions,
    format: Format,
    data: Split,
    transform: EvaluationTransform,
    compared: Comparison,
    table: str,
) -> str:
    from experiments.embedding.model_card import model_card

    size, precision = transform.image_size, "int8" if options.int8 else "float32"
    use = {
        "File": f"`{format.file}`, {options.format}, computes in {precision}",
        "Takes": format.takes,
        "Decoded images": f"`images`, float32 [n, {size}, {size}, 3]",
        "Gives": "`embeddings`, float32 [n, d]; compare by cosine similarity",
    }
    if options.int8:
        count = min(options.examples, len(data.train))
        use["Made with"] = f"{count} of the training images, to set the integers' scales"
    scores = "\n".join([table, "", *(f"- {line}" for line in _lines(compared))])
    images, measured = _measured(run, of_run)
    return model_card(
        f"{run.resolve().name}, {options.format}, {precision}",
        use,
        of_run,
        data,
        transform,
        f"On {images}, beside the model in Keras:\n\n{scores}{measured}",
        _threshold(run, options.int8),
        format.example,
    )


def _measured(run: pathlib.Path, of_run: RunOptions) -> tuple[str, str]:
    """Of which images the scores are; where every class trained, what is known of others."""
    from experiments.embedding.checked_json import read_checked
    from experiments.training.run_files import RESULT

    if not of_run.keeps_nothing_back:
        return "the test images", ""
    result = read_checked(run / RESULT) or {}
    known = f"\n\n```\n{result['table']}\n```" if "measured" in result else ""
    return "images that were trained on", known


def _threshold(run: pathlib.Path, int8: bool) -> str:
    """The run's, if it has been calibrated."""
    from experiments.embedding.calibration import calibration_words
    from experiments.embedding.model_card import NO_THRESHOLD

    words = calibration_words(run / "saved_model")
    if words is None:
        return NO_THRESHOLD
    return f"{words} It was found with the model in float32." if int8 else words


if __name__ == "__main__":
    sys.exit(run_command(main, goes_on="the same command begins anew"))
