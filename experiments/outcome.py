"""What a run leaves behind: the best model's scores, its SavedModel, the report."""

import json
import time

import keras
import numpy as np

from experiments import flags, rankmi_view
from experiments.callbacks import ACCURACY, save_model, score
from experiments.evaluation import Embedder, raw_pixels, recalls
from experiments.report import (
    Neighbour,
    Report,
    RetrievalRow,
    choose_queries,
    recall_table,
    write_report,
)
from experiments.run_folder import RAW_PIXELS, replacing
from keras_dml.export import export_saved_model, float32_copy
from keras_dml.metrics import nearest_neighbours
from pipelines import evaluation_batches


def raw_pixel_recalls(folder, options, table, ks):
    """Recall of the pixels themselves, computed once for the run; None where not asked for."""
    if not options.raw_pixels:
        return None
    path = folder.file(RAW_PIXELS)
    if not path.is_file():
        pixels = raw_pixels(table, options.eval_batch_size)
        folder.write_json(RAW_PIXELS, recalls(pixels, table.labels, ks))
    saved = json.loads(path.read_text())
    found = {metric: {int(k): v for k, v in by_k.items()} for metric, by_k in saved.items()}
    print(f"raw pixels: R@1 {100 * found['cosine'][1]:.1f} % (cosine)")
    return found


def best_model(folder, embedding):
    """The embedding model that scored best, in float32; the last one is saved beside it."""
    save_model(embedding, folder.file("last.keras"))
    return float32_copy(keras.saving.load_model(folder.file("best.keras"), compile=False))


def evaluate(folder, options, model, preprocessing, test, ks):
    """Test embeddings (kept in `test_embeddings.npz`), their recalls and their neighbours."""
    embed = Embedder(model, preprocessing, options.eval_batch_size)
    embeddings = embed(test, "embedding the test images")
    names = {} if test.paths is None else {"paths": test.paths}
    with replacing(folder.file("test_embeddings.npz")) as path, open(path, "wb") as stream:
        np.savez(stream, embeddings=embeddings, labels=test.labels, **names)
    return embeddings, recalls(embeddings, test.labels, ks)


def export(folder, model, preprocessing):
    """The SavedModel: encoded image bytes to embeddings, the evaluation's preprocessing inside."""
    export_saved_model(model, folder.file("saved_model"), preprocessing)


def report(folder, options, name, data, preprocessing, found, raw, seconds):
    """Write `report.html` and, last of all, `result.json`; returns the table of recalls."""
    embeddings, recall = found
    history = folder.read_history()
    best = max(history, key=score)
    rows = {f"embedding, {metric}": by_k for metric, by_k in recall.items()}
    rows |= {f"raw pixels, {metric}": by_k for metric, by_k in (raw or {}).items()}
    tested = "the same" if data.same_classes else f"{data.test.num_classes:,} other"
    trained, steps = history[-1]["train/seconds"], history[-1]["step"]
    summary = [
        ("Training", f"{len(data.train):,} images of {data.train.num_classes:,} classes"),
        ("Test", f"{len(data.test):,} images of {tested} classes"),
        ("Backbone", f"{options.backbone}, weights: {options.weights}"),
        ("Embedding", f"{embeddings.shape[1]} dimensions"),
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
            title=f"{name} · {options.loss}",
            summary=summary,
            recall=rows,
            history=history,
            best=best,
            retrieval=_retrieval(embeddings, data.test, preprocessing),
            flags=flags.resolved(options),
            pictures=pictures,
        ),
    )
    table = recall_table(rows)
    accuracy = {}
    if ACCURACY in best:
        accuracy = {"accuracy": best[ACCURACY]}
        table += f"\naccuracy on the training classes: {100 * best[ACCURACY]:.1f} %"
    folder.write_json(
        "result.json",
        {
            "recall": rows,
            **accuracy,
            "best_epoch": best["epoch"],
            "train_seconds": trained,
            "seconds": round(seconds, 1),
            "table": table,
        },
    )
    return table


def _retrieval(embeddings, test, preprocessing, queries=10, neighbours=5):
    chosen = choose_queries(test.labels, num=queries)
    found, similarities = nearest_neighbours(embeddings, min(neighbours, len(test) - 1), "cosine")
    shown = np.concatenate([chosen, found[chosen].ravel()])
    batches = evaluation_batches(test.select(shown), preprocessing)
    images = np.concatenate([batch.numpy() for batch in batches]).round().astype("uint8")
    pictures = iter(images[len(chosen) :])
    return [
        RetrievalRow(
            image,
            _class_name(test, query),
            [
                Neighbour(
                    next(pictures),
                    _class_name(test, row),
                    float(similarity),
                    bool(test.labels[row] == test.labels[query]),
                )
                for row, similarity in zip(found[query], similarities[query])
            ],
        )
        for image, query in zip(images, chosen)
    ]


def _class_name(table, row):
    return table.class_names[table.labels[row]]
