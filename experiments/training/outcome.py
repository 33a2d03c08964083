"""Evaluate and export the model of a finished run, and collect its result."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import keras
import numpy as np

from experiments.evaluation.conclusions import below_raw_pixels, training_gain
from experiments.evaluation.embedded_sets import EmbeddedSet, EmbeddedSets
from experiments.evaluation.evaluators import Finished
from experiments.evaluation.measurement import PAPER
from experiments.evaluation.result import (
    Findings,
    Result,
    baselines_json,
    is_of_images,
    keyed,
    measurements_of,
    scores_json,
)
from experiments.evaluation.score_table import score_text
from experiments.evaluation.scores import percent
from experiments.options import RunOptions, resolved
from experiments.options import data as described
from experiments.options.texts import text_picture
from experiments.training.encoders import candidate_weights, exported
from experiments.training.features import remove_own_features
from experiments.training.fit import Training
from experiments.training.plan import RunPlan
from experiments.training.refit import lines_of_measured, measured, origin_of
from experiments.training.run_files import EMBEDDINGS, LAST, RESULT, SERVED
from experiments.training.selection import kept, kept_by, kept_in_words, stopped
from keras_dml._common.collapse import NEARLY_EQUAL, mean_unit_distance, nearly_equal_sentence
from keras_dml.export import export_saved_model, float32_copy
from keras_dml.models import load_keras_file
from keras_dml.models.backbones import brings_weights

#: Writes the pages of a run.
WritePages: TypeAlias = Callable[[RunPlan, Result], None]


def finish_run(training: Training, began: float, write_pages: WritePages) -> str | None:
    """Evaluate the kept models, export them, write the pages, and write `result.json` last.

    Args:
        training: The finished training. Each worker calls this function and helps to embed.
        began: `time.perf_counter()` at the start of the run.
        write_pages: Writes the pages.

    Returns:
        The table of scores; None on every worker but the first.
    """
    run, workers = training.run, training.workers
    models_kept = {
        name: _kept_model(run, name, exported(encoder))
        for name, encoder in training.encoders.items()
    }
    embeddings = training.embed(models_kept, "embedding")
    remove_own_features(run)
    if not run.folder.writes:
        workers.meet()
        return None
    _write_embeddings(run, embeddings)
    history = run.folder.history
    end = Finished(training.model, embeddings, history, kept(history, run.options))
    findings = Findings.together([each.finish(run, end) for each in run.evaluators])
    if run.objective.old_model is not None:
        run.objective.old_model.remove()
    # A SavedModel maps the bytes of image files to embeddings.
    for name, each in models_kept.items():
        export_saved_model(each, run.folder.file(f"{name}{SERVED}"), run.transform_of(name))
    result = _result(run, end, findings)
    write_pages(run, result)
    seconds = round(time.perf_counter() - began, 1)
    run.folder.write_json(RESULT, result.as_json() | {"seconds": seconds})
    # The other workers wait: if the first one fails before this line, all have to start again.
    workers.meet()
    return result.table


def _kept_model(run: RunPlan, name: str, encoder: keras.Model) -> keras.Model:
    """Return the kept model of an encoder in float32, and save the last one as `last.keras`.

    A worker without the folder gets a model of the same layers.
    """
    folder = run.folder
    if not folder.writes:
        return float32_copy(encoder)
    with folder.replacing(f"{name}{LAST}") as temporary:
        encoder.save(temporary)
    return float32_copy(load_keras_file(folder.best_model(name), run.options.trust_code))


def _write_embeddings(run: RunPlan, embeddings: Mapping[str, np.ndarray]) -> None:
    """Write `test_embeddings.npz`."""
    arrays: dict[str, Any] = {}
    for side, found in embeddings.items():
        prefix, table = "" if side == "test" else f"{side}_", run.data.tables[side]
        arrays |= {f"{prefix}embeddings": found, f"{prefix}labels": table.labels}
        arrays |= {} if table.paths is None else {f"{prefix}paths": table.paths}
    with run.folder.replacing(EMBEDDINGS) as path, open(path, "wb") as stream:
        np.savez(stream, **arrays)


def _result(run: RunPlan, end: Finished, findings: Findings) -> Result:
    """Return the result: of this run, or of the run before if this run held out no images."""
    options, data, history, best = run.options, run.data, end.history, end.best
    before = measured(options)
    # Otherwise all images of this run are training images.
    own = before is None and not options.keeps_nothing_back
    scores, whose, note = findings.measurements, "", ""
    conclusions: list[str] = []
    printed = [*findings.lines, *(findings.information if options.information else ())]
    lines = [*(f"{name}: {text}" for name, text in printed), *findings.printed]
    details = {"scores": scores_json(scores), **findings.result}
    if found := baselines_json(scores):
        details["baselines"] = found
    if before is not None:
        whose, note = "of the previous model", origin_of(before)
        scores, lines = measurements_of(before), lines_of_measured(options, before)
        details = {"measured": note, "scores": before.get("scores", {})}
    elif own:
        lines.append(f"kept from epoch {best['epoch']:g}, {kept_in_words(best, options)}")
        distance = mean_unit_distance(end.embeddings["test"])
        sentences = [
            training_gain(findings.classes),
            below_raw_pixels(scores),
            nearly_equal_sentence(distance) if distance < NEARLY_EQUAL else "",
        ]
        conclusions = [sentence for sentence in sentences if sentence]
        lines += conclusions
        details["conclusions"] = conclusions
    else:
        whose = "of training images"
        note = (
            f"Nothing was measured: the model trained on every class, and its scores are {whose}."
        )
        details = {"measured": note, **details}
    trained_on, tested_on = _sides(run)
    why = stopped(history, options)
    kept_back = "Test" if options.fold is None else "Validation"
    steps, seconds = history[-1]["step"], history[-1].get("train/seconds", math.nan)
    items = "pictures" if options.texts is None else "texts"
    facts = {
        **_classes(options),
        "Training": trained_on,
        kept_back: "none: every class trained" if options.keeps_nothing_back else tested_on,
        "Gallery": f"{len(data.gallery):,} images of the same classes" if data.gallery else "",
        "Catalog": f"{len(data.catalog):,} {items} of the same classes" if data.catalog else "",
        "Backbone": _backbone(options.backbone, options.weights),
        "Candidate backbone": ""
        if options.candidate_backbone is None
        else _backbone(options.candidate_backbone, candidate_weights(options)),
        "Embedding": f"{end.embeddings['test'].shape[1]} dimensions",
        **dict(findings.lines if own else ()),
        "NMI of the paper": f"{percent(run.paper['nmi'])} %" if "nmi" in run.paper else "",
        "Loss": options.loss,
        "Steps": f"{steps:,} of {options.batch_size} images",
        "Stopped": why,
        "Training time": f"{seconds:.0f} s, {steps * options.batch_size / seconds:,.0f} images/s",
        "Seed": str(options.seed),
        "Finished": time.strftime("%Y-%m-%d %H:%M"),
        **dict(findings.summary if own else ()),
    }
    return Result(
        title=f"{options.name} · {options.loss}",
        measurements=[*scores, *keyed(run.paper, PAPER)],
        table="\n".join(filter(None, [score_text(scores), *lines, note])),
        details={
            **details,
            "best_epoch": best["epoch"],
            "keep": kept_by(options),
            **({"stopped": {"after_epoch": history[-1]["epoch"], "why": why}} if why else {}),
            "batch_size": options.batch_size,
            "trained_on": trained_on,
            "tested_on": tested_on,
            "train_seconds": seconds,
        },
        whose=whose,
        note=note if own else f"{note} The pictures show training images.",
        conclusions=conclusions,
        summary=[(name, text) for name, text in facts.items() if text],
        information=findings.information if own else (),
        history=history if own else [_of_training(row) for row in history],
        best=best if own else {},
        why_kept=kept_in_words(best, options),
        images=_images(run, end),
        figures=findings.figures if own else {},
        flags=resolved(options),
        measured=f"{kept_back.lower()} images",
    )


def _images(run: RunPlan, end: Finished) -> EmbeddedSets:
    sets = {
        side: EmbeddedSet(end.embeddings[side], table.labels, table)
        for side, table in run.data.tables.items()
        if side in end.embeddings
    }
    test = sets.pop("test")
    return EmbeddedSets(
        test,
        sets.get("gallery"),
        sets.get("catalog"),
        transform=run.preprocessing,
        catalog_transform=None if run.options.texts is None else text_picture,
    )


def _sides(run: RunPlan) -> tuple[str, str]:
    """Return the training and the test images in words."""
    data = run.data
    tested = "the same" if data.same_classes else f"{data.test.num_classes:,} other"
    names = "" if data.same_classes else f": {described.classes_in_words(data.test)}"
    return (
        f"{len(data.train):,} images of {data.train.num_classes:,} classes: "
        f"{described.classes_in_words(data.train)}",
        f"{len(data.test):,} images of {tested} classes{names}",
    )


def _classes(options: RunOptions) -> dict[str, str]:
    lines = {}
    if options.class_split not in ("first_classes", "every_class"):
        lines["Classes"] = f"{options.class_split}, seed {options.split_seed}"
    if options.fold is not None:
        lines["Fold"] = f"{options.fold} of the training classes is measured, no test class is seen"
    return lines


def _backbone(name: str, weights: str) -> str:
    own = brings_weights(name) and weights == "imagenet"
    return f"{name}, weights: {'its own' if own else weights}"


def _of_training(row: Mapping[str, float]) -> dict[str, float]:
    return {key: value for key, value in row.items() if not is_of_images(key)}
