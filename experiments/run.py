"""`python -m experiments.run --flagfile=RECIPE.flags`: train, evaluate, export, report."""

import functools
import pathlib
import sys
import time

from experiments.options import (
    RunOptions,
    mute,
    parse,
    resolved,
    run_command,
)
from experiments.training.cluster import Cluster, read_cluster
from experiments.training.meeting import Meeting


def main(argv: list[str]) -> None:
    """Plan, build, train, and evaluate a run, and retrain on all classes with --refit."""
    options = parse(RunOptions, argv)
    from experiments.training.kept import check_keep
    from experiments.training.patience import check_patience
    from experiments.training.refit import check_refit, refit
    from experiments.training.run_files import RESULT

    check_refit(options)
    check_patience(options)
    check_keep(options)
    cluster = read_cluster(options.strategy)
    if (pathlib.Path(options.folder) / RESULT).is_file():
        _run(options, cluster)  # prints the result without waiting for other workers
    else:
        with Meeting(cluster):
            _run(options, cluster)
    if options.refit:
        refit(options)


def _run(options: RunOptions, cluster: Cluster) -> None:
    for_loss = options.loss_arguments
    # These imports take seconds, and follow the check of the flags.
    from experiments.training.run_files import REPORT
    from experiments.training.run_folder import RunFolder

    folder = RunFolder(options.folder, resolved(options), writes=cluster.first)
    if not cluster.first:
        mute()
    if folder.result is not None:
        print(folder.finished_text)
        return

    from experiments.embedding.table_embedder import TableEmbedder
    from experiments.training import fit, outcome
    from experiments.training.devices import devices
    from experiments.training.failures import explained
    from experiments.training.made_of import settle_images
    from experiments.training.plan import describe, plan_run
    from experiments.training.workers import Workers
    from keras_dml.export import check_export

    began = time.perf_counter()
    if for_loss:
        given = ", ".join(f"{name}={value}" for name, value in for_loss.items())
        print(f"to loss {options.loss}: {given}", flush=True)
    strategy = devices(options)
    workers = Workers(strategy, cluster)
    run = plan_run(options, folder, workers)
    learner = fit.Learner(run, strategy)
    embedding, model = learner.embedding, learner.model
    # Check the export before the training.
    check_export(embedding, run.preprocessing)
    folder.open()
    # Another process with the same flags can have finished the run.
    if workers.first_says(folder.result is not None):
        if cluster.first:
            print(folder.finished_text)
        return
    settle_images(folder, run.made_of)
    run.list_bad_images()
    state = fit.restored(run, learner, workers)

    print(f"{run.name}: {describe(run, model, state)}")
    with explained(folder, run.data, options.max_pixels):
        feed = fit.feed_of(run, learner, workers, state)
        embedder = TableEmbedder(embedding, run.preprocessing, options.eval_batch_size)
        untrained = functools.partial(fit.untrained_embeddings, run, learner, workers, feed)
        for evaluator in run.evaluators:
            evaluator.before(run, state, embedder, untrained)
        fit.fit(run, learner, workers, state, feed)
        table = outcome.leave(run, model, embedding, workers, began, feed)
    if table is not None:
        print(f"\n{table}\n\nreport: {folder.file(REPORT)}")
        print(f"serving: {folder.file('saved_model')}")


if __name__ == "__main__":
    sys.exit(run_command(main))
