"""What `fit` and its evaluations share: the progress bar, the check for NaN, averaged weights."""

import contextlib
import math
from collections.abc import Iterator
from typing import Any, NoReturn

import keras
import numpy as np

from keras_dml._common.progress import Bar


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
        self.bar = Bar(
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

    def __init__(self, step: int, steps_per_epoch: int) -> None:
        super().__init__()
        # The optimizer does not count steps that loss scaling skips.
        self.step = step
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
