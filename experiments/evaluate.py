"""`python -m experiments.evaluate`: score the embeddings of a model or of a file."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import pathlib
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

from experiments.options import (
    Options,
    RunOptions,
    UsageError,
    declarations,
    option,
    parse,
    refuse_unused,
    run_command,
)
from experiments.options.run_options import (
    BackboneOptions,
    EvaluationOptions,
    ImageSizeOptions,
)
from experiments.options.values import whole_numbers

if TYPE_CHECKING:
    from experiments.evaluation.labeled_embeddings import EmbeddedSet, LabeledEmbeddings
    from experiments.evaluation.result import Result
    from pipelines import ImageTable

_WHAT, _HOW = "Evaluated model or file, one of", "How"
SOURCES = ("run", "model", "saved_model", "embeddings")


@dataclasses.dataclass(frozen=True, kw_only=True)
class EvaluateOptions(EvaluationOptions, BackboneOptions):
    """Options of the command: the model or file, and the flags of a run that apply to it."""

    command = "experiments.evaluate"
    intro = """Score embeddings in retrieval and clustering: a table, a page, and a JSON file.

  python -m experiments.evaluate --run=runs/glyphs-seed0
  python -m experiments.evaluate --backbone=efficientnet_lite0 --weights=packaged --data_dir=photos
  python -m experiments.evaluate --model=FILE.keras --dataset=cub --data_dir=FOLDER --resize=256
  python -m experiments.evaluate --saved_model=FOLDER --data_dir=photos
  python -m experiments.evaluate --embeddings=FILE.npz

