"""`python -m experiments.run --flagfile=RECIPE.flags`: train, evaluate, export, report."""

import sys
import time

from experiments.options import flags
from experiments.options.command_line import mute, quiet_tensorflow, run_command, usage_errors
from experiments.training.cluster import read_cluster
from experiments.training.run_folder import RunFolder


def main(argv: list[str]) -> None:
    """Plan, model, fit, outcome."""
    if flags.wants_help(argv):
        print(flags.help_text())
        return
    with usage_errors():
        options, name = flags.parse(argv)
        cluster = read_cluster(options.strategy)
        folder = flags.run_folder(options, name, writes=cluster.first)
    if not cluster.first:
        mute()
    if folder.result is not None:
        _print_finished(folder)
        return

    # TensorFlow takes seconds to import: not before a finished run or a mistyped flag is answered.
    quiet_tensorflow()
    import numpy as np

    from experiments.embedding.embedder import Embedder
    from experiments.training import build, fit, outcome
    from experiments.training.failures import explained
    from experiments.training.plan import plan_run
    from experiments.training.workers import Workers
    from keras_dml.export import check_export

    began = time.perf_counter()
    if cluster.size > 1:
        print(f"worker {cluster.index} of {cluster.size}, waiting for the others", flush=True)
    with usage_errors():
        strategy = build.devices(options)
        workers = Workers(strategy, cluster)
        run = plan_run(name, options, folder, workers)
        embedding, model = fit.compiled_model(run, strategy)
        # Now rather than after hours of training.
        check_export(embedding, run.preprocessing)
        folder.open()
        # Looked for again: another process with the same flags may have held the folder till now.
        if workers.from_first(np.array(float(folder.result is not None))):
            if cluster.first:
                _print_finished(folder)
            return
        run.list_bad_images()
        state = folder.restore_checkpoint(model, workers)

    print(f"{name}: {build.describe(run.data, model, run.steps_per_epoch, options, state)}")
    with explained(folder, run.data):
        embedder = Embedder(embedding, run.preprocessing, options.eval_batch_size)
        for evaluator in run.evaluators:
            evaluator.before(run, state, embedder)
        fit.fit(run, model, embedding, strategy, state)
        table = outcome.leave(run, model, embedding, workers, began)
    if table is not None:
        print(f"\n{table}\n\nreport: {folder.file('report.html')}")
        print(f"serving: {folder.file('saved_model')}")


def _print_finished(folder: RunFolder) -> None:
    print(f"{folder.path} is finished:\n\n{folder.result['table']}\n")


if __name__ == "__main__":
    sys.exit(run_command(main))
