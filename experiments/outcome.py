"""What a run leaves behind: the best model's scores, its SavedModel, the report."""

import json
import time

import keras
import numpy as np

from experiments import flags, rankmi_view
from experiments.callbacks import ACCURACY, save_model, score
from experiments.evaluation import Embedder, gallery_arguments, raw_pixels, recalls
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


def raw_pixel_recalls(folder, options, data, ks):
    """Recall of the pixels themselves, computed once for the run; None where not asked for."""
    if not options.raw_pixels or not folder.writes:
        return None
    path = folder.file(RAW_PIXELS)
    if not path.is_file():

        def pixels(table, _):
            return raw_pixels(table, options.eval_batch_size)

        gallery = gallery_arguments(pixels, data, "")
        found = recalls(pixels(data.test, ""), data.test.labels, ks, **gallery)
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


def evaluate(folder, options, model, preprocessing, data, ks):
    """Test embeddings, their recalls, and the gallery's embeddings (None where there is none).

    The embeddings are kept in `test_embeddings.npz`.
    """
    embed, test = Embedder(model, preprocessing, options.eval_batch_size), data.test
    embeddings = embed(test, "embedding the test images")
    gallery = gallery_arguments(embed, data, "embedding the test images")
    if not folder.writes:
        return None
    names = {} if test.paths is None else {"paths": test.paths}
    if gallery:
        names |= {"gallery_embeddings": gallery["gallery"]}
        names |= {"gallery_labels": data.gallery.labels}
        names |= {} if data.gallery.paths is None else {"gallery_paths": data.gallery.paths}
    with replacing(folder.file("test_embeddings.npz")) as path, open(path, "wb") as stream:
        np.savez(stream, embeddings=embeddings, labels=test.labels, **names)
    return embeddings, recalls(embeddings, test.labels, ks, **gallery), gallery.get("gallery")


def export(folder, model, preprocessing):
    """The SavedModel: encoded image bytes to embeddings, the evaluation's preprocessing inside."""
    export_saved_model(model, folder.file("saved_model"), preprocessing)


def report(folder, options, name, data, preprocessing, found, raw, seconds):
    """Write `report.html` and, last of all, `result.json`; returns the table of recalls."""
    embeddings, recall, gallery = found
    history = folder.read_history()
    best = max(history, key=score)
    rows = {f"embedding, {metric}": by_k for metric, by_k in recall.items()}
    rows |= {f"raw pixels, {metric}": by_k for metric, by_k in (raw or {}).items()}
    tested = "the same" if data.same_classes else f"{data.test.num_classes:,} other"
    trained, steps = history[-1]["train/seconds"], history[-1]["step"]
    summary = [
        ("Training", f"{len(data.train):,} images of {data.train.num_classes:,} classes"),
        ("Test", f"{len(data.test):,} images of {tested} classes"),
        *([("Gallery", f"{len(data.gallery):,} images of the same")] if data.gallery else []),
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
            retrieval=_retrieval(embeddings, gallery, data, preprocessing),
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


def _retrieval(embeddings, gallery, data, preprocessing, queries=10, neighbours=5):
    test, items = data.test, data.gallery or data.test
    chosen = choose_queries(test.labels, num=queries)
    neighbours = min(neighbours, len(items) - (gallery is None))
    found, similarities = nearest_neighbours(embeddings, neighbours, "cosine", gallery)
    images = _images(test.select(chosen), preprocessing)
    pictures = iter(_images(items.select(found[chosen].ravel()), preprocessing))
    return [
        RetrievalRow(
            image,
            _class_name(test, query),
            [
                Neighbour(
                    next(pictures),
                    _class_name(items, row),
                    float(similarity),
                    bool(items.labels[row] == test.labels[query]),
                )
                for row, similarity in zip(found[query], similarities[query])
            ],
        )
        for image, query in zip(images, chosen)
    ]


def _images(table, preprocessing):
    batches = evaluation_batches(table, preprocessing)
    return np.concatenate([batch.numpy() for batch in batches]).round().astype("uint8")


def _class_name(table, row):
    return table.class_names[table.labels[row]]
