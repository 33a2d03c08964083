"""The plan of a run: everything that follows from its flags and its data."""

import dataclasses
import itertools
import math
from collections.abc import Mapping

import keras
import numpy as np

from experiments import recipes
from experiments.evaluation.evaluators import Evaluator, RetrievalScores
from experiments.evaluation.figures import pair_rows
from experiments.options import RunOptions, UsageError
from experiments.options import data as described
from experiments.options.texts import with_texts
from experiments.training.objectives import objective_of
from experiments.training.objectives.base import Objective
from experiments.training.run_files import BAD_IMAGES, CANDIDATE
from experiments.training.run_folder import RunFolder, State
from experiments.training.run_images import Record, record_of
from experiments.training.workers import Workers
from keras_dml.models import TextTransform
from keras_dml.optimizers import Rate
from pipelines import EvaluationTransform, Split, TrainTransform
from pipelines.hard_classes import HardClassSampler
from pipelines.samplers import Sampler


@dataclasses.dataclass(frozen=True)
class Phase:
    """A part of a training with a separate optimizer and schedule.

    Attributes:
        last_epoch: Epochs that are finished when the phase ends.
        first_step: Steps that are finished when the phase begins.
        steps: Number of steps.
        rate: Learning rate, from `Objective.learning_rate`.
        head_alone: Whether the backbone is frozen.
    """

    last_epoch: int
    first_step: int
    steps: int
    rate: Rate
    head_alone: bool


@dataclasses.dataclass(frozen=True)
class RunPlan:
    """The data and settings that training, evaluation, and report of a run share.

    Attributes:
        options: Options of the run.
        folder: Folder of the run.
        data: Training, test, gallery, and catalog images.
        bad_images: A line for each image that is left out.
        image_record: Names of all images, from `run_images.record_of`.
        augmentation: Training transform.
        preprocessing: Evaluation transform of images.
        sampler: Function from batch number to row numbers of the training images.
        ks: Values of K for recall at K.
        steps_per_epoch: Steps between two checkpoints.
        objective: Kind of training.
        phases: Phases of the training. Most runs have one.
        evaluators: Evaluators, from `Objective.evaluators`.
        paper: Scores in the recipe's paper, from `recipes.paper_scores`.
    """

    options: RunOptions
    folder: RunFolder
    data: Split
    bad_images: list[str]
    image_record: Record
    augmentation: TrainTransform
    preprocessing: EvaluationTransform
    sampler: Sampler
    ks: list[int]
    steps_per_epoch: int
    objective: Objective
    phases: list[Phase]
    evaluators: list[Evaluator]
    paper: Mapping[str, float]

    @property
    def refreshed_sampler(self) -> HardClassSampler | None:
        """The sampler, if a table of nearest classes is computed for it. None for the others."""
        return self.sampler if isinstance(self.sampler, HardClassSampler) else None

    def transform_of(self, encoder: str) -> EvaluationTransform | TextTransform:
        """Return the evaluation transform of the inputs of an encoder."""
        texts = self.objective.text_transform
        return texts if texts is not None and encoder == CANDIDATE else self.preprocessing

    def list_bad_images(self) -> None:
        """Write the list of the images that are left out to the run's open folder."""
        if self.bad_images or self.options.skip_bad_images:
            lines = "".join(f"{line}\n" for line in self.bad_images)
            self.folder.write_text(BAD_IMAGES, lines)


def plan_run(options: RunOptions, folder: RunFolder, workers: Workers) -> RunPlan:
    """Read the data and create the plan.

    Raises:
        UsageError: Options contradict each other or the data, or the workers differ.
        OSError: Files of the dataset cannot be read.
    """
    workers.check_same("flags", folder.flags.encode())
    data, bad_images = described.data(options, folder.bad_images)
    labels = data.train.labels.tobytes() + data.test.labels.tobytes()
    workers.check_same("images of data_dir", labels)
    check_can_be_measured(data)
    check_validated(options, data)
    if options.texts is not None:
        data = with_texts(data, options.texts)
    image_record = record_of(data)
    if options.measured_in is not None:
        # A refit has no test images. Its pages show some training images.
        rows = pair_rows({"test": data.test.labels})["test"]
        data = dataclasses.replace(data, test=data.test.select(rows))
    options = with_fitting_batch(options, data, workers)
    if line := described.crop_line(options):
        print(line)
    sampler = described.sampler(options, data.train, options.seed)
    ks = described.recall_at(
        options, len(data.test), None if data.gallery is None else len(data.gallery)
    )
    recipe = recipes.find_recipe(options.flagfile[-1]) if options.flagfile else None
    steps_per_epoch = options.steps_per_epoch or sampler.steps_per_epoch
    objective = objective_of(options)
    objective.check_steps(options.epochs * steps_per_epoch)
    objective.check_data(data)
    objective.check_batches(data, sampler)
    return RunPlan(
        options=options,
        folder=folder,
        data=data,
        bad_images=bad_images,
        image_record=image_record,
        augmentation=described.training_transform(options),
        preprocessing=described.evaluation_transform(options),
        sampler=sampler,
        ks=ks,
        steps_per_epoch=steps_per_epoch,
        objective=objective,
        phases=_phases(options, objective, steps_per_epoch),
        # A refit is not evaluated: its page needs only retrieval.
        evaluators=[RetrievalScores()] if options.measured_in else objective.evaluators(),
        paper={} if recipe is None else recipes.paper_scores(recipe),
    )


