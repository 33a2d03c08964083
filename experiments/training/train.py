"""A whole run: plan, model, training, evaluation, and outputs."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from experiments.evaluation.result import REPORT
from experiments.options import RunOptions, mute, resolved
from experiments.training.cluster import Cluster, naming_missing_workers
from experiments.training.run_folder import RunFolder

if TYPE_CHECKING:
    from experiments.training.outcome import WritePages


def train(options: RunOptions, cluster: Cluster, write_pages: WritePages) -> str:
    """Train, evaluate, and write the run's folder, or continue where an earlier process stopped.

    Args:
        options: the run's options.
        cluster: the workers that train together. Every worker calls this function.
        write_pages: writes the pages of the run.

    Returns:
        The text to print at the end: the scores and the names of the report and the model. Empty on
        all workers but the first.

    Raises:
        UsageError: if the options do not fit each other, the data, or the folder.
        RunError: if the run has to stop.
    """
    for_loss = options.loss_arguments
    folder = RunFolder(options.folder, resolved(options), writes=cluster.first)
    if not cluster.first:
        mute()
    if folder.result is not None:
        return folder.finished_text

    # These modules import TensorFlow, which takes seconds. A finished run does not need it.
    from experiments.evaluation.embed import TableEmbedder
    from experiments.evaluation.evaluators import Start
    from experiments.training.devices import devices
    from experiments.training.failures import explained
    from experiments.training.fit import Training
    from experiments.training.outcome import finish_run
    from experiments.training.plan import describe, plan_run
    from experiments.training.run_files import QUERY
    from experiments.training.run_images import settle_images
    from experiments.training.trackers import sending_scores
    from experiments.training.workers import Workers
    from keras_dml.export import check_export

    began = time.perf_counter()
    with naming_missing_workers(cluster):
        workers = Workers(devices(options), cluster)
    run = plan_run(options, folder, workers)
    training = Training(run, workers)
    for name, encoder in training.encoders.items():
        # Find out now, not after hours of training.
        check_export(encoder, run.transform_of(name))
    folder.open()
    # Another process with the same flags may have finished the run before this one locked it.
    if workers.first_says(folder.result is not None):
        return folder.finished_text if cluster.first else ""
    settle_images(folder, run.image_record)
    run.list_bad_images()
    if for_loss:
        given = ", ".join(f"{name}={value}" for name, value in for_loss.items())
        print(f"loss: {options.loss} with {given}", flush=True)
    training.restore()

    print(f"{run.options.name}: {describe(run, training.model, training.state)}", flush=True)
    sending = sending_scores(options.log_to, folder)
    with sending, explained(folder, run.data, options.max_pixels):
        training.open_feed()
        embedder = TableEmbedder(
            training.encoders[QUERY], run.preprocessing, options.eval_batch_size
        )
        start = Start(training.state.step, embedder, training.untrained_embeddings)
        for evaluator in run.evaluators:
            evaluator.before(run, start)
        training.fit()
        table = finish_run(training, began, write_pages)
    if table is None:
        return ""
    return f"\n{table}\n\nreport: {folder.file(REPORT)}\nserving: {folder.file('saved_model')}"
