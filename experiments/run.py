"""`python -m experiments.run --flagfile=RECIPE.flags`: train, evaluate, export, report."""

import sys
import time

from experiments import flags
from experiments.command_line import quiet_tensorflow, run_command, usage_errors


def main(argv):
    """Data, model, loss, optimizer, fit, evaluate, export, report."""
    if flags.wants_help(argv):
        print(flags.help_text())
        return
    with usage_errors():
        options, name = flags.parse(argv)
        folder = flags.run_folder(options, name)
    if folder.result is not None:
        print(f"{folder.path} is finished:\n\n{folder.result['table']}\n")
        return

    # TensorFlow takes seconds to import: not before a finished run or a mistyped flag is answered.
    quiet_tensorflow()
    from experiments import build, fitting, objective, outcome, rankmi_view
    from experiments.evaluation import Embedder
    from experiments.run_folder import BAD_IMAGES
    from pipelines import training_batches

    began = time.perf_counter()
    with usage_errors():
        strategy = build.devices(options)
        data, bad_images = build.data(options, folder)
        augmentation, preprocessing = build.transforms(options)
        sampler = build.sampler(options, data.train)
        ks = build.recall_at(options, len(data.test))
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
        state = folder.restore_checkpoint(model)

    print(f"{name}: {build.describe(data, model, steps_per_epoch, options, state)}")
    with fitting.explained(folder, data):
        raw = outcome.raw_pixel_recalls(folder, options, data.test, ks)
        if options.loss == "rankmi":
            embedder = Embedder(embedding, preprocessing, options.eval_batch_size)
            rankmi_view.record_start(folder, embedder, data.test)
        if state.epoch < options.epochs:
            batches = training_batches(
                data.train,
                sampler,
                augmentation,
                seed=options.seed,
                start_step=state.step,
                num_steps=total_steps - state.step,
            )
            model.fit(
                objective.targets(options, batches),
                epochs=options.epochs,
                initial_epoch=state.epoch,
                steps_per_epoch=steps_per_epoch,
                callbacks=fitting.callbacks(
                    options,
                    folder,
                    embedding,
                    preprocessing,
                    data,
                    ks,
                    rate,
                    state,
                    steps_per_epoch,
                ),
                shuffle=False,
                verbose=0,
            )
        best = outcome.best_model(folder, embedding)
        found = outcome.evaluate(folder, options, best, preprocessing, data.test, ks)
        if options.loss == "rankmi":
            rankmi_view.record_end(folder, model, found[0], data.test.labels)
        outcome.export(folder, best, preprocessing)
        table = outcome.report(
            folder, options, name, data, preprocessing, found, raw, time.perf_counter() - began
        )
    print(f"\n{table}\n\nreport: {folder.file('report.html')}")
    print(f"serving: {folder.file('saved_model')}")


if __name__ == "__main__":
    sys.exit(run_command(main))
