"""Learning-rate schedules."""

import keras
from keras import ops

from keras_dml._common.errors import argument_error
from keras_dml._common.types import Config, Tensor

__all__ = ["WarmupCosineDecay"]


@keras.saving.register_keras_serializable("Similarity")
class WarmupCosineDecay(keras.optimizers.schedules.LearningRateSchedule):
    """A linear warmup from 0, and a cosine decay over the remaining steps.

    Examples:
        >>> schedule = WarmupCosineDecay(max_learning_rate=0.1, total_steps=100, warmup_steps=10)
        >>> [round(float(schedule(step)), 3) for step in (0, 1, 10, 55, 120)]
        [0.0, 0.01, 0.1, 0.05, 0.0]

    Args:
        max_learning_rate: Learning rate at the end of the warmup.
        total_steps: Step at which the decay ends.
        warmup_steps: Steps of the warmup, fewer than `total_steps`.
        alpha: Learning rate at the end, as a fraction of the maximum.
        name: Name of the schedule.
    """

    def __init__(
        self,
        max_learning_rate: float,
        total_steps: int,
        warmup_steps: int,
        alpha: float = 0.0,
        name: str | None = None,
    ) -> None:
        super().__init__()
        if warmup_steps >= total_steps:
            raise argument_error(
                "warmup_steps", f"fewer than total_steps={total_steps}", warmup_steps
            )
        self.max_learning_rate, self.alpha, self.name = max_learning_rate, alpha, name
        self.total_steps, self.warmup_steps = total_steps, warmup_steps
        self._decay = keras.optimizers.schedules.CosineDecay(
            max_learning_rate, total_steps - warmup_steps, alpha
        )

    def __call__(self, step: Tensor | int) -> Tensor:
        """Return the learning rate of a step."""
        step = ops.cast(step, "float32")
        rising = self.max_learning_rate * step / max(self.warmup_steps, 1)
        decaying = self._decay(ops.maximum(step - self.warmup_steps, 0.0))
        return ops.where(step < self.warmup_steps, rising, decaying)

    def get_config(self) -> Config:
        """Return the constructor's arguments."""
        names = ("max_learning_rate", "total_steps", "warmup_steps", "alpha", "name")
        return {name: getattr(self, name) for name in names}
