"""`python -m experiments.export --run=RUN --format=onnx`: a model for other servers and phones."""

from __future__ import annotations

import dataclasses
import os
import pathlib
import sys

from experiments.options import RunOptions, check_together, given_words, option, parse, run_command
from experiments.options.conversions import normal_path
from experiments.options.registry_flags import words
from experiments.options.run_options import CodeOptions, ImageLimitOptions

_MODEL = "Model"
_OVERRIDING = (
    "data_dir",
    "eval_batch_size",
    "import_modules",
    "trust_code",
    "max_pixels",
    "outside_paths",
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ExportOptions(CodeOptions, ImageLimitOptions):
    """The run and the format.

    Attributes:
        run: Folder of a run, whose kept model is exported.
        format: Format of the export. saved_model: TensorFlow. onnx: onnxruntime, NVIDIA's Triton,
            and others (extra onnx). openvino: Intel's processors (extra openvino). litert: phones,
            with built-in operations of LiteRT (extra litert).
        data_dir: Folder of the run's dataset, if it has moved.
        outside_paths: table: also read images with absolute paths and paths out of the table's
            folder (..). Only for tables that you trust. Flag files cannot set it.
        eval_batch_size: Images per batch.
        output_dir: Output folder. Default: RUN/exports/FORMAT.
        to: hf:USER/NAME: upload the export, the run's .keras file, the model card, and the
            threshold to a repository of the Hugging Face Hub (extra hf). A new repository is
            private.
        index: to: folder of keras-dml index to upload, too.
    """

    command = "experiments.export"
    intro = """Export the kept model of a run to a format for other servers and phones.

  keras-dml export --run=runs/glyphs-seed0 --format=onnx
  keras-dml export --run=runs/glyphs-seed0 --format=litert

The export takes decoded images, float32 [n, size, size, 3] of RGB in 0..255, and returns embeddings
[n, d]. saved_model also takes the bytes of image files. The command then embeds the run's test
images with the export. It prints the export's size, its largest difference from the model in Keras,
the lost recall, and the time per image, and writes a model card.
"""

    group = "Export"

    run: pathlib.Path = option(None, _MODEL, required=True)
    format: str = option(
        None, choices=words("experiments.exporting.formats.FORMATS"), required=True
    )
    data_dir: str | None = option(None, _MODEL, convert=normal_path)
    outside_paths: bool = option(False, _MODEL, command_line_only=True)
    eval_batch_size: int = option(64, _MODEL, lower_bound=1)
    output_dir: str | None = option(None)
    to: str | None = option(None, command_line_only=True)
    index: pathlib.Path | None = option(None, needs="to")


def main(argv: list[str]) -> None:
    """Export, compare, and print."""
    # TensorFlow writes all formats, whatever backend trained the model.
    os.environ["KERAS_BACKEND"] = "tensorflow"
    options = parse(ExportOptions, argv)
    from experiments.training.run_files import flag_file_of

    flags = flag_file_of(options.run)
    check_together(options)
    of_run = parse(
        RunOptions, ["export", f"--flagfile={flags}", *given_words(options, _OVERRIDING)]
    )
    from keras_dml._common.extras import check_tensorflow_backend

    check_tensorflow_backend("keras-dml export")
    from experiments.exporting import hub
    from experiments.exporting.exported_run import Export, export_run

    output = options.run / "exports" / options.format
    if options.output_dir:
        output = pathlib.Path(options.output_dir).expanduser()
    export = Export(options.run, of_run, options.format, output)
    target = None if options.to is None else hub.check_target(options.to, options.index)
    print(export_run(export), flush=True)
    if target is not None:
        print(f"published: {hub.publish(options.run, of_run, output, *target)}")


if __name__ == "__main__":
    sys.exit(run_command(main, goes_on="the same command begins again"))
