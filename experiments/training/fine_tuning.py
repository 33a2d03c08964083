"""The phases of a training, the frozen parts of a model, and checks of these flags."""

import dataclasses

import keras

from experiments.options import RunOptions
from experiments.options.errors import UsageError
from experiments.training.optimizer import Rate
from keras_dml._backend.cloning import all_layers, freeze

__all__ = ["Phase", "Trainability", "check_fine_tuning"]


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
    """Check the flags of fine-tuning and of cached features.

    Raises:
        UsageError: Flags contradict each other, or a flag has no effect without another one.
    """
    if options.freeze_backbone:
        for name in ("lora_rank", "head_epochs", "layer_decay", "rematerialize"):
            value = getattr(options, name)
            if value is not None and value is not False:
                raise UsageError(
                    f"{name} must not be set with freeze_backbone, which freezes the backbone. "
                    f"Received: {name}={value}"
                )
    if options.head_epochs is not None and options.head_epochs >= options.epochs:
        raise UsageError(
            f"head_epochs must be below epochs={options.epochs} (--freeze_backbone trains only "
            f"the head). Received: head_epochs={options.head_epochs}"
        )
    if options.lora_rank is not None and options.layer_decay is not None:
        raise UsageError(
            "layer_decay is for a backbone all of which trains; with lora_rank give "
            f"--pretrained_factor. Received: layer_decay={options.layer_decay}"
        )
    if options.lora_layers is not None and options.lora_rank is None:
        raise UsageError(
            "lora_layers is for --lora_rank=N. "
            f"Received: lora_layers={','.join(options.lora_layers)}"
        )
    _check_cache(options)


def _check_cache(options: RunOptions) -> None:
    if options.cache_features:
        if not options.freeze_backbone:
            raise UsageError(
                "cache_features needs --freeze_backbone: features of a backbone that trains change "
                "with every step. Received: freeze_backbone=False"
            )
        if options.training_size not in (None, options.image_size):
            raise UsageError(
                f"training_size must be image_size={options.image_size} with cache_features, "
                f"but got {options.training_size}. Leave out training_size, or change image_size."
            )
        if options.levels is not None:
            raise UsageError(
                "cache_features supports only the features of the last layer. "
                f"Received: levels={','.join(options.levels)}"
            )
        if options.strategy == "multi_worker":
            raise UsageError(
                "cache_features trains a head in seconds, on one machine. "
                "Received: strategy=multi_worker"
            )
        return
    for name in ("cached_views", "cache_dir"):
        if getattr(options, name) is not None:
            raise UsageError(
                f"{name} is for --cache_features. Received: {name}={getattr(options, name)}"
            )
