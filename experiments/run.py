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
    """Plan, train, evaluate, and report a run. With `--refit`, retrain on every class."""
    options = parse(RunOptions, argv)
    # These import NumPy, which --help does not need.
    from experiments.training.kept import check_keep
    from experiments.training.patience import check_patience
    from experiments.training.refit import check_refit, refit
    from experiments.training.run_files import RESULT

    check_refit(options)
    check_patience(options)
    check_keep(options)
    cluster = read_cluster(options.strategy)
    if (pathlib.Path(options.folder) / RESULT).is_file():
        _run(options, cluster)  # prints that the run is finished, without waiting for other workers
    else:
        with Meeting(cluster):
            _run(options, cluster)
    if options.refit:
        final = refit(options)
        from experiments.pages.run_pages import link_final_model

        link_final_model(options, final)
        print(f"\nfinal model, of every class: {final / 'saved_model'}")


def _run(options: RunOptions, cluster: Cluster) -> None:
    for_loss = options.loss_arguments
    # These imports take seconds. A mistyped flag is reported before them.
    from experiments.evaluation.result import REPORT
    from experiments.training.run_folder import RunFolder

    folder = RunFolder(options.folder, resolved(options), writes=cluster.first)
    if not cluster.first:
        mute()
    if folder.result is not None:
        print(folder.finished_text)
        return

    from experiments.evaluation.table_embedder import TableEmbedder
    from experiments.pages.run_pages import write_run_pages
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
    # Fail before hours of training.
    check_export(embedding, run.preprocessing)
    folder.open()
    # Check again, because another process with the same flags may have finished the run.
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
        table = outcome.leave(run, model, embedding, workers, began, feed, write_run_pages)
    if table is not None:
        print(f"\n{table}\n\nreport: {folder.file(REPORT)}")
        print(f"serving: {folder.file('saved_model')}")


if __name__ == "__main__":
    sys.exit(run_command(main))
