"""`python -m experiments.evaluate`: what a trained model's embeddings, or anybody's, are worth."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import pathlib
import sys
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from experiments.options import (
    Options,
    RunOptions,
    UsageError,
    declarations,
    option,
    parse,
    run_command,
    words_of,
)
from experiments.options.run_options import (
    BadImageOptions,
    DataOptions,
    EvaluationOptions,
    ImageLimitOptions,
    ImageSizeOptions,
)
from experiments.options.values import whole_numbers

if TYPE_CHECKING:
    from experiments.embedding.labeled_embeddings import LabeledEmbeddings

_WHAT, _HOW = "What is evaluated, one of", "How"


@dataclasses.dataclass(frozen=True, kw_only=True)
class EvaluateOptions(EvaluationOptions):
    """What is evaluated, and of what a run takes, that which means something here."""

    command = "experiments.evaluate"
    intro = """What embeddings are worth in retrieval and clustering: a table, a page, a JSON file.

  python -m experiments.evaluate --run=runs/glyphs-seed0
  python -m experiments.evaluate --model=FILE.keras --dataset=cub --data_dir=FOLDER --resize=256
  python -m experiments.evaluate --saved_model=FOLDER --dataset=folder --data_dir=photos
  python -m experiments.evaluate --embeddings=FILE.npz

