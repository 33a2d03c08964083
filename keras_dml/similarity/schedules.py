"""Learning-rate schedules."""

import keras

from keras_dml._backend.configured import ConfiguredValue
from keras_dml._common.errors import argument_error

__all__ = ["WarmupCosineDecay"]


@keras.saving.register_keras_serializable("Similarity")
class WarmupCosineDecay(ConfiguredValue, keras.optimizers.schedules.CosineDecay):
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
        if warmup_steps >= total_steps:
            wanted = f"fewer than total_steps={total_steps}"
            raise argument_error("warmup_steps", wanted, warmup_steps)
        super().__init__(
            0.0,
            total_steps - warmup_steps,
            alpha,
            name or type(self).__name__,
            warmup_target=max_learning_rate,
            warmup_steps=warmup_steps,
        )
        self.max_learning_rate, self.total_steps = max_learning_rate, total_steps
