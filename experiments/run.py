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


def main(argv):
    """Data, model, loss, optimizer, fit, evaluate, export, report."""
    options = parse(RunOptions, argv)
    loss_arguments = options.loss_arguments
    cluster = read_cluster(options.strategy)
    # What follows takes seconds to import: not before a mistyped flag is answered.
    quiet_tensorflow()
    from experiments.training.run_folder import BAD_IMAGES, RunFolder

    folder = RunFolder(options.folder, resolved(options), writes=cluster.first)
    if not cluster.first:
        mute()
    if folder.result is not None:
        print(f"{folder.path} is finished:\n\n{folder.result['table']}\n")
        return

    from experiments.embedding.embedder import Embedder
    from experiments.options import data as described
    from experiments.training import fitting, objective, outcome, rankmi_view
    from experiments.training.devices import devices
    from experiments.training.plan import RunPlan, describe
    from experiments.training.workers import Workers
    from pipelines import training_batches

    began = time.perf_counter()
    if cluster.size > 1:
        print(f"worker {cluster.index} of {cluster.size}, waiting for the others", flush=True)
    if loss_arguments:
        given = ", ".join(f"{name}={value}" for name, value in loss_arguments.items())
        print(f"to loss {options.loss}: {given}", flush=True)
    strategy = devices(options)
    workers = Workers(strategy, cluster)
    workers.check_same("flags", folder.flags.encode())
    data, bad_images = described.data(options, folder.left_out)
    labels = data.train.labels.tobytes() + data.test.labels.tobytes()
    workers.check_same("images of data_dir", labels)
    augmentation = described.training_transform(options)
    preprocessing = described.evaluation_transform(options)
    sampler = described.sampler(options, data.train, options.seed)
    gallery = None if data.gallery is None else len(data.gallery)
    ks = described.recall_at(options, len(data.test), gallery)
    steps_per_epoch = options.steps_per_epoch or sampler.steps_per_epoch
    total_steps = options.epochs * steps_per_epoch
    rate = objective.learning_rate(options, total_steps)
    with strategy.scope():
        backbone, embedding = objective.embedding_model(options)
        model = objective.training_model(options, embedding, data.train.num_classes)
        model.compile(
            objective.optimizer(options, backbone, rate),
            **objective.compiled(options, total_steps),
            jit_compile=options.jit_compile,
        )
    folder.open()
    if options.skip_bad_images:
        folder.write_text(BAD_IMAGES, "".join(f"{line}\n" for line in bad_images))
    state = folder.restore_checkpoint(model, workers)
    run = RunPlan(options.name, options, folder, data, preprocessing, ks, steps_per_epoch, rate)

    print(f"{options.name}: {describe(data, model, steps_per_epoch, options, state)}")
    with fitting.explained(folder, data):
        raw = outcome.raw_pixel_recalls(run)
        if options.loss == "rankmi" and not state.step:
            embedder = Embedder(embedding, preprocessing, options.eval_batch_size)
            rankmi_view.record_start(folder, embedder, data.test)
        if state.epoch < options.epochs:

            def batches(context):
                own = training_batches(
                    data.train,
                    sampler,
                    augmentation,
                    seed=options.seed,
                    start_step=state.step,
                    input_context=context,
                )
                return objective.targets(options, own)

            model.fit(
                strategy.distribute_datasets_from_function(batches),
                epochs=options.epochs,
                initial_epoch=state.epoch,
                steps_per_epoch=steps_per_epoch,
                callbacks=fitting.callbacks(run, embedding, state),
                shuffle=False,
                verbose=0,
            )
        best = outcome.best_model(folder, embedding)
        shared = workers.share(best)
        found = outcome.evaluate(run, shared, workers)
        if not cluster.first:
            workers.meet()
            return
        if options.loss == "rankmi":
            rankmi_view.record_end(folder, model, found.embeddings, data.test.labels)
        outcome.export(folder, best, preprocessing)
        table = outcome.report(run, found, raw, time.perf_counter() - began)
        # Till here, since all are needed again if the first worker fails before it has finished.
        workers.meet()
    print(f"\n{table}\n\nreport: {folder.file('report.html')}")
    print(f"serving: {folder.file('saved_model')}")


if __name__ == "__main__":
    sys.exit(run_command(main))
