"""`python -m experiments.evaluate`: what a trained model's embeddings, or anybody's, are worth."""

import json
import os
import pathlib
import sys
import time

from absl import flags as absl_flags

from experiments import recipes
from experiments.options import flags
from experiments.options.command_line import UsageError, quiet_tensorflow, run_command, usage_errors

OWN = absl_flags.FlagValues()
_SOURCES = ("run", "model", "saved_model", "embeddings")
for _name in _SOURCES:
    absl_flags.DEFINE_string(_name, None, "What is evaluated.", flag_values=OWN)
absl_flags.DEFINE_enum("split", "test", ["test", "train", "all"], "Whose.", flag_values=OWN)
absl_flags.DEFINE_bool("clustering", True, "Whether NMI and AMI are wanted.", flag_values=OWN)
absl_flags.DEFINE_bool("float16", False, "Keep embeddings in half the size.", flag_values=OWN)

# Of the runner's flags, those that mean something here; with --embeddings the first two alone. A
# SavedModel has its preprocessing inside.
_READ = (
    "recall_at", "output_dir", "dataset", "data_dir", "train_classes", "test_classes",
    "crop_to_box", "skip_bad_images", "image_size", "resize", "eval_batch_size",
)  # fmt: skip
_NOT_READ = {"embeddings": _READ[2:], "saved_model": ("image_size", "resize")}

HELP = """What embeddings are worth in retrieval and clustering: a table, a page, a JSON file.

  python -m experiments.evaluate --run=runs/glyphs-seed0
  python -m experiments.evaluate --model=FILE.keras --dataset=cub --data_dir=FOLDER --resize=256
  python -m experiments.evaluate --saved_model=FOLDER --dataset=folder --data_dir=photos
  python -m experiments.evaluate --embeddings=FILE.npz

What is evaluated, one of

  --run=          a folder of experiments.run: its best model on its own dataset; other flags
                  override the run's
  --model=        a Keras model from images [n, size, size, 3], RGB in 0..255, to embeddings [n, d]
  --saved_model=  a SavedModel from the bytes of image files to embeddings, with its preprocessing
  --embeddings=   a file of numpy.savez with the arrays embeddings [n, d] and labels [n]; with
                  gallery_embeddings and gallery_labels those are searched, else the rest of the
                  rows; with paths (and gallery_paths) of image files the page shows neighbours

How

  --split=test        test | train | all: which images of the dataset. Of a model that was trained
                      on it, train and all show classes that it knows
  --recall_at=1,2,4,8 the K of recall at K
  --noclustering      leave out NMI and AMI, which take k-means
  --float16           keep the embeddings in half the size
  --output_dir=       where the results go; default: beside what is evaluated, NAME-evaluation
  --flagfile=         a recipe, for its dataset and image size

and --dataset, --data_dir, --train_classes, --test_classes, --crop_to_box, --skip_bad_images,
--image_size, --resize, --eval_batch_size as in python -m experiments.run --help. Embeddings are
written as they are computed: the same command goes on where it was stopped.
"""


def main(argv):
    """Embeddings, scores, page."""
    if flags.wants_help(argv):
        print(HELP)
        return
    with usage_errors():
        options, kind, source = _parse(argv)
        output = _output_dir(options, kind, source)
    quiet_tensorflow()
    from experiments.embedding import evaluated, model_embeddings
    from keras_dml import metrics

    trained = 0
    with usage_errors():
        if kind == "embeddings":
            found = evaluated.from_file(source)
            ks = _recall_at(options, found.labels, found.gallery_labels)
            output.mkdir(parents=True, exist_ok=True)
        else:
            folder = source if kind == "run" else output
            queries, items, trained = model_embeddings.dataset_sides(options, OWN.split, folder)
            ks = _recall_at(options, queries, items)
            if kind == "saved_model":
                model = model_embeddings.saved_model(source, options, queries)
            else:
                path = source / "best.keras" if kind == "run" else source
                model = model_embeddings.keras_model(path, options, kind)
            output.mkdir(parents=True, exist_ok=True)
            dtype = "float16" if OWN.float16 else "float32"
            found = model_embeddings.embed(*model, queries, items, output, dtype)
        sets = {"gallery": found.gallery, "gallery_labels": found.gallery_labels}
        scores = metrics.evaluate(
            found.embeddings, found.labels, ks, clustering=OWN.clustering, **sets
        )
    try:
        table = _write(output, f"{kind} {source}", options, found, scores, trained)
    except OSError as error:
        raise UsageError(f"the results cannot be written: {error}") from error
    print(f"\n{table}\n\npage: {output / 'evaluation.html'}")


