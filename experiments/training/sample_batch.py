"""Pictures of the first training batch, for TensorBoard."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from experiments.training.plan import RunPlan
from pipelines import training_batches

__all__ = ["sheet_of", "write_sample_batch"]

_COLUMNS, _ROWS, _MOST_SIDE = 8, 4, 96


def write_sample_batch(run: RunPlan, writer: tf.summary.SummaryWriter) -> None:
    """Write the augmented batch of step 0, which TensorBoard shows under Images.

    Args:
        run: The run.
        writer: Writer of the run's events.
    """
    data, sampler = run.data.train, run.sampler
    batches = training_batches(data, sampler, run.augmentation, run.options.seed, num_steps=1)
    ((images, _),) = batches
    with writer.as_default(step=0):
        tf.summary.image("train/first batch, augmented", sheet_of(images)[None])


def sheet_of(images: tf.Tensor) -> npt.NDArray[np.uint8]:
    """Arrange the first images of a batch in one picture `[h, w, 3]`.

    Args:
        images: float32 `[n, size, size, 3]` in 0 to 255.
    """
    images = images[: _COLUMNS * _ROWS]
    side = min(_MOST_SIDE, images.shape[1])
    small = tf.image.resize(images, (side, side), "area").numpy()
    columns = min(_COLUMNS, len(small))
    rows = -(-len(small) // columns)
    sheet = np.full([rows * columns, side, side, 3], 255, np.uint8)
    sheet[: len(small)] = np.clip(np.round(small), 0, 255)
    lines = sheet.reshape(rows, columns, side, side, 3).swapaxes(1, 2)
    return lines.reshape(rows * side, columns * side, 3)