Embeddings are written as they are computed: the same command goes on where it was stopped. Of a
--flagfile counts what it says of dataset, image size and evaluation.
"""

    run: str | None = option(
        None,
        _WHAT,
        "A folder of experiments.run: its kept model on its own dataset; other flags override the "
        "run's.",
    )
    model: str | None = option(
        None,
        _WHAT,
        "A Keras model from images [n, size, size, 3], RGB in 0..255, to embeddings [n, d].",
    )
    saved_model: str | None = option(
        None,
        _WHAT,
        "A SavedModel from the bytes of image files to embeddings, with its preprocessing: image_"
        "size and resize mean nothing to it. It is code that runs with your rights: only of those "
        "you trust.",
    )
    embeddings: str | None = option(
        None,
        _WHAT,
        "A file of numpy.savez with the arrays embeddings [n, d] and labels [n]; with "
        "gallery_embeddings and gallery_labels those are searched, else the rest of the rows; with "
        "paths (and gallery_paths) of image files the page shows neighbours; catalog_embeddings, "
        "catalog_labels (and catalog_paths) are searched too, as a question of its own. Takes no "
        "flags of a dataset or a model.",
    )
    split: str = option(
        "test",
        _HOW,
        "Which images of the dataset. Of a model that was trained on it, train and all show "
        "classes that it knows.",
        choices=("test", "train", "all"),
    )
    clustering: bool = option(True, _HOW, "NMI and AMI, which take k-means.")
    float16: bool = option(False, _HOW, "Keep the embeddings in half the size.")
    output_dir: str | None = option(
        None,
        _HOW,
        "Where the results go. Default: beside what is evaluated, NAME-evaluation; of a run, in "
        "its folder.",
    )

    @classmethod
    def of_flag_files(cls) -> type[Options]:
        """A recipe's, or a run's."""
        return RunOptions

    @classmethod
    def refusal(cls, name: str | None, received: str) -> str | None:
        """For a flag of training."""
        if name is None:
            return None
        known = declarations(RunOptions, registries=False)
        name = name if name in known else name.removeprefix("no")
        if name not in known:
            return None
        return f"{name} means nothing to an evaluation. Received: {received}"

    @property
    def kind(self) -> str:
        """Which of the flags says what is evaluated.

        Raises:
            UsageError: none or several.
        """
        given = [name for name in SOURCES if getattr(self, name)]
        if len(given) != 1:
            raise UsageError(
                f"give one of {', '.join(f'--{name}' for name in SOURCES)}. "
                f"Received: {' and '.join(f'--{name}' for name in given) or 'none of them'}"
            )
        return given[0]

    @property
    def source(self) -> pathlib.Path:
        """The path of what is evaluated."""
        return pathlib.Path(getattr(self, self.kind)).expanduser()

    @property
    def output(self) -> pathlib.Path:
        """The folder of the results."""
        if self.output_dir:
            return pathlib.Path(self.output_dir).expanduser()
        name = "evaluation" if self.split == "test" else f"evaluation-{self.split}"
        if self.kind == "run":
            return self.source / name
        source = pathlib.Path(os.path.abspath(self.source))  # "." and ".." have a name then
        return source.with_name(f"{source.name if source.is_dir() else source.stem}-{name}")


SOURCES = ("run", "model", "saved_model", "embeddings")
# What means nothing to an evaluation of one kind. A SavedModel has its preprocessing inside.
_NOT_READ = {
    "embeddings": (
        *DataOptions.__annotations__,
        *BadImageOptions.__annotations__,
        *ImageLimitOptions.__annotations__,
        *ImageSizeOptions.__annotations__,
        "eval_batch_size",
    ),
    "saved_model": tuple(ImageSizeOptions.__annotations__),
}


def main(argv: list[str]) -> None:
    """Embeddings, scores, page."""
    options = _parse(argv)
    with contextlib.ExitStack() as held_folder:
        table = _evaluate(options, held_folder)
    print(f"\n{table}\n\npage: {options.output / 'evaluation.html'}")


def _evaluate(options: EvaluateOptions, held_folder: contextlib.ExitStack) -> str:
    """The table; the folder of the results is made when it is clear that there will be some."""
    kind, source, output = options.kind, options.source, options.output
    from experiments.embedding import model_embeddings
    from experiments.embedding.labeled_embeddings import embeddings_from_file
    from experiments.embedding.table_embedder import catalog_recalls, prefix_recalls
    from experiments.options import data as options_data
    from experiments.options.data import recall_at
    from experiments.training.made_of import images_of_run
    from experiments.training.run_files import kept_model, known_bad_images
    from keras_dml import metrics

    trained = 0
    if kind == "embeddings":
        embedded = embeddings_from_file(source)
        _prefixes(options, embedded.embeddings.shape[1])  # refused before anything is written
        gallery = None if embedded.gallery is None else len(embedded.gallery)
        ks = recall_at(options, len(embedded.labels), gallery)
        _open(output, held_folder)
    else:
        if kind == "run":
            data = images_of_run(source, options, data_dir_moves=False, refuses=True)
        else:
            data, _ = options_data.data(options, known_bad_images(output))
        sides = model_embeddings.sides_of(data, options.split, options.dataset)
        trained = sides.trained
        gallery = None if sides.items is None else len(sides.items)
        ks = recall_at(options, len(sides.queries), gallery)
        if kind == "saved_model":
            embedder = model_embeddings.saved_model(source, options, sides.queries)
        else:
            path = kept_model(source) if kind == "run" else source
            embedder = model_embeddings.keras_model(path, options, kind)
        _open(output, held_folder)
        dtype = "float16" if options.float16 else "float32"
        embedded = model_embeddings.embed(embedder, sides, output, dtype)
    scores = metrics.evaluate(
        embedded.embeddings,
        embedded.labels,
        ks,
        clustering=options.clustering,
        gallery=embedded.gallery,
        gallery_labels=embedded.gallery_labels,
    )
    prefixes = prefix_recalls(
        embedded.embeddings,
        embedded.labels,
        ks,
        _prefixes(options, embedded.embeddings.shape[1]),
        embedded.gallery,
        embedded.gallery_labels,
    )
    catalog: dict[str, dict[int, float]] = {}
    if embedded.catalog is not None and embedded.catalog_labels is not None:
        catalog = catalog_recalls(
            embedded.embeddings, embedded.labels, ks, embedded.catalog, embedded.catalog_labels
        )
    try:
        title = f"{kind} {source}"
        return _write(output, title, options, embedded, scores, prefixes, catalog, trained)
    except OSError as error:
        raise UsageError(f"the results cannot be written: {error}") from error


def _open(output: pathlib.Path, held_folder: contextlib.ExitStack) -> None:
    """Make the folder of the results, which no other process writes into till the stack ends."""
    from experiments.embedding.held_folder import held

    output.mkdir(parents=True, exist_ok=True)
    held_folder.enter_context(held(output, "output_dir"))


def _parse(argv: list[str]) -> EvaluateOptions:
    """The options; where a run is evaluated, what is not given is the run's."""
    options = parse(EvaluateOptions, argv)
    kind, source = options.kind, options.source
    for name in _NOT_READ.get(kind, ()):
        if name in options.on_command_line:
            (received,) = words_of(options, [name])
            raise UsageError(
                f"{name} means nothing to an evaluation of --{kind}. Received: {received}"
            )
    if kind == "embeddings" and (options.split != "test" or options.float16):
        raise UsageError("split and float16 are for a model's embeddings, not for --embeddings")
    if kind != "run":
        return options
    from experiments.training.run_files import flag_file_of

    return parse(EvaluateOptions, [argv[0], f"--flagfile={flag_file_of(source)}", *argv[1:]])


def _prefixes(options: EvaluateOptions, dimensions: int) -> list[int]:
    """The lengths below that of the embeddings, whose recall is measured beside theirs."""
    if options.matryoshka is None:
        return []
    lengths = whole_numbers("matryoshka", options.matryoshka)
    if lengths != tuple(sorted(set(lengths))) or lengths[0] < 1 or lengths[-1] > dimensions:
        raise UsageError(
            f"matryoshka must be increasing lengths, up to the {dimensions} of the embeddings. "
            f"Received: matryoshka={','.join(options.matryoshka)}"
        )
    return [length for length in lengths if length < dimensions]


