"""What a run is to do, once its flags have been read."""

import dataclasses
from typing import Any

from absl import flags

from experiments.training.run_folder import RunFolder
from pipelines import EvaluationTransform
from pipelines.split import Split


@dataclasses.dataclass(frozen=True)
class RunPlan:
    """What training, evaluation and report of a run share.

    Attributes:
        name: of the run: its recipe or its dataset.
        options: its flags.
        folder: where it writes.
        data: training, test and gallery images.
        preprocessing: evaluation transform.
        ks: the K of recall at K.
        steps_per_epoch: steps between two checkpoints.
        rate: learning rate, as from `objective.learning_rate`.
    """

    name: str
    options: flags.FlagValues
    folder: RunFolder
    data: Split
    preprocessing: EvaluationTransform
    ks: list[int]
    steps_per_epoch: int
    rate: Any
