"""What a run leaves behind: the best model's embeddings and scores, its SavedModel, the report."""

import time
from typing import Any, NamedTuple

import keras
import numpy as np

from experiments.embedding.embedding_file import EmbeddingFile
from experiments.embedding.fingerprint import file_sha256
from experiments.embedding.model_card import MODEL_CARD, model_card
from experiments.embedding.table_embedder import (
    IdentifiedEmbedder,
    TableEmbedder,
    embeddings_on_disk,
)
from experiments.options import RunOptions, resolved
from experiments.report.made_by import made_by
from experiments.report.neighbors import EmbeddedTable, embedded_table, shown_of
from experiments.report.page import Report, recall_table, write_report
from experiments.report.projector import write_projector
from experiments.report.scores import recalls_alone
from experiments.training.callbacks import exported, save_model
from experiments.training.evaluators import Findings, Finished, score
from experiments.training.plan import RunPlan
from experiments.training.run_files import BEST, FLAGS_FILE, TENSORBOARD
from experiments.training.workers import Workers
from keras_dml.atomic import replacing
from keras_dml.export import export_saved_model, float32_copy
from keras_dml.models import load_keras_file
from keras_dml.models.backbones import brings_weights


class Embedded(NamedTuple):
    """The kept model's embeddings.

    Attributes:
        of: name of a table of `Split.tables`, "test" among them -> the embeddings, `[n, d]`.
        files: the `EmbeddingFile`s that they are in until the run is finished.
    """

    of: dict[str, np.ndarray]
    files: list[EmbeddingFile]


def leave(
    run: RunPlan, model: keras.Model, embedding: keras.Model, workers: Workers, began: float
) -> str | None:
    """Evaluate the kept model, export it, write the report.

    Args:
        run: what was trained.
        model: the fitted model.
        embedding: the embedding model within it.
        workers: all call this; those beside the first help to embed.
        began: `time.perf_counter()` when the run began.

    Returns:
        The table of scores; None on a worker beside the first.
    """
    best = _best_model(run, exported(embedding))
    embedded = _embed(run, workers.share(best), workers)
    if embedded is None:
        workers.meet()
        return None
    history = run.folder.history
    end = Finished(
        model,
        embedded.of["test"],
        embedded.of.get("gallery"),
        history,
        max(history, key=score),
        embedded.of.get("catalog"),
    )
    findings = Findings.together([each.finish(run, end) for each in run.evaluators])
    # Encoded image bytes to embeddings, the evaluation's preprocessing inside.
    export_saved_model(best, run.folder.file("saved_model"), run.preprocessing)
    table = _report(run, end, findings, time.perf_counter() - began)
    for file in embedded.files:
        file.remove()
    # Till here, since all are needed again if the first worker fails before it has finished.
    workers.meet()
    return table


def _best_model(run: RunPlan, embedding: keras.Model) -> keras.Model:
    """The embedding model that scored best, in float32; the last one is saved beside it.

    A worker that has no folder gets one of the same layers.
    """
    folder = run.folder
    if not folder.writes:
        return float32_copy(embedding)
    save_model(embedding, folder.file("last.keras"))
    folder.check_best()
    return float32_copy(load_keras_file(folder.file(BEST), run.options.trust_code))


def _weights(options: RunOptions) -> str:
    own = brings_weights(options.backbone) and options.weights == "imagenet"
    return "its own" if own else options.weights


def _embed(run: RunPlan, model: keras.Model, workers: Workers) -> Embedded | None:
    """The embeddings, kept in `test_embeddings.npz`; None on a worker without the folder."""
    folder = run.folder
    tables = {side: table for side, table in run.data.tables.items() if side != "training"}
    embedder = TableEmbedder(model, run.preprocessing, run.options.eval_batch_size)
    key = file_sha256(folder.file(BEST)) if folder.writes else ""
    identified = IdentifiedEmbedder(embedder, key)
    files = {
        side: embeddings_on_disk(
            identified,
            table,
            folder.file(f".{side}_embeddings.npy"),
            f"embedding, {side}",
            workers=workers,
        )
        for side, table in tables.items()
    }
    written = {side: file for side, file in files.items() if file is not None}
    if not written:
        return None
    embeddings = {side: file.array() for side, file in written.items()}
    arrays: dict[str, Any] = {}
    for side, table in tables.items():
        prefix = "" if side == "test" else f"{side}_"
        arrays |= {f"{prefix}embeddings": embeddings[side], f"{prefix}labels": table.labels}
        arrays |= {} if table.paths is None else {f"{prefix}paths": table.paths}
    with replacing(folder.file("test_embeddings.npz")) as path, open(path, "wb") as stream:
        np.savez(stream, **arrays)
    return Embedded(embeddings, list(written.values()))


