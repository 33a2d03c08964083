"""What a run is to do, once its flags have been read."""

import dataclasses
from typing import Any

from experiments.options import RunOptions
from experiments.training.run_folder import RunFolder, State
from pipelines import EvaluationTransform
from pipelines.split import Split


@dataclasses.dataclass(frozen=True)
class RunPlan:
    """What training, evaluation and report of a run share.

    Attributes:
        name: of the run: its recipe or its dataset.
        options: what it was given.
        folder: where it writes.
        data: training, test and gallery images.
        preprocessing: evaluation transform.
        ks: the K of recall at K.
        steps_per_epoch: steps between two checkpoints.
        rate: learning rate, as from `objective.learning_rate`.
    """

    name: str
    options: RunOptions
    folder: RunFolder
    data: Split
    preprocessing: EvaluationTransform
    ks: list[int]
    steps_per_epoch: int
    rate: Any


def describe(
    data: Split, model: Any, steps_per_epoch: int, options: RunOptions, state: State
) -> str:
    """One line of what is about to happen."""
    train, test = data.train, data.test
    tested = "the same" if data.same_classes else f"{test.num_classes:,} others"
    if data.gallery:
        tested += f" in a gallery of {len(data.gallery):,}"
    text = (
        f"{len(train):,} images of {train.num_classes:,} classes to train, "
        f"{len(test):,} of {tested} to test; "
        f"{model.count_params():,} parameters; "
        f"{options.epochs} epochs of {steps_per_epoch} steps"
    )
    return f"{text}; continued after epoch {state.epoch}" if state.epoch else text
