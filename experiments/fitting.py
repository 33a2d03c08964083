"""The training's callbacks, and what a failure in the middle of it means to its user."""

import contextlib

import tensorflow as tf

from experiments.callbacks import EvaluateAndSave, Progress, StopAtNaN
from experiments.command_line import RunError, UsageError
from experiments.evaluation import Embedder
from pipelines import find_bad_images


def callbacks(options, folder, embedding, preprocessing, test, ks, rate, state, total_steps):
    """The callbacks of a run that stands at `state`."""
    embedder = Embedder(embedding, preprocessing, options.eval_batch_size)
    return [
        StopAtNaN(),
        Progress(options.batch_size, total_steps, options.epochs, state.step),
        EvaluateAndSave(
            folder, embedding, embedder, test, ks, options.epochs, options.eval_every, rate, state
        ),
    ]


@contextlib.contextmanager
def explained(folder, model, data, steps_per_epoch):
    """Turns numbers that broke and files that are no images into errors that say what to do."""
    try:
        yield
    except FloatingPointError as error:
        step = int(model.optimizer.iterations.numpy())
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
    except tf.errors.ResourceExhaustedError as error:
        raise RunError(
            "out of memory; the same command with a smaller --batch_size (or --eval_batch_size, or "
            "with --mixed_precision) in a new --output_dir needs less"
        ) from error
    except (tf.errors.InvalidArgumentError, tf.errors.NotFoundError) as error:
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
