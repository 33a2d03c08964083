"""Write the outputs of a finished run: embeddings, scores, SavedModel, report, and model card."""

import time
from collections.abc import Mapping
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
from experiments.options import RunOptions, command_line_only_words, resolved
from experiments.options import data as described
from experiments.report.made_by import made_by
from experiments.report.neighbors import EmbeddedTable, embedded_table, shown_of
from experiments.report.page import Recall, Report, recall_table, write_report
from experiments.report.projector import write_projector
from experiments.report.scores import paper_rows, recalls_alone
from experiments.training.callbacks import exported, save_model
from experiments.training.evaluators import Findings, Finished
from experiments.training.features import FeatureFeed, ImageFeed, remove_own_features
from experiments.training.kept import kept, kept_by, kept_in_words
from experiments.training.patience import stopped
from experiments.training.plan import RunPlan
from experiments.training.refit import Measured, measured
from experiments.training.run_files import BEST, FLAGS_FILE, REPORT, TENSORBOARD
from experiments.training.workers import Workers
from keras_dml._files.atomic import replacing
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
    run: RunPlan,
    model: keras.Model,
    embedding: keras.Model,
    workers: Workers,
    began: float,
    feed: ImageFeed | FeatureFeed | None,
) -> str | None:
    """Evaluate the kept model, export it, write the report.

    Args:
        run: what was trained.
        model: the fitted model.
        embedding: the embedding model within it.
        workers: all call this; those beside the first help to embed.
        began: `time.perf_counter()` when the run began.
        feed: what the training took in; closed here. None where this process has not trained.

    Returns:
        The table of scores; None on a worker beside the first.
    """
    model_kept = _kept_model(run, exported(embedding))
    known = {} if feed is None else feed.embeddings_by(model_kept)
    embedded = _embed(run, workers.share(model_kept), workers, known)
    if feed is None:
        remove_own_features(run)  # of a process that was stopped behind its last epoch
    else:
        feed.close()
    if embedded is None:
        workers.meet()
        return None
    history = run.folder.history
    end = Finished(
        model,
        embedded.of["test"],
        embedded.of.get("gallery"),
        history,
        kept(history, run.options),
        embedded.of.get("catalog"),
    )
    findings = Findings.together([each.finish(run, end) for each in run.evaluators])
    # Encoded image bytes to embeddings, the evaluation's preprocessing inside.
    export_saved_model(model_kept, run.folder.file("saved_model"), run.preprocessing)
    table = _report(run, end, findings, time.perf_counter() - began)
    for file in embedded.files:
        file.remove()
    # Till here, since all are needed again if the first worker fails before it has finished.
    workers.meet()
    return table


