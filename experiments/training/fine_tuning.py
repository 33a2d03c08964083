"""The phases of a training, and the frozen parts of a model."""

import dataclasses

import keras

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