def _classes(options: RunOptions) -> list[tuple[str, str]]:
    if options.class_split == "every_class":
        text = "every class trained: these scores are of images that were trained on"
        return [("Measured", f"nothing; {text}")]
    if options.class_split == "first_classes":
        return []
    return [("Classes", f"{options.class_split}, seed {options.split_seed}")]


def _report(run: RunPlan, end: Finished, findings: Findings, seconds: float) -> str:
    """Write `report.html` and, last of all, `result.json`; returns the table of scores."""
    folder, options, data = run.folder, run.options, run.data
    history, best = end.history, end.best
    tested = "the same" if data.same_classes else f"{data.test.num_classes:,} other"
    trained, steps = history[-1]["train/seconds"], history[-1]["step"]
    test = EmbeddedTable(data.test, end.embeddings)
    gallery = embedded_table(data.gallery, end.gallery)
    catalog = embedded_table(data.catalog, end.catalog)
    summary = [
        *_classes(options),
        ("Training", f"{len(data.train):,} images of {data.train.num_classes:,} classes"),
        ("Test", f"{len(data.test):,} images of {tested} classes"),
        *([("Gallery", f"{len(data.gallery):,} images of the same")] if data.gallery else []),
        *([("Catalog", f"{len(data.catalog):,} pictures of the same")] if data.catalog else []),
        ("Backbone", f"{options.backbone}, weights: {_weights(options)}"),
        ("Embedding", f"{end.embeddings.shape[1]} dimensions"),
        *findings.scores,
        ("Loss", options.loss),
        ("Steps", f"{steps:,} of {options.batch_size} images"),
        ("Training time", f"{trained:.0f} s, {steps * options.batch_size / trained:,.0f} images/s"),
        ("Seed", str(options.seed)),
        ("Finished", time.strftime("%Y-%m-%d %H:%M")),
        *findings.summary,
    ]
    write_report(
        folder.file("report.html"),
        Report(
            title=f"{run.name} · {options.loss}",
            summary=summary,
            recall=findings.rows,
            history=history,
            best=best,
            **shown_of(test, run.preprocessing, gallery, catalog)._asdict(),
            reproduce=made_by(folder.file(FLAGS_FILE)),
            flags=resolved(options),
            pictures=findings.pictures,
        ),
    )
    write_projector(folder.file(TENSORBOARD), test, run.preprocessing)
    table = "\n".join([recall_table(findings.rows), *findings.printed])
    _write_card(run, table, end.embeddings.shape[1])
    folder.write_result(
        {
            "recall": recalls_alone(findings.rows),
            **findings.result,
            "best_epoch": best["epoch"],
            "train_seconds": trained,
            "seconds": round(seconds, 1),
            "table": table,
        },
    )
    return table


def _write_card(run: RunPlan, table: str, dimensions: int) -> None:
    size = run.options.image_size
    use = {
        "File": "`saved_model`, for TensorFlow",
        "Takes": f"the bytes of image files (`serving_default`), or decoded images float32 [n, "
        f"{size}, {size}, 3] (`embed_images`)",
        "Gives": f"`embeddings`, float32 [n, {dimensions}]; compare by cosine similarity",
    }
    scores = f"Of the test images:\n\n```\n{table}\n```"
    card = model_card(run.name, use, run.options, run.data, run.preprocessing, scores)
    with replacing(run.folder.file(MODEL_CARD)) as unfinished:
        unfinished.write_text(card, encoding="utf-8", errors="backslashreplace")