def _kept_model(run: RunPlan, embedding: keras.Model) -> keras.Model:
    """Return the kept embedding model in float32; save the last one as `last.keras`.

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


def _embed(
    run: RunPlan, model: keras.Model, workers: Workers, known: Mapping[str, np.ndarray]
) -> Embedded | None:
    """The embeddings, kept in `test_embeddings.npz`; None on a worker without the folder.

    Those of the sides that are `known` need not be computed.
    """
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
        if side not in known
    }
    written = {side: file for side, file in files.items() if file is not None}
    if not (written or known):
        return None
    embeddings = {**known, **{side: file.array() for side, file in written.items()}}
    arrays: dict[str, Any] = {}
    for side, table in tables.items():
        prefix = "" if side == "test" else f"{side}_"
        arrays |= {f"{prefix}embeddings": embeddings[side], f"{prefix}labels": table.labels}
        arrays |= {} if table.paths is None else {f"{prefix}paths": table.paths}
    with replacing(folder.file("test_embeddings.npz")) as path, open(path, "wb") as stream:
        np.savez(stream, **arrays)
    return Embedded(embeddings, list(written.values()))


class _Scored(NamedTuple):
    """What the pages say of a model's worth.

    Attributes:
        rows: of the table of scores.
        table: the same as text, and what else is printed of them.
        result: entries of `result.json`.
        whose: behind the headline, where the scores are not of unseen images by this model.
        note: the same, in sentences.
    """

    rows: Recall
    table: str
    result: Mapping[str, Any]
    whose: str = ""
    note: str = ""


def _scored(run: RunPlan, end: Finished, findings: Findings, before: Measured | None) -> _Scored:
    """Of the run itself; of the one before where there is one and nothing was kept back here."""
    if before is not None:
        result = {"measured": before.sentence, "scores": before.result.get("scores", {})}
        whose = "of the model before"
        return _Scored(before.rows, before.table, result, whose, before.sentence)
    table = "\n".join([recall_table(findings.rows), *findings.printed])
    found = dict(findings.result)
    if findings.baselines:
        found["baselines"] = findings.baselines
    if not run.options.keeps_nothing_back:
        why = kept_in_words(end.best, run.options)
        table += f"\nkept from epoch {end.best['epoch']:g}, {why}"
        return _Scored(findings.rows, table, found)
    whose = "of images that were trained on"
    note = f"Nothing was measured: every class trained, and these scores are {whose}."
    result = {"measured": note, **found}
    return _Scored(findings.rows, table, result, whose, note)


def _sides(run: RunPlan) -> tuple[str, str]:
    """What trained and what was tested, in words."""
    data = run.data
    tested = "the same" if data.same_classes else f"{data.test.num_classes:,} other"
    names = "" if data.same_classes else f": {described.classes_in_words(data.test)}"
    return (
        f"{len(data.train):,} images of {data.train.num_classes:,} classes: "
        f"{described.classes_in_words(data.train)}",
        f"{len(data.test):,} images of {tested} classes{names}",
    )


def _classes(options: RunOptions) -> list[tuple[str, str]]:
    lines = []
    if options.class_split not in ("first_classes", "every_class"):
        lines.append(("Classes", f"{options.class_split}, seed {options.split_seed}"))
    if options.fold is not None:
        text = f"{options.fold} of the training classes is measured; the test classes are not seen"
        lines.append(("Fold", text))
    return lines


def _report(run: RunPlan, end: Finished, findings: Findings, seconds: float) -> str:
    """Write `report.html` and, last of all, `result.json`; returns the table of scores."""
    folder, options, data = run.folder, run.options, run.data
    history, best = end.history, end.best
    before = measured(options)
    scored = _scored(run, end, findings, before)
    trained_on, tested_on = _sides(run)
    own = not scored.whose  # else what is found of the images says nothing of unseen ones
    pictured = "" if own else " The pictures show images that it trained on."
    trained, steps = history[-1]["train/seconds"], history[-1]["step"]
    why = stopped(history, options)
    kept_back = "Test" if options.fold is None else "Validation"
    test = EmbeddedTable(data.test, end.embeddings)
    gallery = embedded_table(data.gallery, end.gallery)
    catalog = embedded_table(data.catalog, end.catalog)
    summary = [
        *_classes(options),
        ("Training", trained_on),
        (kept_back, "none: every class trained" if options.keeps_nothing_back else tested_on),
        *([("Gallery", f"{len(data.gallery):,} images of the same")] if data.gallery else []),
        *([("Catalog", f"{len(data.catalog):,} pictures of the same")] if data.catalog else []),
        ("Backbone", f"{options.backbone}, weights: {_weights(options)}"),
        ("Embedding", f"{end.embeddings.shape[1]} dimensions"),
        *(findings.scores if own else ()),
        *([("NMI of the paper", f"{100 * run.paper['nmi']:.1f} %")] if "nmi" in run.paper else []),
        ("Loss", options.loss),
        ("Steps", f"{steps:,} of {options.batch_size} images"),
        *([("Stopped", why)] if why else []),
        ("Training time", f"{trained:.0f} s, {steps * options.batch_size / trained:,.0f} images/s"),
        ("Seed", str(options.seed)),
        ("Finished", time.strftime("%Y-%m-%d %H:%M")),
        *(findings.summary if own else ()),
    ]
    write_report(
        folder.file(REPORT),
        Report(
            title=f"{run.name} · {options.loss}",
            summary=summary,
            recall={**scored.rows, **paper_rows(run.paper)},
            history=history if own else [_of_training(row) for row in history],
            best=best if own else {},
            why_kept=kept_in_words(best, options),
            whose=scored.whose,
            note=scored.note + pictured,
            **shown_of(test, run.preprocessing, gallery, catalog)._asdict(),
            reproduce=made_by(folder.file(FLAGS_FILE), command_line_only_words(options)),
            flags=resolved(options),
            pictures=findings.pictures if own else {},
            measured=f"{kept_back.lower()} images",
        ),
        {} if before is None else {before.run / REPORT: "The run that measured"},
    )
    write_projector(folder.file(TENSORBOARD), test, run.preprocessing)
    _write_card(run, scored, end.embeddings.shape[1])
    printed = "\n".join(filter(None, [scored.table, scored.note]))
    folder.write_result(
        {
            "recall": recalls_alone(scored.rows),
            **scored.result,
            "best_epoch": best["epoch"],
            "keep": kept_by(options),
            **({"stopped": {"after_epoch": history[-1]["epoch"], "why": why}} if why else {}),
            "batch_size": options.batch_size,
            "trained_on": trained_on,
            "tested_on": tested_on,
            "train_seconds": trained,
            "seconds": round(seconds, 1),
            "table": printed,
        },
    )
    return printed


def _of_training(row: Mapping[str, float]) -> dict[str, float]:
    return {
        name: value for name, value in row.items() if not name.startswith(("test/", "catalog/"))
    }


def _write_card(run: RunPlan, scored: _Scored, dimensions: int) -> None:
    size = run.options.image_size
    use = {
        "File": "`saved_model`, for TensorFlow",
        "Takes": f"the bytes of image files (`serving_default`), or decoded images float32 [n, "
        f"{size}, {size}, 3] (`embed_images`)",
        "Gives": f"`embeddings`, float32 [n, {dimensions}]; compare by cosine similarity",
    }
    scores = f"{scored.note or 'Of the test images:'}\n\n```\n{scored.table}\n```"
    card = model_card(run.name, use, run.options, run.data, run.preprocessing, scores)
    with replacing(run.folder.file(MODEL_CARD)) as unfinished:
        unfinished.write_text(card, encoding="utf-8", errors="backslashreplace")
