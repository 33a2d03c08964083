"""What happens while `fit` runs: the bar, the NaN stop, evaluation, log and checkpoint."""

import math
import time

import keras
import numpy as np
import tensorflow as tf

from experiments.evaluation import recalls
from experiments.progress import progress_bar
from experiments.run_folder import State, replacing

BEST = "test/recall@1/cosine"


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

    def on_train_batch_end(self, batch, logs=None):
        """Look at the loss: Keras' running mean stays NaN from the first NaN on."""
        if not math.isfinite(float(logs["loss"])):
            raise FloatingPointError("the loss is no longer finite")

    def on_epoch_end(self, epoch, logs=None):
        """Look at the weights: the last step may have broken them after its loss was taken."""
        for variable in self.model.variables:
            array = variable.numpy()
            if array.dtype.kind == "f" and not np.isfinite(array).all():
                raise FloatingPointError(f"{variable.path} is no longer finite")


class EvaluateAndSave(keras.callbacks.Callback):
    """After an epoch: evaluate, log, keep the best embedding model, write the checkpoint.

    The checkpoint comes last, so a kill at any moment repeats at most the epoch, and the log is cut
    back to the checkpoint when the run is continued.
    """

    def __init__(self, folder, embedding, embedder, test, ks, epochs, eval_every, rate, state):
        super().__init__()
        self.folder = folder
        self.embedding = embedding
        self.embedder = embedder
        self.test = test
        self.ks = ks
        self.epochs = epochs
        self.eval_every = eval_every
        self.rate = rate
        self.seconds = state.seconds
        self.history = folder.read_history()
        self.writer = tf.summary.create_file_writer(str(folder.file("tensorboard")))
        self._began = 0.0

    def on_epoch_begin(self, epoch, logs=None):
        """Start the clock of the training steps."""
        self._began = time.perf_counter()

    def on_epoch_end(self, epoch, logs=None):
        """Evaluate where it is due; save."""
        self.seconds += time.perf_counter() - self._began
        step = int(self.model.optimizer.iterations.numpy())
        if (epoch + 1) % self.eval_every == 0 or epoch + 1 == self.epochs:
            self._evaluate(epoch + 1, step, logs or {})
        self.folder.save_checkpoint(self.model, State(epoch + 1, step, self.seconds))

    def _evaluate(self, epoch, step, logs):
        row = {"epoch": epoch, "step": step, "train/seconds": round(self.seconds, 3)}
        row |= {f"train/{name}": float(value) for name, value in logs.items()}
        # Of the last step; the optimizer's own would be that of the next one.
        row["train/learning_rate"] = float(
            self.rate(step - 1) if callable(self.rate) else self.rate
        )
        embeddings = self.embedder(self.test, f"evaluating epoch {epoch}")
        for metric, by_k in recalls(embeddings, self.test.labels, self.ks).items():
            row |= {f"test/recall@{k}/{metric}": float(share) for k, share in by_k.items()}
        if row[BEST] > max((earlier[BEST] for earlier in self.history), default=-1.0):
            save_model(self.embedding, self.folder.file("best.keras"))
        self.history.append(row)
        self.folder.write_history(self.history)
        with self.writer.as_default(step=step):
            for name, value in row.items():
                if name not in ("epoch", "step"):
                    tf.summary.scalar(name, value)
            self.writer.flush()


def save_model(model, path):
    """Write a `.keras` file in one go."""
    with replacing(path) as temporary:
        model.save(temporary)
