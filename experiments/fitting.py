"""The training's callbacks, and what a failure in the middle of it means to its user."""

import contextlib

import tensorflow as tf

from experiments.callbacks import EvaluateAndSave, Progress, StopAtNaN
from experiments.command_line import RunError, UsageError
from experiments.evaluation import Embedder
from pipelines import find_bad_images


def callbacks(options, folder, embedding, preprocessing, test, ks, steps_per_epoch, state):
    """The callbacks of a run that stands at `state`."""
    return [
        StopAtNaN(),
        Progress(options.batch_size, steps_per_epoch, options.epochs, state.step),
        EvaluateAndSave(
            folder,
            embedding,
            Embedder(embedding, preprocessing, options.eval_batch_size),
            test,
            ks,
            options.epochs,
            options.eval_every,
            state.seconds,
        ),
    ]


@contextlib.contextmanager
def explained(folder, model, data, steps_per_epoch):
    """Turns numbers that broke and files that are no images into errors that say what to do."""
    try:
        yield
    except FloatingPointError as error:
        step = int(model.optimizer.iterations)
        checkpoint = folder.file("checkpoint.npz")
        kept = (
            f"the last good checkpoint is kept in {checkpoint}"
            if checkpoint.is_file()
            else "there is no checkpoint yet"
        )
        raise RunError(
            f"{error} at step {step} (epoch {(step - 1) // steps_per_epoch + 1}); {kept}. "
            "Try a lower --learning_rate in a new --output_dir"
        ) from error
    except tf.errors.OpError as error:
        for table in (data.train, data.test):
            bad = find_bad_images(table) if table.paths is not None else []
            if bad:
                _, path, reason = bad[0]
                more = f" ({len(bad) - 1} more like it)" if len(bad) > 1 else ""
                raise UsageError(
                    f"not an image that can be read: {path} ({reason}){more}. "
                    "--skip_bad_images leaves such files out"
                ) from error
        raise