def _parse(argv):
    """The runner's flags, and what is evaluated: a name of `_SOURCES` and a path."""
    flags.forget(OWN)
    # Recipes are found and read by `flags.parse`; what they say of training is no mistake here.
    words, flag_files = recipes.without_flagfiles(argv)
    words = OWN(words, known_only=True)
    given = [name for name in _SOURCES if OWN[name].value]
    if len(given) != 1:
        raise ValueError(
            f"give one of {', '.join(f'--{name}' for name in _SOURCES)}. "
            f"Received: {' and '.join(f'--{name}' for name in given) or 'none of them'}"
        )
    (kind,) = given
    source = pathlib.Path(OWN[kind].value).expanduser()
    read = set(_READ) - set(_NOT_READ.get(kind, ()))
    for word in words[1:]:
        name = word.lstrip("-").partition("=")[0]
        name = name if name in flags.FLAGS else name.removeprefix("no")
        if word.startswith("-") and name in flags.FLAGS and name not in read:
            raise ValueError(f"{name} means nothing to an evaluation of --{kind}. Received: {word}")
    if kind == "embeddings" and (OWN.split != "test" or OWN.float16):
        raise ValueError("split and float16 are for a model's embeddings, not for --embeddings")
    if kind == "run":
        if not (source / "flags.txt").is_file():
            raise ValueError(
                f"run must be the folder of a run, with flags.txt in it. Received: run={source}"
            )
        flag_files.insert(0, str(source / "flags.txt"))
    flag_files = [f"--flagfile={name}" for name in flag_files]
    return flags.parse([*words, *flag_files])[0], kind, source


def _output_dir(options, kind, source):
    if options.output_dir:
        return pathlib.Path(options.output_dir).expanduser()
    name = "evaluation" if OWN.split == "test" else f"evaluation-{OWN.split}"
    if kind == "run":
        return source / name
    source = pathlib.Path(os.path.abspath(source))  # "." and ".." have a name then
    return source.with_name(f"{source.name if source.is_dir() else source.stem}-{name}")


def _recall_at(options, queries, items):
    from experiments.training import build

    return build.recall_at(options, len(queries), None if items is None else len(items))


def _write(output, title, options, found, scores, trained):
    """Write `evaluation.json` and `evaluation.html`; returns the table."""
    from experiments.embedding.evaluated import rows_of_zeros, trained_classes_line
    from experiments.report.page import Report, recall_table, write_report
    from experiments.report.scores import (
        as_json,
        score_lines,
        score_rows,
        shown_lines,
        zero_row_lines,
    )
    from keras_dml.atomic import replacing

    rows = {f"embedding, {metric}": row for metric, row in score_rows(scores).items()}
    zeros = {"zero_rows": rows_of_zeros(found.embeddings)}
    if found.gallery is not None:
        zeros["gallery_zero_rows"] = rows_of_zeros(found.gallery)
    zero_lines = zero_row_lines(zeros)
    seen = trained_classes_line(trained, found.queries)
    lines = [recall_table(rows), shown_lines(scores), seen, *zero_lines]
    table = "\n".join(filter(None, lines))
    facts = {
        "evaluated": title,
        "dataset": options.dataset,
        "split": OWN.split,
        "queries": len(found.embeddings),
        "gallery": None if found.gallery is None else len(found.gallery),
        "dimensions": found.embeddings.shape[1],
    }
    if found.queries is None:
        del facts["dataset"], facts["split"]
    with replacing(output / "evaluation.json") as unfinished:
        counts = {name: len(numbers) for name, numbers in zeros.items()}
        result = facts | counts | {"scores": as_json(scores), "table": table}
        unfinished.write_text(json.dumps(result, indent=1) + "\n")
    summary = [
        (name.capitalize(), f"{fact:,}" if isinstance(fact, int) else fact)
        for name, fact in facts.items()
        if fact is not None
    ]
    summary += [("Training classes", seen)] if seen else []
    summary += score_lines(scores) + [("Rows of zeros", line) for line in zero_lines]
    summary += [("Finished", time.strftime("%Y-%m-%d %H:%M"))]
    write_report(
        output / "evaluation.html",
        Report(
            title=title,
            recall=rows,
            summary=summary,
            history=None,
            retrieval=_retrieval(found),
            pictures={"Distances of pairs": _distances(found)},
        ),
    )
    return table


def _retrieval(found):
    """Neighbours of some queries, where the images are there."""
    import tensorflow as tf

    from experiments.report.neighbors import retrieval_rows
    from pipelines import find_bad_images

    if found.queries is None:
        return ()
    try:
        return retrieval_rows(
            found.embeddings, found.queries, found.transform, found.gallery, found.items
        )
    except tf.errors.OpError as error:
        why = " ".join(error.message.split())
        for table in (found.queries, found.items):
            # By their first bytes alone: the pictures are not worth more.
            for _, name, reason in find_bad_images(table, decode=False)[:1] if table else ():
                why = f"{name}: {reason}"
        print(f"the page shows no pictures: {why}")
        return ()


def _distances(found):
    """The figure of the distances; empty where no query has a match in the gallery."""
    import numpy as np

    from experiments.report.distance_figure import BINS, distances_svg, rows_of_some_classes
    from keras_dml.metrics import distance_histograms

    rows = rows_of_some_classes(found.labels)
    labels, sets = found.labels[rows], {}
    if found.gallery is not None:
        items = np.flatnonzero(np.isin(found.gallery_labels, labels))
        if not len(items):
            return ""
        sets = {
            "gallery": found.gallery[items],
            "gallery_labels": found.gallery_labels[items],
        }
    histograms = distance_histograms(found.embeddings[rows], labels, BINS, **sets)
    return distances_svg({"normalised embeddings": histograms})


if __name__ == "__main__":
    sys.exit(run_command(main))
