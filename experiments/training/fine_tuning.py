"""The phases of a training, the frozen parts of a model, and checks of these flags."""

import dataclasses

import keras

from experiments.options import RunOptions
from experiments.options.errors import UsageError
from experiments.training.optimizer import Rate
from keras_dml._backend.cloning import all_layers, freeze


@dataclasses.dataclass(frozen=True)
class Phase:
    """A part of a training with a separate optimizer and schedule.

    Attributes:
        first_epoch, last_epoch: Epochs that are finished when the phase begins and ends.
        first_step: Steps that are finished when the phase begins.
        steps: Number of steps.
        rate: Learning rate, from `Objective.learning_rate`.
        head_alone: Whether the backbone is frozen.
    """

    first_epoch: int
    last_epoch: int
    first_step: int
    steps: int
    rate: Rate
    head_alone: bool


class Trainability:
    """The trainable layers and variables of a backbone, which can be frozen and restored.

    Args:
        backbone: The backbone, before it is frozen.
    """

    def __init__(self, backbone: keras.Model) -> None:
        self._backbone = backbone
        self._layers = [(layer, layer.trainable) for layer in all_layers(backbone)]
        self._variables = [(variable, variable.trainable) for variable in backbone.variables]

    def freeze(self) -> None:
        """Freeze the backbone."""
        freeze(self._backbone)

    def restore(self) -> None:
        """Restore the trainable layers and variables."""
        # From the outermost layer to the innermost, because a layer sets its inner layers.
        for layer, trains in self._layers:
            layer.trainable = trains
        for variable, trains in self._variables:
            variable.trainable = trains


def check_fine_tuning(options: RunOptions) -> None:
    """Check the values of the flags of fine-tuning.

    Raises:
        UsageError: Values contradict each other.
    """
    if options.head_epochs is not None and options.head_epochs >= options.epochs:
        raise UsageError(
            f"head_epochs must be below epochs={options.epochs}, but got {options.head_epochs}. "
            "--freeze_backbone trains only the head."
        )
    if options.cache_features and options.training_size not in (None, options.image_size):
        raise UsageError(
            f"training_size must be image_size={options.image_size} with cache_features, "
            f"but got {options.training_size}. Leave out training_size, or change image_size."
        )
