"""Callbacks of `fit`: the progress bar, the check for NaN, evaluation, log, and checkpoint."""

import contextlib
import math
import shutil
import time
from collections.abc import Iterator, Mapping
from typing import Any, NoReturn

import keras
import numpy as np
import tensorflow as tf

from experiments.options.progress import progress_bar
from experiments.training.checkpoint import State
from experiments.training.devices import threads
from experiments.training.encoders import Encoders
from experiments.training.features import FeatureFeed, ImageFeed
from experiments.training.fine_tuning import Phase
from experiments.training.plan import RunPlan
from experiments.training.run_files import TENSORBOARD
from experiments.training.selection import is_over, kept, waited
from experiments.training.workers import Workers
from keras_dml import models


class Progress(keras.callbacks.Callback):
    """A progress bar over all images of the training, with images per second and the loss.

    Args:
        batch_size, total_steps, epochs: Of the run.
        start_step: Steps that are done.
    """

    def __init__(self, batch_size: int, total_steps: int, epochs: int, start_step: int) -> None:
        super().__init__()
        self.batch_size = batch_size
        self.epochs = epochs
        self._building, self._epoch = True, ""
        self.bar = progress_bar(
            "training", total_steps * batch_size, initial=start_step * batch_size, leave=True
        )

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Show the epoch."""
        building = ", building its first step" if self._building else ""
        self._epoch = f"epoch {epoch + 1}/{self.epochs}"
        self.bar.set_description(f"{self._epoch}{building}", refresh=False)
        if self._building:
            self.bar.refresh()

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Advance by a batch."""
        self.bar.set_postfix_str(f"loss {float(logs['loss']):.4f}", refresh=False)
        if self._building:  # the first step takes as long as many others
            self._building = False
            self.bar.set_description(self._epoch, refresh=False)
            self.bar.begin_counting(self.batch_size)
            return
        self.bar.update(self.batch_size)

    def on_train_end(self, logs: Any = None) -> None:
        """Close the bar."""
        self.bar.close()


class StopAtNaN(keras.callbacks.Callback):
    """A callback that stops the run when the loss of a step or the weights are not finite."""

    def __init__(self, state: State, steps_per_epoch: int) -> None:
        super().__init__()
        # The optimizer does not count steps that loss scaling skips.
        self.step = state.step
        self.steps_per_epoch = steps_per_epoch

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Check the loss. The running mean of Keras stays NaN after the first NaN."""
        self.step += 1
        if not math.isfinite(float(logs["loss"])):
            self._stop("the loss is not finite")

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Check the weights, which the last step can change after its loss."""
        for variable in self.model.variables:
            array = variable.numpy()
            if array.dtype.kind == "f" and not np.isfinite(array).all():
                self._stop(f"{variable.path} is not finite")

    def _stop(self, what: str) -> NoReturn:
        epoch = (self.step - 1) // self.steps_per_epoch + 1
        raise FloatingPointError(f"{what} at step {self.step} (epoch {epoch})")


class EvaluateAndSave(keras.callbacks.Callback):
    """A callback that evaluates, logs, and writes the best model and the checkpoint.

    All files of an epoch are replaced in one step, so a kill repeats at most one epoch. Every
    worker embeds its share of the images. The first worker does the rest.

    Args:
        run: The run.
        phase: The phase of the training.
        encoders: The embedding models, which are the fitted model or parts of it.
        feed: Computes the embeddings of the images.
        state: State at the beginning of the phase.
        workers: All workers.

    Attributes:
        state: The current state.
        history: The objects of `metrics.jsonl`, on the first worker.
    """

    def __init__(
        self,
        run: RunPlan,
        phase: Phase,
        encoders: Encoders,
        feed: ImageFeed | FeatureFeed,
        state: State,
        workers: Workers,
    ) -> None:
        super().__init__()
        self.run = run
        self.workers = workers
        self.phase = phase
        self.encoders = encoders
        self.feed = feed
        self.state = state
        self.seconds = state.seconds
        self.history = list(run.folder.history)
        self._began = 0.0
        if run.folder.writes:
            # Rewrite the curves, so that no point appears twice after a kill.
            shutil.rmtree(run.folder.file(TENSORBOARD), ignore_errors=True)
            self.writer = tf.summary.create_file_writer(str(run.folder.file(TENSORBOARD)))
            for row in self.history:
                self._summarize(row)

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Start the timer of the training steps."""
        self._began = time.perf_counter()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Evaluate if it is due, save, and stop the training if its patience is over."""
        self.seconds += time.perf_counter() - self._began
        step = (epoch + 1) * self.run.steps_per_epoch
        self.model.average_statistics()
        options = self.run.options
        if (epoch + 1) % options.eval_every == 0 or epoch + 1 == options.epochs:
            with averaged_weights(self.model):
                self._evaluate(epoch + 1, step, logs or {})
        self.state = State(epoch + 1, step, self.seconds)
        self.run.folder.save_checkpoint(self.model, self.state, threads())
        if options.patience and self.workers.first_says(is_over(self.history, options)):
            self.model.stop_training = True

    def _evaluate(self, epoch: int, step: int, logs: Mapping[str, Any]) -> None:
        run, objective = self.run, self.run.objective
        row = {"epoch": epoch, "step": step, "train/seconds": round(self.seconds, 3)}
        names = objective.log_names
        row |= {f"train/{names.get(name, name)}": float(value) for name, value in logs.items()}
        # The rate of the last step. The optimizer has the rate of the next step.
        row["train/learning_rate"] = objective.rate_after(
            self.phase.rate, step - self.phase.first_step
        )
        embeddings = self._embeddings(f"evaluating epoch {epoch}")
        if not run.folder.writes:
            return
        for evaluator in run.evaluators:
            row |= evaluator.measure(run, self.model, embeddings)
        if run.options.patience:
            row["test/evaluations_without_gain"] = waited([*self.history, row], run.options)
        self.history.append(row)
        if kept(self.history, run.options) is row:
            for name, encoder in self.encoders.items():
                exported(encoder).save(run.folder.new_best(name))
        run.folder.write_history(self.history)
        self._summarize(row)

    def _embeddings(self, description: str) -> dict[str, np.ndarray]:
        """Embed the tables that the evaluators need. Each worker embeds its share."""
        data = self.run.data
        wanted = {"test", *(side for each in self.run.evaluators for side in each.sides(data))}
        return {
            side: self.feed.embeddings(
                side, description if side == "test" else f"{description}, {side}"
            )
            for side in data.tables
            if side in wanted
        }

    def _summarize(self, row: Mapping[str, float]) -> None:
        with self.writer.as_default(step=row["step"]):
            for name, value in row.items():
                if name not in ("epoch", "step"):
                    tf.summary.scalar(name, value)
            self.writer.flush()


@contextlib.contextmanager
def averaged_weights(model: keras.Model) -> Iterator[None]:
    """Replace the weights temporarily by their moving average, if there is one."""
    optimizer = model.optimizer
    # The optimizer of half precision contains another one.
    if not getattr(optimizer, "inner_optimizer", optimizer).use_ema:
        yield
        return
    variables = model.trainable_variables
    weights = [variable.numpy() for variable in variables]
    optimizer.finalize_variable_values(variables)
    try:
        yield
    finally:
        for variable, array in zip(variables, weights):
            variable.assign(array)


def exported(embedding: keras.Model) -> keras.Model:
    """Return the embedding model for export, with low-rank additions merged into its kernels."""
    return models.with_merged_lora(embedding) if models.has_lora(embedding) else embedding
