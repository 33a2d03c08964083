"""What happens while `fit` runs: the bar, the NaN stop, evaluation, log and checkpoint."""

import math
import shutil
import time

import keras
import numpy as np
import tensorflow as tf

from experiments.embedding.embedder import Embedder, closed_set_accuracy, gallery_arguments, recalls
from experiments.options.progress import progress_bar
from experiments.training import objective
from experiments.training.run_folder import State
from keras_dml.atomic import replacing

BEST = "test/recall@1/cosine"
ACCURACY = "test/accuracy"


def score(row):
    """What the kept model is chosen by: accuracy where the test classes were trained on, or R@1.

    Args:
        row: an object of `metrics.jsonl`.
    """
    return row.get(ACCURACY, row[BEST])


class Progress(keras.callbacks.Callback):
    """A bar over all images of the training, with images per second and the loss."""

    def __init__(self, batch_size, total_steps, epochs, start_step):
        super().__init__()
        self.batch_size = batch_size
        self.epochs = epochs
        self.bar = progress_bar(
            "training", total_steps * batch_size, initial=start_step * batch_size, leave=True
        )

    def on_epoch_begin(self, epoch, logs=None):
        """Show the epoch."""
        self.bar.set_description(f"epoch {epoch + 1}/{self.epochs}", refresh=False)

    def on_train_batch_end(self, batch, logs=None):
        """Advance by a batch."""
        self.bar.set_postfix_str(f"loss {float(logs['loss']):.4f}", refresh=False)
        self.bar.update(self.batch_size)

    def on_train_end(self, logs=None):
        """Close the bar."""
        self.bar.close()


class StopAtNaN(keras.callbacks.Callback):
    """Ends the run at the first step whose loss, or epoch whose weights, are not finite."""

    def __init__(self, state, steps_per_epoch):
        super().__init__()
        # Counted here: the optimizer leaves out the steps that loss scaling has skipped.
        self.step = state.step
        self.steps_per_epoch = steps_per_epoch

    def on_train_batch_end(self, batch, logs=None):
        """Look at the loss: Keras' running mean stays NaN from the first NaN on."""
        self.step += 1
        if not math.isfinite(float(logs["loss"])):
            self._stop("the loss is no longer finite")

    def on_epoch_end(self, epoch, logs=None):
        """Look at the weights: the last step may have broken them after its loss was taken."""
        for variable in self.model.variables:
            array = variable.numpy()
            if array.dtype.kind == "f" and not np.isfinite(array).all():
                self._stop(f"{variable.path} is no longer finite")

    def _stop(self, what):
        epoch = (self.step - 1) // self.steps_per_epoch + 1
        raise FloatingPointError(f"{what} at step {self.step} (epoch {epoch})")


class EvaluateAndSave(keras.callbacks.Callback):
    """After an epoch: evaluate, log, keep the best embedding model, write the checkpoint.

    The checkpoint comes last, so a kill at any moment repeats at most the epoch, and the log is cut
    back to the checkpoint when the run is continued. Every worker embeds its share of the images;
    the first does the rest.

    Args:
        run: `RunPlan`.
        embedding: the embedding model, within the one that is fitted or that one itself.
        state: `State` where the training begins.
    """

    def __init__(self, run, embedding, state):
        super().__init__()
        self.run = run
        self.embedding = embedding
        self.embedder = Embedder(embedding, run.preprocessing, run.options.eval_batch_size)
        self.seconds = state.seconds
        self.history = run.folder.read_history()
        self._began = 0.0
        if run.folder.writes:
            # Written anew, so that no point is shown twice after a kill.
            shutil.rmtree(run.folder.file("tensorboard"), ignore_errors=True)
            self.writer = tf.summary.create_file_writer(str(run.folder.file("tensorboard")))
            for row in self.history:
                self._summarise(row)

    def on_epoch_begin(self, epoch, logs=None):
        """Start the clock of the training steps."""
        self._began = time.perf_counter()

    def on_epoch_end(self, epoch, logs=None):
        """Evaluate where it is due; save."""
        self.seconds += time.perf_counter() - self._began
        step = (epoch + 1) * self.run.steps_per_epoch
        self.model.average_statistics()
        options = self.run.options
        if (epoch + 1) % options.eval_every == 0 or epoch + 1 == options.epochs:
            self._evaluate(epoch + 1, step, logs or {})
        self.run.folder.save_checkpoint(self.model, State(epoch + 1, step, self.seconds))
        self.run.folder.settle_best(step)

    def _evaluate(self, epoch, step, logs):
        row = {"epoch": epoch, "step": step, "train/seconds": round(self.seconds, 3)}
        # Of the center loss beside a cross-entropy Keras logs each: they are the two parts.
        parts = {"embeddings_loss": "tightness", "logits_loss": "contrastive"}
        row |= {f"train/{parts.get(name, name)}": float(value) for name, value in logs.items()}
        # Of the last step; the optimizer's own would be that of the next one.
        row["train/learning_rate"] = objective.rate_after(self.run.options, self.run.rate, step)
        test, description = self.run.data.test, f"evaluating epoch {epoch}"
        embeddings = self.embedder(test, description)
        gallery = gallery_arguments(self.embedder, self.run.data, description)
        accuracy = {}
        if self.run.data.same_classes:
            accuracy[ACCURACY] = closed_set_accuracy(
                self.model, self.embedder, self.run.data, embeddings, description
            )
        if not self.run.folder.writes:
            return
        for metric, by_k in recalls(embeddings, test.labels, self.run.ks, **gallery).items():
            row |= {f"test/recall@{k}/{metric}": float(share) for k, share in by_k.items()}
        row |= accuracy
        if score(row) > max(map(score, self.history), default=-1.0):
            save_model(self.embedding, self.run.folder.best_of(step))
        self.history.append(row)
        self.run.folder.write_history(self.history)
        self._summarise(row)

    def _summarise(self, row):
        with self.writer.as_default(step=row["step"]):
            for name, value in row.items():
                if name not in ("epoch", "step"):
                    tf.summary.scalar(name, value)
            self.writer.flush()


def save_model(model, path):
    """Write a `.keras` file in one go."""
    with replacing(path) as temporary:
        model.save(temporary)
