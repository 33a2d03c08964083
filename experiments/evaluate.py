"""`python -m experiments.evaluate`: score the embeddings of a model or of a file."""

from __future__ import annotations

import dataclasses
import json
import pathlib
import sys
from typing import TYPE_CHECKING

from experiments.options import UsageError, check_together, parse, run_command
from experiments.options.conversions import whole_numbers
from experiments.options.evaluate_options import EvaluateOptions

if TYPE_CHECKING:
    from experiments.evaluation.embed import IdentifiedEmbedder
    from experiments.evaluation.embedded_sets import EmbeddedSets
    from pipelines import ImageTable


def main(argv: list[str]) -> None:
    """Embed, score, and write the page and the JSON file."""
    options = parse(EvaluateOptions, argv)
    kind, source, output = options.kind, options.source, options.output
    options.check_effect()
    check_together(options)
    if kind == "run":
        from experiments.training.run_files import flag_file_of

        # The flags of the run are the defaults of its evaluation.
        options = parse(EvaluateOptions, [argv[0], f"--flagfile={flag_file_of(source)}", *argv[1:]])
    elif options.dataset is None and options.data_dir is not None:
        dataset = "table" if pathlib.Path(options.data_dir).is_file() else "folder"
        options = dataclasses.replace(options, dataset=dataset)
    from experiments.evaluation.embed import embed
    from experiments.evaluation.embedded_sets import check_matches, embeddings_from_file
    from experiments.evaluation.evaluated import check_loss_parts, check_rerankings, result_of
    from experiments.evaluation.evaluators import related_classes
    from experiments.evaluation.result import EVALUATION, REPORT
    from experiments.options.data import recall_at
    from experiments.options.held_folder import held
    from experiments.pages.page import add_link
    from experiments.pages.report import write_report
    from keras_dml._files.manifest import Manifest

    title, trained, chosen = f"{kind} {source}", 0, ""
    if kind == "embeddings":
        embedded = embeddings_from_file(source)
        labels = {name: each.labels for name, each in embedded.sets}
        images = embedded.queries.table
    else:
        tables, trained, chosen = _tables(options)
        print(chosen, flush=True)
        labels = {name: table.labels for name, table in tables.items()}
        images = tables["queries"]
    gallery = labels.get("gallery")
    ks = recall_at(options, len(labels["queries"]), None if gallery is None else len(gallery))
    check_matches(labels["queries"], gallery)
    check_loss_parts(options.loss_parts, len(labels["queries"]))
    check_rerankings(
        options.rerankings, max(len(labels["queries"]), 0 if gallery is None else len(gallery))
    )
    classes = related_classes(options, images)
    if kind == "embeddings":
        prefixes = _prefixes(options, embedded)
    else:
        model, candidate_model = _models(options, tables)
    facts: dict[str, str | None] = {}
    if images is not None:
        facts = {"dataset": options.dataset, "split": options.split}
        if kind != "embeddings":
            facts["classes"] = chosen
        if options.fold:
            facts["fold"] = options.fold
    if kind == "backbone":
        title, trained = f"untrained backbone {options.backbone}", 0
        facts["weights"] = options.weights
    page, report = output / "evaluation.html", source / REPORT
    manifest = Manifest(output)
    with held(output, "output_dir"):
        manifest.recover()
        if kind != "embeddings":
            embedded = embed(model, tables, output, candidate_model)
            prefixes = _prefixes(options, embedded)
        result = result_of(options, title, embedded, ks, prefixes, facts, trained, classes)
        manifest.write_text(EVALUATION, json.dumps(result.as_json(), indent=1) + "\n")
        write_report(page, result, {report: "The run's report"} if kind == "run" else {})
    if kind == "run":
        add_link(report, page, " ".join(["Evaluation", *output.name.split("-")[1:]]))
    print(f"\n{result.table}\n\npage: {page}")


def _tables(options: EvaluateOptions) -> tuple[dict[str, ImageTable], int, str]:
    """Return the evaluated images by their sets.

    Also return how many classes are training classes, and which classes are evaluated, in words.
    """
    from experiments.evaluation.embed import classes_line, evaluated_tables
    from experiments.options import data as options_data
    from experiments.training.run_images import images_of_run

    if options.kind == "run":
        data = images_of_run(options.source, options, data_dir_moves=False, refuses=True)
    else:
        data, _ = options_data.data(options)
    tables, trained = evaluated_tables(data, options.split, options.dataset)
    every_class = options.keeps_nothing_back
    return tables, trained, classes_line(data, options.split, tables["queries"], every_class)


def _models(
    options: EvaluateOptions, tables: dict[str, ImageTable]
) -> tuple[IdentifiedEmbedder, IdentifiedEmbedder | None]:
    """Return the embedder, and the embedder of the gallery and the catalog if it is another."""
    from experiments.evaluation.embed import backbone_model, keras_model, saved_model, text_model
    from experiments.options import data as described
    from experiments.options.texts import text_transform
    from experiments.training.encoders import pooled_backbone
    from experiments.training.run_files import kept_candidate_model, kept_model
    from experiments.training.run_images import options_of_run

    kind, source = options.kind, options.source
    candidates: str | pathlib.Path | None = options.candidate_model
    if candidates and len(tables) == 1:
        raise UsageError(
            "candidate_model must come with split=test of a dataset with a gallery or a catalog, "
            f"but got split={options.split} of dataset={options.dataset}."
        )
    if kind == "saved_model":
        return saved_model(source, options, tables["queries"]), None
    if kind == "backbone":
        image_size = options.image_size
        if line := described.native_size_line(options.backbone, options.weights, image_size):
            print(line)
        backbone = pooled_backbone(options, image_size)
        return backbone_model(backbone, options, options.backbone), None
    flag = "candidate_model"
    if kind == "run":
        source, candidates, flag = kept_model(source), kept_candidate_model(source), kind
    candidate_model = None
    texts = text_transform(options_of_run(options.source)) if kind == "run" else None
    if candidates and texts is not None:
        candidate_model = text_model(candidates, options, texts)
    elif candidates:
        candidate_model = keras_model(candidates, options, flag)
    return keras_model(source, options, kind), candidate_model


def _prefixes(options: EvaluateOptions, embedded: EmbeddedSets) -> list[int]:
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
