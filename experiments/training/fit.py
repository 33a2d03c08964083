"""Build, compile, and train the embedding model."""

import logging
from typing import cast

import keras
import numpy as np
import tensorflow as tf

from experiments.evaluation.table_embedder import TableEmbedder
from experiments.options import RunOptions
from experiments.options.errors import UsageError
from experiments.options.loss_flags import naming_flags
from experiments.options.run_options import BackboneOptions
from experiments.options.values import import_modules, whole_numbers
from experiments.training.callbacks import callbacks, exported
from experiments.training.checkpoint import State
from experiments.training.devices import threads
from experiments.training.downloads import downloading_weights
from experiments.training.features import FeatureFeed, ImageFeed
from experiments.training.fine_tuning import Phase, Trainability
from experiments.training.optimizer import backbone_optimizer
from experiments.training.patience import is_over, stopped
from experiments.training.plan import RunPlan
from experiments.training.workers import Workers
from keras_dml import models
from keras_dml._backend.cloning import all_layers, freeze
from keras_dml._common.errors import ArgumentError
from keras_dml.export.float32 import float32_copy

_LOGGER = logging.getLogger("experiments")


class Learner:
    """The models of a run, which share their layers.

    Args:
        run: The run.
        strategy: Strategy for the variables.

    Attributes:
        embedding: Model from images to embeddings, which is evaluated and exported.
        model: The fitted model, on images or on cached features, compiled for the first phase.
        trunk, head: The two parts of `embedding`, if the features of the trunk are cached.

    Raises:
        UsageError: No variable would train.
    """

    def __init__(self, run: RunPlan, strategy: tf.distribute.Strategy) -> None:
        self._run = run
        self._strategy = strategy
        self.trunk: keras.Model | None = None
        self.head: keras.Model | None = None
        with strategy.scope():
            self._backbone, self.embedding = embedding_model(run.options)
            run.objective.check_dimensions(self.embedding.output_shape[1])
            self._trainability = Trainability(self._backbone)
            for phase in run.phases:
                self._let_train(phase)
                self._check_that_it_learns(phase)
            if run.options.cache_features:
                self.trunk, self.head = models.split_at_features(self.embedding)
            self.model = run.objective.training_model(
                self.head or _training_embedding(run.options, self.embedding),
                run.data.train.num_classes,
            )
        # Compile all phases now: errors come before the run's folder is created.
        for phase in reversed(run.phases):
            self.begin(phase)

    def begin(self, phase: Phase) -> None:
        """Compile the model for a phase, with a new optimizer."""
        run = self._run
        self._let_train(phase)
        with self._strategy.scope():
            self.model.compile(
                backbone_optimizer(
                    run.options,
                    self._backbone,
                    phase.rate,
                    run.objective.rate_factors(self.model),
                ),
                **run.objective.compile_arguments(phase.steps),
                # Without compilation, JAX runs operation by operation.
                jit_compile=run.options.jit_compile or keras.backend.backend() == "jax",
            )

    def without_head(self) -> keras.Model:
        """Return the model from images to pooled features."""
        options = self._run.options
        with self._strategy.scope():
            return models.embedding_model(
                self._backbone, pooling=options.pooling, levels=options.levels
            )

    def average(self) -> None:
        """Replace the weights by their moving average, if there is one."""
        self.model.optimizer.finalize_variable_values(self.model.trainable_variables)

    def _let_train(self, phase: Phase) -> None:
        if phase.head_alone:
            self._trainability.freeze()
        else:
            self._trainability.restore()

    def _check_that_it_learns(self, phase: Phase) -> None:
        run = self._run
        # A classifier over frozen features is useful if the test classes are the training classes,
        # or before the backbone trains.
        classifier = run.objective.has_classifier
        if self.embedding.trainable_variables or (
            classifier and (run.data.same_classes or phase.head_alone)
        ):
            return
        flag = "head_epochs" if phase.head_alone else "freeze_backbone"
        raise UsageError(
            f"{flag} leaves nothing of the embedding that would train: give its head a "
            "projection, --embedding_size=N. Received: embedding_size=None"
        )


def build_backbone(
    options: BackboneOptions, image_size: int, frozen_batch_norm: bool | None = None
) -> keras.Model:
    """Build the backbone with its weights.

    Args:
        options: The options of the backbone.
        image_size: Height and width of its images.
        frozen_batch_norm: Argument of `keras_dml.models.build_backbone`.

    Raises:
        UsageError: The weights cannot be downloaded.
    """
    import_modules(options.import_modules)
    with downloading_weights(options):
        return models.build_backbone(
            options.backbone,
            image_size,
            options.weights,
            frozen_batch_norm,
            None if options.filters is None else whole_numbers("filters", options.filters),
            options.trust_code,
        )


def embedding_model(options: RunOptions) -> tuple[keras.Model, keras.Model]:
    """Build the backbone and the embedding model."""
    backbone = build_backbone(options, options.image_size, options.frozen_batch_norm)
    if options.freeze_backbone:
        freeze(backbone)
    elif options.lora_rank is None:
        _check_that_it_was_not_frozen(options, backbone)
    if options.rematerialize:
        models.rematerialize_blocks(backbone)
    if options.lora_rank is not None:
        _enable_lora(options, backbone)
    return backbone, models.embedding_model(
        backbone,
        options.embedding_size,
        options.feature_batch_norm,
        options.pooling,
        options.levels,
    )