def check_can_be_measured(data: Split) -> None:
    """Raise `UsageError` if no test image has a second image of its class to find."""
    test = data.test
    if data.gallery is not None or np.bincount(test.labels).max() > 1:
        return
    raise UsageError(
        f"dataset must have test classes of two images or more, but got {len(test):,} images of "
        f"{test.num_classes:,} classes to test. Add photographs to the classes."
    )


def check_validated(options: RunOptions, data: Split) -> None:
    """Raise `UsageError` if the score that patience needs does not exist."""
    if options.patience and np.bincount(data.test.labels).max() < 2:
        raise UsageError(
            f"patience must be 0 for fold={options.fold}, but got {options.patience}. No class of "
            "the fold has two images to validate on."
        )


def with_fitting_batch(options: RunOptions, data: Split, workers: Workers) -> RunOptions:
    """Reduce the batch size of a recipe if a batch has more classes than train.

    A batch size on the command line stays, and is refused later.
    """
    asked = {"batch_size", "images_per_class"} & options.on_command_line
    each, classes = options.of_samplers["images_per_class"], data.train.num_classes
    size = each * classes
    if not options.batches_by_class or asked or classes < 2 or size >= options.batch_size:
        return options
    devices = workers.strategy.num_replicas_in_sync
    size -= size % math.lcm(devices, each)
    if not size:
        return options
    print(
        f"a batch is {size} images, {size // each} classes of {each}: {classes} classes train, and "
        f"batch_size={options.batch_size} would take {options.batch_size // each}"
    )
    return dataclasses.replace(options, batch_size=size)


def _phases(options: RunOptions, objective: Objective, steps_per_epoch: int) -> list[Phase]:
    """Return the phases of the training.

    Raises:
        UsageError: The training of the head leaves no epoch for the whole model.
    """
    head_epochs = options.head_epochs or 0
    if head_epochs >= options.epochs:
        raise UsageError(
            f"head_epochs must be below epochs={options.epochs}, but got {head_epochs}. "
            "--freeze_backbone trains only the head."
        )
    ends = [0, *([head_epochs] if head_epochs else []), options.epochs]
    return [
        Phase(
            last_epoch=last,
            first_step=first * steps_per_epoch,
            steps=(last - first) * steps_per_epoch,
            rate=objective.learning_rate((last - first) * steps_per_epoch),
            head_alone=last == head_epochs,
        )
        for first, last in itertools.pairwise(ends)
    ]


def describe(run: RunPlan, model: keras.Model, state: State) -> str:
    """Describe the run in a few lines."""
    data, train, test = run.data, run.data.train, run.data.test
    tested = "the same" if data.same_classes else f"{test.num_classes:,} others"
    if data.gallery:
        tested += f" in a gallery of {len(data.gallery):,}"
    if data.catalog:
        tested += f" and in a catalog of {len(data.catalog):,}"
    to_test = f"{len(test):,} of {tested} to test"
    if run.options.measured_in is not None:
        to_test = f"none to test, as {run.options.measured_in} has measured"
    text = (
        f"{len(train):,} images of {train.num_classes:,} classes to train, {to_test}; "
        f"{model.count_params():,} parameters; "
        f"{run.options.epochs} epochs of {run.steps_per_epoch} steps"
    )
    if run.options.patience:
        text += f", or until MAP@R has not risen in {run.options.patience} evaluations"
    text += f"; continued after epoch {state.epoch}" if state.epoch else ""
    if run.options.fold is not None:
        text += f"\nfold {run.options.fold} of the training classes: the test classes stay unseen"
    text += f"\nto train: {described.classes_in_words(train)}"
    return text if data.same_classes else f"{text}\nto test: {described.classes_in_words(test)}"