--backbone evaluates an untrained backbone with its pooling, without any run. With --data_dir, the
default of --dataset is a folder of class folders. The same command resumes after a stop. From a
--flagfile, only the flags of the dataset, the image size, the backbone, and the evaluation apply.
"""

    run: str | None = option(
        None,
        _WHAT,
        "Folder of experiments.run: its kept model on its dataset. Other flags override the run's.",
    )
    model: str | None = option(
        None,
        _WHAT,
        "Keras model from images [n, size, size, 3], RGB in 0..255, to embeddings [n, d].",
    )
    saved_model: str | None = option(
        None,
        _WHAT,
        "SavedModel from the bytes of image files to embeddings. It contains the preprocessing, so "
        "image_size and resize have no effect. It runs code with your rights: use only models that "
        "you trust.",
    )
    embeddings: str | None = option(
        None,
        _WHAT,
        "File of numpy.savez with the arrays embeddings [n, d] and labels [n]. gallery_embeddings "
        "and gallery_labels are searched instead of the other rows, and catalog_embeddings and "
        "catalog_labels as a second task. With paths of image files (also gallery_paths and "
        "catalog_paths), the page shows neighbors.",
    )
    split: str = option(
        "test",
        _HOW,
        "Images of the dataset. A model that was trained on it has seen the classes of train and "
        "all.",
        choices=("test", "train", "all"),
    )
    clustering: bool = option(True, _HOW, "Compute NMI and AMI, which need k-means.")
    float16: bool = option(False, _HOW, "Store the embeddings in half the size.")
    output_dir: str | None = option(
        None,
        _HOW,
        "Folder of the results. Default: NAME-evaluation next to the file or model, or evaluation "
        "in the folder of a run.",
    )

    @classmethod
    def of_flag_files(cls) -> type[Options]:
        """Return the options of a recipe or of a run."""
        return RunOptions

    @classmethod
    def refusal(cls, name: str | None, received: str) -> str | None:
        """Return a message for a flag of training."""
        known = declarations(RunOptions, registries=False)
        if name is None or not {name, name.removeprefix("no")} & known.keys():
            return None
        return f"{name} has no effect on an evaluation, but got {received}."

    @property
    def kind(self) -> str:
        """The flag that is set: one of `SOURCES`, or else "backbone"."""
        given = [name for name in SOURCES if getattr(self, name)]
        if "backbone" in (self.on_command_line if given else self.given):
            given.append("backbone")
        if len(given) != 1:
            raise UsageError(
                f"Set one of {', '.join(f'--{name}' for name in (*SOURCES, 'backbone'))}, but got "
                f"{' and '.join(f'--{name}' for name in given) or 'none of them'}."
            )
        return given[0]

    @property
    def source(self) -> pathlib.Path:
        """The path of the evaluated model, run, or file, or the name of the backbone."""
        return pathlib.Path(getattr(self, self.kind)).expanduser()

    @property
    def output(self) -> pathlib.Path:
        """The folder of the results."""
        if self.output_dir:
            return pathlib.Path(self.output_dir).expanduser()
        name = "evaluation" if self.split == "test" else f"evaluation-{self.split}"
        if self.kind == "run":
            return self.source / name
        if self.kind == "backbone":
            return pathlib.Path("runs", f"{self.source.stem.replace(':', '_')}-{name}")
        source = pathlib.Path(os.path.abspath(self.source))  # so that "." has a name
        return source.with_name(f"{source.name if source.is_dir() else source.stem}-{name}")


# Flags that have an effect on a file of embeddings.
_OF_A_FILE = {"embeddings", "recall_at", "matryoshka", "clustering", "output_dir", "debug"}
_OF_A_BACKBONE = [name for name in BackboneOptions.__annotations__ if name != "backbone"]


def main(argv: list[str]) -> None:
    """Embed, score, and write the page and the JSON file."""
    options = parse(EvaluateOptions, argv)
    kind, source, output = options.kind, options.source, options.output
    if kind == "embeddings":
        refuse_unused(options, sorted(options.on_command_line - _OF_A_FILE), "--embeddings")
    elif kind != "backbone":
        sizes = ImageSizeOptions.__annotations__ if kind == "saved_model" else ()
        refuse_unused(options, [*_OF_A_BACKBONE, *sizes], f"--{kind}")
    if kind == "run":
        from experiments.training.run_files import flag_file_of

        # The flags of the run are the defaults of its evaluation.
        options = parse(EvaluateOptions, [argv[0], f"--flagfile={flag_file_of(source)}", *argv[1:]])
    elif options.dataset is None and options.data_dir is not None:
        options = dataclasses.replace(options, dataset="folder")
    from experiments.evaluation.held_folder import opened
    from experiments.evaluation.result import REPORT
    from experiments.pages.links import add_link
    from experiments.pages.report import write_report
    from keras_dml._files.atomic import replacing

    with contextlib.ExitStack() as until_end:
        result = _result(options, lambda: until_end.enter_context(opened(output)))
        page, report = output / "evaluation.html", source / REPORT
        try:
            with replacing(output / "evaluation.json") as unfinished:
                unfinished.write_text(json.dumps(result.as_json(), indent=1) + "\n")
            write_report(page, result, {report: "The run's report"} if kind == "run" else {})
        except OSError as error:
            raise UsageError(f"The results cannot be written: {error}") from error
    if kind == "run":
        add_link(report, page, " ".join(["Evaluation", *output.name.split("-")[1:]]))
    print(f"\n{result.table}\n\npage: {page}")


def _result(options: EvaluateOptions, open_output: Callable[[], None]) -> Result:
    """Embed and score.

    Args:
        options: The options.
        open_output: Creates the folder of the results. It is called after all checks.
    """
    from experiments.evaluation.evaluated import result_of
    from experiments.evaluation.labeled_embeddings import embeddings_from_file

    if options.kind == "embeddings":
        embedded, trained = embeddings_from_file(options.source), 0
        _recall_at(options, embedded.queries, embedded.gallery)
        _prefixes(options, embedded)
        open_output()
    else:
        embedded, trained = _embedded(options, open_output)
    facts: dict[str, str | None] = {}
    if embedded.queries.table is not None:
        fold = {"fold": options.fold} if options.fold else {}
        facts = {"dataset": options.dataset, "split": options.split, **fold}
    title = f"{options.kind} {options.source}"
    if options.kind == "backbone":
        title = f"untrained backbone {options.backbone}"
        facts["weights"] = options.weights
    ks = _recall_at(options, embedded.queries, embedded.gallery)
    prefixes = _prefixes(options, embedded)
    return result_of(title, embedded, ks, prefixes, options.clustering, facts, trained)


def _embedded(
    options: EvaluateOptions, open_output: Callable[[], None]
) -> tuple[LabeledEmbeddings, int]:
    """Return the embeddings of a model, and how many of the classes are training classes."""
    from experiments.evaluation import model_embeddings
    from experiments.options import data as options_data
    from experiments.training.fit import pooled_backbone
    from experiments.training.made_of import images_of_run
    from experiments.training.run_files import kept_model, known_bad_images

    kind, source, output = options.kind, options.source, options.output
    if kind == "run":
        data = images_of_run(source, options, data_dir_moves=False, refuses=True)
    else:
        data, _ = options_data.data(options, known_bad_images(output))
    sides = model_embeddings.sides_of(data, options.split, options.dataset)
    _recall_at(options, sides.queries, sides.items)
    if kind == "saved_model":
        embedder = model_embeddings.saved_model(source, options, sides.queries)
    elif kind == "backbone":
        embedder = model_embeddings.backbone_model(pooled_backbone(options), options)
    else:
        path = kept_model(source) if kind == "run" else source
        embedder = model_embeddings.keras_model(path, options, kind)
    open_output()
    dtype = "float16" if options.float16 else "float32"
    embedded = model_embeddings.embed(embedder, sides, output, dtype)
    return embedded, 0 if kind == "backbone" else sides.trained


def _recall_at(
    options: EvaluateOptions,
    queries: EmbeddedSet | ImageTable,
    gallery: EmbeddedSet | ImageTable | None,
) -> list[int]:
    """Return the values of K, and check that a query can have a match."""
    from experiments.evaluation.labeled_embeddings import check_matches
    from experiments.options.data import recall_at

    items = None if gallery is None else gallery.labels
    ks = recall_at(options, len(queries.labels), None if items is None else len(items))
    check_matches(queries.labels, items)
    return ks


def _prefixes(options: EvaluateOptions, embedded: LabeledEmbeddings) -> list[int]:
    """Return the lengths of the prefixes that are scored too."""
    if options.matryoshka is None:
        return []
    dimensions = embedded.queries.embeddings.shape[1]
    lengths = whole_numbers("matryoshka", options.matryoshka)
    if lengths != tuple(sorted(set(lengths))) or lengths[0] < 1 or lengths[-1] > dimensions:
        raise UsageError(
            f"matryoshka must be increasing lengths up to {dimensions}, the length of the "
            f"embeddings, but got {','.join(options.matryoshka)}."
        )
    return [length for length in lengths if length < dimensions]


if __name__ == "__main__":
    sys.exit(run_command(main, goes_on="the same command resumes"))