def _write(
    output: pathlib.Path,
    title: str,
    options: EvaluateOptions,
    embedded: LabeledEmbeddings,
    scores: Mapping[str, float],
    prefixes: Mapping[int, Mapping[str, Mapping[int, float]]],
    catalog: Mapping[str, Mapping[int, float]],
    trained: int,
) -> str:
    """Write `evaluation.json` and `evaluation.html`; returns the table."""
    from experiments.embedding.labeled_embeddings import rows_of_zeros, trained_classes_line
    from experiments.report.links import add_link
    from experiments.report.page import Report, recall_table, write_report
    from experiments.report.scores import (
        as_json,
        catalog_rows,
        prefix_rows,
        prefix_scores,
        score_lines,
        score_rows,
        shown_lines,
        zero_row_lines,
    )
    from experiments.training.run_files import REPORT
    from keras_dml._files.atomic import replacing

    rows = {f"embedding, {metric}": row for metric, row in score_rows(scores).items()}
    rows |= prefix_rows(prefixes) | catalog_rows(catalog)
    zeros = {"zero_rows": rows_of_zeros(embedded.embeddings)}
    if embedded.gallery is not None:
        zeros["gallery_zero_rows"] = rows_of_zeros(embedded.gallery)
    if embedded.catalog is not None:
        zeros["catalog_zero_rows"] = rows_of_zeros(embedded.catalog)
    zero_lines = zero_row_lines(zeros)
    seen = trained_classes_line(trained, embedded.queries)
    lines = [recall_table(rows), shown_lines(scores), seen, *zero_lines]
    table = "\n".join(filter(None, lines))
    facts = {
        "evaluated": title,
        "dataset": options.dataset,
        "split": options.split,
        **({"fold": options.fold} if options.fold else {}),
        "queries": len(embedded.embeddings),
        "gallery": None if embedded.gallery is None else len(embedded.gallery),
        "catalog": None if embedded.catalog is None else len(embedded.catalog),
        "dimensions": embedded.embeddings.shape[1],
    }
    if embedded.queries is None:
        del facts["dataset"], facts["split"]
    with replacing(output / "evaluation.json") as unfinished:
        counts = {name: len(numbers) for name, numbers in zeros.items()}
        found: dict[str, Any] = {"scores": as_json(scores) | prefix_scores(prefixes)}
        if catalog:
            found["catalog_recall"] = catalog
        result = facts | counts | found | {"table": table}
        unfinished.write_text(json.dumps(result, indent=1) + "\n")
    summary = [
        (name.capitalize(), f"{fact:,}" if isinstance(fact, int) else fact)
        for name, fact in facts.items()
        if fact is not None
    ]
    summary += [("Training classes", seen)] if seen else []
    summary += score_lines(scores) + [("Rows of zeros", line) for line in zero_lines]
    summary += [("Finished", time.strftime("%Y-%m-%d %H:%M"))]
    page = output / "evaluation.html"
    report = options.source / REPORT
    write_report(
        page,
        Report(
            title=title,
            recall=rows,
            summary=summary,
            history=None,
            **_shown(embedded),
            pictures={"Similarities of pairs": _similarities(embedded)},
        ),
        {report: "The run's report"} if options.kind == "run" else {},
    )
    if options.kind == "run":
        add_link(report, page, " ".join(["Evaluation", *output.name.split("-")[1:]]))
    return table


def _shown(embedded: LabeledEmbeddings) -> Mapping[str, Any]:
    """What the report shows of the images, by its fields; nothing where they are not there."""
    import tensorflow as tf

    from experiments.report.neighbors import EmbeddedTable, embedded_table, shown_of
    from pipelines import find_bad_images

    if embedded.queries is None:
        return {}
    items, pictures = embedded.items, embedded.pictures
    try:
        return shown_of(
            EmbeddedTable(embedded.queries, embedded.embeddings),
            embedded.transform,
            embedded_table(items, embedded.gallery),
            embedded_table(pictures, embedded.catalog),
        )._asdict()
    except tf.errors.OpError as error:
        why = " ".join(error.message.split())
        for table in (embedded.queries, items, pictures):
            # By their first bytes alone: the pictures are not worth more.
            for _, name, reason in find_bad_images(table, decode=False)[:1] if table else ():
                why = f"{name}: {reason}"
        print(f"the page shows no pictures: {why}")
        return {}


def _similarities(embedded: LabeledEmbeddings) -> str:
    """The figure of the pairs' similarities; empty where no query has a match."""
    from experiments.report.similarity_figure import pair_rows, similarities, similarities_svg

    sides = [(embedded.embeddings, embedded.labels)]
    if embedded.gallery is not None and embedded.gallery_labels is not None:
        sides.append((embedded.gallery, embedded.gallery_labels))
    chosen = pair_rows(*(labels for _, labels in sides))
    arrays = (array[rows] for side, rows in zip(sides, chosen) for array in side)
    return similarities_svg({"embeddings": similarities(*arrays)})


if __name__ == "__main__":
    sys.exit(run_command(main, goes_on="the same command goes on where it stopped"))
