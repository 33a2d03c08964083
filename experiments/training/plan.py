"""What a run is to do, once its flags have been read."""

import dataclasses

import keras

from experiments.options import RunOptions
from experiments.options import data as described
from experiments.training.evaluators import Evaluator
from experiments.training.fine_tuning import Phase, check_fine_tuning
from experiments.training.objectives import Objective, objective_of
from experiments.training.run_files import BAD_IMAGES, known_bad_images
from experiments.training.run_folder import RunFolder, State
from experiments.training.workers import Workers
from pipelines import BalancedSampler, EvaluationTransform, RandomSampler, Split, TrainTransform


@dataclasses.dataclass(frozen=True)
class RunPlan:
    """What training, evaluation and report of a run share.

    Attributes:
        name: of the run: its recipe or its dataset.
        options: what it was given.
        folder: where it writes.
        data: training, test, gallery and catalog images.
        bad_images: a line for each image that was left out.
        augmentation: training transform.
        preprocessing: evaluation transform.
        sampler: batch number to row numbers of the training images.
        ks: the K of recall at K.
        steps_per_epoch: steps between two checkpoints.
        objective: the kind of training.
        phases: what is trained when; most runs have one.
        evaluators: as from `Objective.evaluators`.
    """

    name: str
    options: RunOptions
    folder: RunFolder
    data: Split
    bad_images: list[str]
    augmentation: TrainTransform
    preprocessing: EvaluationTransform
    sampler: RandomSampler | BalancedSampler
    ks: list[int]
    steps_per_epoch: int
    objective: Objective
    phases: list[Phase]
    evaluators: list[Evaluator]

    def list_bad_images(self) -> None:
        """List in the run's folder, which is open, the images that were left out."""
        if self.options.skip_bad_images:
            lines = "".join(f"{line}\n" for line in self.bad_images)
            self.folder.write_text(BAD_IMAGES, lines)


def plan_run(options: RunOptions, folder: RunFolder, workers: Workers) -> RunPlan:
    """Read the data and settle everything that follows from the options.

    Raises:
        UsageError: options that do not fit each other or the data; workers that do not agree.
        OSError: files of the dataset that cannot be read.
    """
    check_fine_tuning(options)
    workers.check_same("flags", folder.flags.encode())
    data, bad_images = described.data(options, known_bad_images(folder.path))
    labels = data.train.labels.tobytes() + data.test.labels.tobytes()
    workers.check_same("images of data_dir", labels)
    sampler = described.sampler(options, data.train, options.seed)
    ks = described.recall_at(
        options, len(data.test), None if data.gallery is None else len(data.gallery)
    )
    steps_per_epoch = options.steps_per_epoch or sampler.steps_per_epoch
    objective = objective_of(options)
    return RunPlan(
        name=options.name,
        options=options,
        folder=folder,
        data=data,
        bad_images=bad_images,
        augmentation=described.training_transform(options),
        preprocessing=described.evaluation_transform(options),
        sampler=sampler,
        ks=ks,
        steps_per_epoch=steps_per_epoch,
        objective=objective,
        phases=_phases(options, objective, steps_per_epoch),
        evaluators=objective.evaluators(),
    )


def _phases(options: RunOptions, objective: Objective, steps_per_epoch: int) -> list[Phase]:
    ends = (
        [options.epochs] if options.head_epochs is None else [options.head_epochs, options.epochs]
    )
    phases = []
    first = 0
    for last in ends:
        steps = (last - first) * steps_per_epoch
        rate = objective.learning_rate(steps)
        head_alone = last != options.epochs
        phases.append(Phase(first, last, first * steps_per_epoch, steps, rate, head_alone))
        first = last
    return phases


def describe(run: RunPlan, model: keras.Model, state: State) -> str:
    """One line of what is about to happen."""
    data, train, test = run.data, run.data.train, run.data.test
    tested = "the same" if data.same_classes else f"{test.num_classes:,} others"
    if data.gallery:
        tested += f" in a gallery of {len(data.gallery):,}"
    if data.catalog:
        tested += f" and in a catalog of {len(data.catalog):,}"
    text = (
        f"{len(train):,} images of {train.num_classes:,} classes to train, "
        f"{len(test):,} of {tested} to test; "
        f"{model.count_params():,} parameters; "
        f"{run.options.epochs} epochs of {run.steps_per_epoch} steps"
    )
    return f"{text}; continued after epoch {state.epoch}" if state.epoch else text
