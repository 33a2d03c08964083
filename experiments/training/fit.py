"""Compile and train the encoders."""

import logging

import keras
import numpy as np
import tensorflow as tf

from experiments.evaluation.table_embedder import TableEmbedder
from experiments.options.errors import UsageError
from experiments.training.callbacks import EvaluateAndSave, Progress, StopAtNaN, exported
from experiments.training.checkpoint import State
from experiments.training.devices import threads
from experiments.training.encoders import build_encoders, training_embedding
from experiments.training.features import FeatureFeed, ImageFeed
from experiments.training.fine_tuning import Phase, Trainability
from experiments.training.optimizer import backbone_optimizer
from experiments.training.plan import RunPlan
from experiments.training.run_files import CANDIDATE, QUERY
from experiments.training.selection import is_over, stopped
from experiments.training.workers import Workers
from keras_dml import models
from keras_dml.export.float32 import float32_copy

_LOGGER = logging.getLogger("experiments")


class Learner:
    """The models of a run, which share their layers.

    Args:
        run: The run.
        strategy: Strategy for the variables.

    Attributes:
        encoders: Models from images to embeddings, which are evaluated and exported.
        embedding: The encoder of the queries, or the only one.
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
            self._backbones, self.encoders = build_encoders(run.options)
            self.embedding = self.encoders[QUERY]
            run.objective.check_dimensions(self.embedding.output_shape[1])
            self._trainability = [Trainability(backbone) for backbone in self._backbones]
            for phase in run.phases:
                self._let_train(phase)
                self._check_that_it_learns(phase)
            if run.options.cache_features:
                self.trunk, self.head = models.split_at_features(self.embedding)
            if CANDIDATE in self.encoders:
                run.objective.candidate_encoder = training_embedding(
                    run.options, self.encoders[CANDIDATE]
                )
            self.model = run.objective.training_model(
                self.head or training_embedding(run.options, self.embedding),
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
                    self._backbones,
                    phase.rate,
                    run.objective.rate_factors(self.model),
                ),
                **run.objective.compile_arguments(phase.steps),
                # Without compilation, JAX runs operation by operation.
                jit_compile=run.options.jit_compile or keras.backend.backend() == "jax",
            )

    def without_head(self) -> keras.Model:
        """Return the model from images to pooled features of the queries' backbone."""
        options = self._run.options
        with self._strategy.scope():
            return models.embedding_model(
                self._backbones[0], pooling=options.pooling, levels=options.levels
            )

    def average(self) -> None:
        """Replace the weights by their moving average, if there is one."""
        self.model.optimizer.finalize_variable_values(self.model.trainable_variables)

    def _let_train(self, phase: Phase) -> None:
        for backbone in self._trainability:
            if phase.head_alone:
                backbone.freeze()
            else:
                backbone.restore()

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
            f"embedding_size must be set with {flag}, but got none. Otherwise nothing of the "
            "embedding trains. Add --embedding_size=N, a projection in the head."
        )


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
        return ImageFeed(run, learner.encoders)
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

    options, steps = run.options, run.steps_per_epoch
    saving = EvaluateAndSave(run, phase, learner.encoders, feed, state, workers)

    total = options.epochs * steps
    others = [
        *run.objective.callbacks(
            lambda side: feed.embeddings(side, "fitting the classifier"), run.data.train.labels
        ),
        StopAtNaN(state, steps),
        Progress(options.batch_size, total, options.epochs, state.step),
    ]
    learner.model.fit(
        workers.strategy.distribute_datasets_from_function(batches),
        epochs=phase.last_epoch,
        initial_epoch=state.epoch,
        steps_per_epoch=steps,
        callbacks=[*others, saving],
        shuffle=False,
        verbose=0,
    )
    return saving.state