def pooled_backbone(options: BackboneOptions, image_size: int) -> keras.Model:
    """Build the backbone with its pooling, without a head. Random weights have the seed 0."""
    keras.utils.set_random_seed(0)
    return models.embedding_model(
        build_backbone(options, image_size), pooling=options.pooling, levels=options.levels
    )


def _training_embedding(options: RunOptions, embedding: keras.Model) -> keras.Model:
    """Return the embedding model for training images.

    Raises:
        UsageError: the backbone does not accept images of `training_size`.
    """
    if options.training_size in (None, options.image_size):
        return embedding
    try:
        return models.with_image_size(embedding, cast(int, options.training_size))
    except ArgumentError as error:
        raise UsageError(
            f"training_size must be image_size={options.image_size} for backbone "
            f"{options.backbone}, but got {options.training_size}. "
            "The backbone accepts images of one size."
        ) from error


def _check_that_it_was_not_frozen(options: RunOptions, backbone: keras.Model) -> None:
    """Raise `UsageError` if the whole backbone was saved as not trainable."""
    if backbone.trainable_variables or all(layer.trainable for layer in all_layers(backbone)):
        return
    raise UsageError(
        f"backbone {options.backbone} was saved with trainable = False, so it would not "
        "train: give --freeze_backbone, or save it again with trainable = True. "
        f"Received: freeze_backbone={options.freeze_backbone}"
    )


def _enable_lora(options: RunOptions, backbone: keras.Model) -> None:
    with naming_flags({"layers": "lora_layers", "rank": "lora_rank"}):
        models.enable_lora(backbone, cast(int, options.lora_rank), options.lora_layers)


def feed_of(
    run: RunPlan, learner: Learner, workers: Workers, state: State
) -> ImageFeed | FeatureFeed | None:
    """Return the input of the rest of the training; compute the features that are missing.

    Returns:
        None if nothing is left to train, for example after a kill during the last evaluation.

    Raises:
        UsageError: as `FeatureFeed`.
    """
    over = workers.first_says(is_over(run.folder.history, run.options))
    if over or state.epoch >= run.options.epochs:
        return None
    if learner.trunk is None or learner.head is None:
        return ImageFeed(run, learner.embedding)
    return FeatureFeed(run, learner.trunk, learner.head)


def untrained_embeddings(
    run: RunPlan, learner: Learner, workers: Workers, feed: ImageFeed | FeatureFeed | None
) -> dict[str, np.ndarray]:
    """Embed all images to evaluate by the backbone and its pooling, without the head.

    Call it on every worker before the first step. It computes in float32, like the evaluation of
    the trained embedding, and takes cached features if the feed has them.
    """
    model = float32_copy(exported(learner.without_head()))
    known = {} if feed is None else feed.embeddings_by(model)
    embedder = TableEmbedder(workers.share(model), run.preprocessing, run.options.eval_batch_size)
    return {
        side: known[side] if side in known else embedder(table, f"untrained backbone, {side}")
        for side, table in run.data.tables.items()
        if side != "training"
    }


def restored(run: RunPlan, learner: Learner, workers: Workers) -> State:
    """Restore the checkpoint into the models, and return its state.

    Raises:
        ValueError: As `RunFolder.restore_checkpoint`.
    """

    def model_at(state: State) -> keras.Model:
        # A checkpoint at the end of a phase holds the optimizer of that phase.
        learner.begin(next(each for each in run.phases if state.epoch <= each.last_epoch))
        return learner.model

    state = run.folder.restore_checkpoint(model_at, workers)
    before, now = run.folder.threads, threads()
    if run.options.deterministic and before not in (None, now):
        _LOGGER.warning(
            "deterministic needs one number of threads: the run began with %d and resumes with %d, "
            "so its numbers can differ in the last bits",
            before,
            now,
        )
    return state


def fit(
    run: RunPlan,
    learner: Learner,
    workers: Workers,
    state: State,
    feed: ImageFeed | FeatureFeed | None,
) -> None:
    """Train from `state` to the end, evaluating and saving after each epoch.

    The training ends with the last phase, or when the run's patience is over.

    Args:
        run: The run.
        learner: The models.
        workers: All workers.
        state: Current state of the training.
        feed: Input from `feed_of`. None to train nothing.
    """
    for number, phase in enumerate(run.phases):
        if state.epoch > phase.last_epoch:
            continue
        if state.epoch < phase.last_epoch and feed is not None:
            state = _fit_phase(run, learner, workers, state, phase, feed)
        # The checkpoint of a finished phase predates weight averaging, so average again.
        learner.average()
        if number + 1 < len(run.phases):
            learner.begin(run.phases[number + 1])
    why = stopped(run.folder.history, run.options)
    if why:
        print(f"stopped {why}", flush=True)


def _fit_phase(
    run: RunPlan,
    learner: Learner,
    workers: Workers,
    state: State,
    phase: Phase,
    feed: ImageFeed | FeatureFeed,
) -> State:
    def batches(context: tf.distribute.InputContext) -> tf.data.Dataset:
        return run.objective.targets(feed.batches(state.step, context), run.data.train)

    others, saving = callbacks(run, phase, learner.embedding, feed, state, workers)
    learner.model.fit(
        workers.strategy.distribute_datasets_from_function(batches),
        epochs=phase.last_epoch,
        initial_epoch=state.epoch,
        steps_per_epoch=run.steps_per_epoch,
        callbacks=[*others, saving],
        shuffle=False,
        verbose=0,
    )
    return saving.state
