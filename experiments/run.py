"""`python -m experiments.run --flagfile=RECIPE.flags`: train, evaluate, export, report."""

import sys
import time

from experiments.options import (
    RunOptions,
    mute,
    parse,
    quiet_tensorflow,
    resolved,
    run_command,
)
from experiments.training.cluster import read_cluster


def main(argv: list[str]) -> None:
    """Plan, model, fit, outcome."""
    options = parse(RunOptions, argv)
    for_loss = options.loss_arguments
    cluster = read_cluster(options.strategy)
    # What follows takes seconds to import: not before a mistyped flag is answered.
    quiet_tensorflow()
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
    from experiments.training.plan import describe, plan_run
    from experiments.training.workers import Workers
    from keras_dml.export import check_export

    began = time.perf_counter()
    if cluster.size > 1:
        print(f"worker {cluster.index} of {cluster.size}, waiting for the others", flush=True)
    if for_loss:
        given = ", ".join(f"{name}={value}" for name, value in for_loss.items())
        print(f"to loss {options.loss}: {given}", flush=True)
    strategy = devices(options)
    workers = Workers(strategy, cluster)
    run = plan_run(options, folder, workers)
    learner = fit.Learner(run, strategy)
    embedding, model = learner.embedding, learner.model
    # Now rather than after hours of training.
    check_export(embedding, run.preprocessing)
    folder.open()
    # Looked for again: another process with the same flags may have held the folder till now.
    if workers.first_says(folder.result is not None):
        if cluster.first:
            print(folder.finished_text)
        return
    run.list_bad_images()
    state = fit.restored(run, learner, workers)

    print(f"{run.name}: {describe(run, model, state)}")
    with explained(folder, run.data, options.max_pixels):
        embedder = TableEmbedder(embedding, run.preprocessing, options.eval_batch_size)
        for evaluator in run.evaluators:
            evaluator.before(run, state, embedder)
        fit.fit(run, learner, strategy, state)
        table = outcome.leave(run, model, embedding, workers, began)
    if table is not None:
        print(f"\n{table}\n\nreport: {folder.file('report.html')}")
        print(f"serving: {folder.file('saved_model')}")


if __name__ == "__main__":
    sys.exit(run_command(main))
