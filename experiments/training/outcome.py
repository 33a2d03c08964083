"""What a run leaves behind: the best model's scores, its SavedModel, the report."""

import json
import time
from typing import NamedTuple

import keras
import numpy as np

from experiments.embedding.embedder import (
    Embedder,
    embeddings_on_disk,
    file_fingerprint,
    gallery_arguments,
    raw_pixels,
    recalls,
)
from experiments.embedding.embedding_file import EmbeddingFile
from experiments.options import resolved
from experiments.report.neighbors import retrieval_rows
from experiments.report.page import Report, recall_table, write_report
from experiments.report.scores import as_json, recalls_alone, score_lines, score_rows, shown_lines
from experiments.training import rankmi_view
from experiments.training.callbacks import ACCURACY, save_model, score
from experiments.training.run_folder import RAW_PIXELS
from keras_dml import metrics
from keras_dml.atomic import replacing
from keras_dml.export import export_saved_model, float32_copy


def raw_pixel_recalls(run):
    """Recall of the pixels themselves, computed once for the run; None where not asked for."""
    folder, options, data = run.folder, run.options, run.data
    if not options.raw_pixels or not folder.writes:
        return None
    path = folder.file(RAW_PIXELS)
    if not path.is_file():

        def pixels(table, _):
            return raw_pixels(table, options.eval_batch_size)

        gallery = gallery_arguments(pixels, data, "")
        found = recalls(pixels(data.test, ""), data.test.labels, run.ks, **gallery)
        folder.write_json(RAW_PIXELS, found)
    saved = json.loads(path.read_text())
    found = {metric: {int(k): v for k, v in by_k.items()} for metric, by_k in saved.items()}
    print(f"raw pixels: R@1 {100 * found['cosine'][1]:.1f} % (cosine)")
    return found


def best_model(folder, embedding):
    """The embedding model that scored best, in float32; the last one is saved beside it.

    A worker that has no folder gets one of the same layers.
    """
    if not folder.writes:
        return float32_copy(embedding)
    save_model(embedding, folder.file("last.keras"))
    return float32_copy(keras.saving.load_model(folder.file("best.keras"), compile=False))


class Found(NamedTuple):
    """What the final evaluation has found.

    Attributes:
        embeddings: of the test images, `[n, d]`.
        gallery: of the gallery's images; None where there is none.
        scores: as from `keras_dml.metrics.evaluate`.
        files: the `EmbeddingFile`s that they are in until the run is finished.
    """

    embeddings: np.ndarray
    gallery: np.ndarray | None
    scores: dict[str, float]
    files: list[EmbeddingFile]


def evaluate(run, model, workers):
    """What the kept model's embeddings are worth: a `Found`; None on a worker without the folder.

    The embeddings are kept in `test_embeddings.npz`.
    """
    folder, data, test = run.folder, run.data, run.data.test
    embedder = Embedder(model, run.preprocessing, run.options.eval_batch_size)
    model_key = file_fingerprint(folder.file("best.keras")) if folder.writes else ""
    files = [
        embeddings_on_disk(
            embedder,
            table,
            folder.file(f".{side}_embeddings.npy"),
            model_key,
            f"embedding, {side}",
            workers=workers,
        )
        for side, table in data.tables.items()
        if side != "training"
    ]
    if not folder.writes:
        return None
    embeddings, gallery, *_ = (*(file.array() for file in files), None)
    names = {} if test.paths is None else {"paths": test.paths}
    if data.gallery:
        names |= {"gallery_embeddings": gallery, "gallery_labels": data.gallery.labels}
        names |= {} if data.gallery.paths is None else {"gallery_paths": data.gallery.paths}
    with replacing(folder.file("test_embeddings.npz")) as path, open(path, "wb") as stream:
        np.savez(stream, embeddings=embeddings, labels=test.labels, **names)
    labels = {"gallery_labels": data.gallery.labels} if data.gallery else {}
    scores = metrics.evaluate(embeddings, test.labels, run.ks, gallery=gallery, **labels)
    return Found(embeddings, gallery, scores, files)


def export(folder, model, preprocessing):
    """The SavedModel: encoded image bytes to embeddings, the evaluation's preprocessing inside."""
    export_saved_model(model, folder.file("saved_model"), preprocessing)


def report(run, found, raw, seconds):
    """Write `report.html` and, last of all, `result.json`; returns the table of scores.

    Args:
        run: `RunPlan`.
        found: `Found`.
        raw: as from `raw_pixel_recalls`.
        seconds: that the run took.
    """
    folder, options, data = run.folder, run.options, run.data
    history = folder.read_history()
    best = max(history, key=score)
    rows = {f"embedding, {metric}": row for metric, row in score_rows(found.scores).items()}
    rows |= {f"raw pixels, {metric}": by_k for metric, by_k in (raw or {}).items()}
    tested = "the same" if data.same_classes else f"{data.test.num_classes:,} other"
    trained, steps = history[-1]["train/seconds"], history[-1]["step"]
    summary = [
        ("Training", f"{len(data.train):,} images of {data.train.num_classes:,} classes"),
        ("Test", f"{len(data.test):,} images of {tested} classes"),
        *([("Gallery", f"{len(data.gallery):,} images of the same")] if data.gallery else []),
        ("Backbone", f"{options.backbone}, weights: {options.weights}"),
        ("Embedding", f"{found.embeddings.shape[1]} dimensions"),
        *score_lines(found.scores),
        ("Loss", options.loss),
        ("Steps", f"{steps:,} of {options.batch_size} images"),
        ("Training time", f"{trained:.0f} s, {steps * options.batch_size / trained:,.0f} images/s"),
        ("Seed", str(options.seed)),
        ("Finished", time.strftime("%Y-%m-%d %H:%M")),
    ]
    pictures = {}
    if options.loss == "rankmi":
        pictures, lines = rankmi_view.pictures(folder, history)
        summary += lines
    write_report(
        folder.file("report.html"),
        Report(
            title=f"{run.name} · {options.loss}",
            summary=summary,
            recall=rows,
            history=history,
            best=best,
            retrieval=retrieval_rows(
                found.embeddings, data.test, run.preprocessing, found.gallery, data.gallery
            ),
            flags=resolved(options),
            pictures=pictures,
        ),
    )
    table = f"{recall_table(rows)}\n{shown_lines(found.scores)}"
    accuracy = {}
    if ACCURACY in best:
        accuracy = {"accuracy": best[ACCURACY]}
        table += f"\naccuracy on the training classes: {100 * best[ACCURACY]:.1f} %"
    folder.write_json(
        "result.json",
        {
            "recall": recalls_alone(rows),
            "scores": as_json(found.scores),
            **accuracy,
            "best_epoch": best["epoch"],
            "train_seconds": trained,
            "seconds": round(seconds, 1),
            "table": table,
        },
    )
    for file in found.files:
        file.remove()
    return table
