"""Compile and train the encoders."""

from __future__ import annotations

import logging
import shutil
import time
from collections.abc import Callable, Mapping
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from experiments.evaluation.embed import TableEmbedder
from experiments.evaluation.measurement import UNTRAINED, Measurement, log_row
from experiments.options import RunOptions, UsageError
from experiments.options import data as described
from experiments.training.callbacks import Progress, StopAtNaN, averaged_weights
from experiments.training.devices import threads
from experiments.training.encoders import (
    Encoders,
    build_backbone,
    build_encoders,
    encoder_of,
    exported,
    training_embedding,
)
from experiments.training.features import FeatureFeed, ImageFeed
from experiments.training.optimizer import backbone_optimizer
from experiments.training.plan import Phase, RunPlan
from experiments.training.refresh import RefreshOfRun
from experiments.training.run_files import CANDIDATE, QUERY, TENSORBOARD
from experiments.training.run_folder import State
from experiments.training.selection import is_over, kept, stopped, waited
from experiments.training.workers import Workers
from keras_dml import models
from keras_dml._backend.cloning import all_layers, freeze
from keras_dml._backend.private import OfSteps
from keras_dml.export.float32 import float32_copy
from pipelines import EvaluationTransform

_LOGGER = logging.getLogger("experiments")


class Trainability:
    """The trainable layers and variables of a backbone, which can be frozen and restored.

    Args:
        backbone: The backbone, before it is frozen.
    """

    def __init__(self, backbone: keras.Model) -> None:
        self._backbone = backbone
        # From the outermost layer to the innermost, because a layer sets its inner layers.
        parts = [*all_layers(backbone), *backbone.variables]
        self._states = [(part, part.trainable) for part in parts]

    def freeze(self) -> None:
        """Freeze the backbone."""
        freeze(self._backbone)

    def restore(self) -> None:
        """Restore the trainable layers and variables."""
        for part, trains in self._states:
            part.trainable = trains


class Training:
    """The training of a run: its models, which share their layers, and its progress.

    Args:
        run: The run.
        workers: All workers. Each calls the methods in the same order.

    Attributes:
        run, workers: As given.
        encoders: Models from images to embeddings, which are evaluated and exported.
        model: The fitted model, on images or on cached features, compiled for the first phase.
        state: The current state.
        feed: The input of the training, from `open_feed`. None to train nothing.

    Raises:
        UsageError: No variable would train.
    """

    def __init__(self, run: RunPlan, workers: Workers) -> None:
        self.run, self.workers = run, workers
        self.state = State()
        self.feed: ImageFeed | FeatureFeed | None = None
        options, objective = run.options, run.objective
        with workers.strategy.scope():
            self._backbones, self.encoders = build_encoders(options)
            queries = self.encoders[QUERY]
            objective.check_dimensions(queries.output_shape[1])
            self._trainability = [Trainability(backbone) for backbone in self._backbones]
            for phase in run.phases:
                self._let_train(phase)
                self._check_that_it_learns(phase)
            # The frozen part, whose features are cached, and the trained part.
            self._halves = models.split_at_features(queries) if options.cache_features else None
            if CANDIDATE in self.encoders:
                candidates = self.encoders[CANDIDATE]
                objective.candidate_encoder = (
                    candidates if options.texts else training_embedding(options, candidates)
                )
            self.model = objective.training_model(
                self._halves[1] if self._halves else training_embedding(options, queries),
                run.data.train.num_classes,
            )
            if options.compatible_start and objective.old_model is not None:
                objective.old_model.start(queries)
        # Compile all phases now: errors come before the run's folder is created.
        for phase in reversed(run.phases):
            self.begin(phase)

    def begin(self, phase: Phase) -> None:
        """Compile the model for a phase, with a new optimizer."""
        options, objective = self.run.options, self.run.objective
        self._let_train(phase)
        with self.workers.strategy.scope():
            factors = objective.rate_factors(self.model)
            self.model.compile(
                backbone_optimizer(options, self._backbones, phase.rate, factors),
                **objective.compile_arguments(phase.steps),
                # Without compilation, JAX runs operation by operation.
                jit_compile=options.jit_compile or keras.backend.backend() == "jax",
            )

    def _let_train(self, phase: Phase) -> None:
        for backbone in self._trainability:
            if phase.head_alone:
                backbone.freeze()
            else:
                backbone.restore()

    def _check_that_it_learns(self, phase: Phase) -> None:
        # A classifier over frozen features is useful if the test classes are the training classes,
        # or before the backbone trains.
        classifier = self.run.objective.has_classifier
        if self.encoders[QUERY].trainable_variables or (
            classifier and (self.run.data.same_classes or phase.head_alone)
        ):
            return
        flag = "head_epochs" if phase.head_alone else "freeze_backbone"
        raise UsageError(
            f"embedding_size must be set with {flag}, but got none. Otherwise nothing of the "
            "embedding trains. Add --embedding_size=N, a projection in the head."
        )

    def restore(self) -> None:
        """Restore the checkpoint of the run's folder into the models.

        Raises:
            ValueError: As `RunFolder.restore_checkpoint`.
        """

        def model_at(state: State) -> keras.Model:
            # A checkpoint at the end of a phase holds the optimizer of that phase.
            self.begin(next(each for each in self.run.phases if state.epoch <= each.last_epoch))
            return self.model

        folder = self.run.folder
        self.state = folder.restore_checkpoint(model_at, self.workers)
        if (sampler := self.run.refreshed_sampler) is not None and self.state.step:
            sampler.restore(folder.restored_tables(sampler.state(), self.workers))
        note_other_threads(self.run.options, folder.threads)

    def open_feed(self) -> None:
        """Open the input of the rest of the training; compute the features that are missing.

        Nothing can be left to train, for example after a kill during the last evaluation.

        Raises:
            UsageError: As `FeatureFeed`.
        """
        run = self.run
        over = self.workers.first_says(is_over(run.folder.history, run.options))
        if over or self.state.epoch >= run.options.epochs:
            return
        if run.objective.old_model is not None:
            run.objective.old_model.embeddings("training", run.data.train)
        if self._halves is None:
            self.feed = ImageFeed(run, self.encoders)
        else:
            self.feed = FeatureFeed(run, *self._halves)

    def untrained_embeddings(self, image_size: int | None = None) -> dict[str, np.ndarray]:
        """Embed all images to evaluate by the backbone and its pooling, without the head.

        Call it on every worker before the first step. It computes in float32, like the evaluation
        of the trained embedding.

        Args:
            image_size: Another size of the images than the run's.
        """
        options, backbone, name, transform = self.run.options, self._backbones[0], "", None
        with self.workers.strategy.scope():
            if image_size is not None:
                backbone, name = build_backbone(options, image_size), f" at {image_size} px"
                transform = described.evaluation_transform(options.at_size(image_size))
            pooled = models.embedding_model(
                backbone, pooling=options.pooling, levels=options.levels
            )
        model = float32_copy(exported(pooled))
        return self.embed({QUERY: model}, f"{UNTRAINED}{name}", transform)

    def embed(
        self, encoders: Encoders, description: str, transform: EvaluationTransform | None = None
    ) -> dict[str, np.ndarray]:
        """Embed all images to evaluate, and take results of the feed if it has them.

        Args:
            encoders: Models in float32. Only the first worker needs their weights.
            description: Start of the descriptions of the progress bars.
            transform: Transform of the images, if it is not the run's.
        """
        run, workers = self.run, self.workers
        known: dict[str, np.ndarray] = {}
        # Several workers embed together, and only the first one has the models.
        if self.feed is not None and not workers.several and transform is None:
            for name, encoder in encoders.items():
                known |= self.feed.embeddings_by(encoder, name)
        embedders = {
            name: TableEmbedder(
                workers.share(encoder),
                transform or run.transform_of(name),
                run.options.eval_batch_size,
            )
            for name, encoder in encoders.items()
        }
        return {
            side: known[side]
            if side in known
            else embedders[encoder_of(side, encoders)](table, f"{description}, {side}")
            for side, table in run.data.tables.items()
            # An encoder of images, such as the untrained backbone, cannot embed texts.
            if side != "training"
            and (run.options.texts is None or encoder_of(side, self.encoders) in encoders)
        }

    def fit(self) -> None:
        """Train to the end, evaluating and saving after each epoch.

        The training ends with the last phase, or when the run's patience is over.
        """
        phases = self.run.phases
        for number, phase in enumerate(phases):
            if self.state.epoch > phase.last_epoch:
                continue
            if self.state.epoch < phase.last_epoch and self.feed is not None:
                self._fit_phase(phase, self.feed)
            # The checkpoint of a finished phase predates weight averaging, so average again.
            self.model.optimizer.finalize_variable_values(self.model.trainable_variables)
            if number + 1 < len(phases):
                self.begin(phases[number + 1])
        why = stopped(self.run.folder.history, self.run.options)
        if why:
            print(f"stopped {why}", flush=True)

    def _fit_phase(self, phase: Phase, feed: ImageFeed | FeatureFeed) -> None:
        run, first = self.run, self.state
        options, steps, refreshed = run.options, run.steps_per_epoch, run.refreshed_sampler
        # Batches of one epoch, so that no batch is prefetched before its nearest classes are known.
        start: int | Callable[[], int] = first.step
        until: int | None = None
        refresh: list[keras.callbacks.Callback] = []
        if refreshed is not None:
            start, until = lambda: self.state.step, steps
            refresh = [RefreshOfRun(run, self.workers, feed, refreshed, first.step)]

        def batches(context: tf.distribute.InputContext) -> tf.data.Dataset:
            batches = run.objective.targets(feed.batches(start, context, until), run.data.train)
            if (old := run.objective.old_model) is None:
                return batches
            return old.beside(batches, run.data.train, run.sampler, start, until, context)

        drawn = self.workers.strategy.distribute_datasets_from_function(batches)

        callbacks = [
            *run.objective.callbacks(
                lambda side: feed.embeddings(side, "fitting the classifier"), run.data.train.labels
            ),
            StopAtNaN(first.step, steps),
            Progress(options.batch_size, options.epochs * steps, options.epochs, first.step),
            *refresh,
            EvaluateAndSave(self, phase, feed),
        ]
        self.model.fit(
            drawn if until is None else OfSteps(drawn, until),
            epochs=phase.last_epoch,
            initial_epoch=first.epoch,
            steps_per_epoch=steps if until is None else None,
            callbacks=callbacks,
            shuffle=False,
            verbose=0,
        )


class EvaluateAndSave(keras.callbacks.Callback):
    """A callback that evaluates, logs, and writes the best model and the checkpoint.

    All files of an epoch are replaced in one step, so a kill repeats at most one epoch. Every
    worker embeds its share of the images. The first worker does the rest.

    Args:
        training: The training, whose state changes after each epoch.
        phase: The phase of the training.
        feed: Computes the embeddings of the images.
    """

    def __init__(self, training: Training, phase: Phase, feed: ImageFeed | FeatureFeed) -> None:
        super().__init__()
        self.training, self.run = training, training.run
        self.phase = phase
        self.feed = feed
        self._began = 0.0
        folder = self.run.folder
        if folder.writes:
            # Rewrite the curves, so that no point appears twice after a kill.
            shutil.rmtree(folder.file(TENSORBOARD), ignore_errors=True)
            self.writer = tf.summary.create_file_writer(str(folder.file(TENSORBOARD)))
            for row in folder.history:
                self._summarize(row)

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Start the timer of the training steps."""
        self._began = time.perf_counter()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Evaluate if it is due, save, and stop the training if its patience is over."""
        training, options, folder = self.training, self.run.options, self.run.folder
        seconds = training.state.seconds + time.perf_counter() - self._began
        training.state = State(epoch + 1, (epoch + 1) * self.run.steps_per_epoch, seconds)
        self.model.average_statistics()
        if (epoch + 1) % options.eval_every == 0 or epoch + 1 == options.epochs:
            with averaged_weights(self.model):
                self._evaluate(logs or {})
        sampler = self.run.refreshed_sampler
        tables = {} if sampler is None else sampler.state()
        folder.save_checkpoint(self.model, training.state, threads(), tables)
        if options.patience and training.workers.first_says(is_over(folder.history, options)):
            self.model.stop_training = True

    def _evaluate(self, logs: Mapping[str, Any]) -> None:
        run, objective, state = self.run, self.run.objective, self.training.state
        # The rate of the last step. The optimizer has the rate of the next step.
        rate = objective.rate_after(self.phase.rate, state.step - self.phase.first_step)
        names = {name: objective.log_names.get(name, name) for name in logs}
        of_training = {
            "seconds": round(state.seconds, 3),
            **{names[name]: float(value) for name, value in logs.items()},
            "learning_rate": rate,
        }
        found = [Measurement(name, value, side="train") for name, value in of_training.items()]
        row = {"epoch": state.epoch, "step": state.step, **log_row(found)}
        embeddings = self._embeddings(f"evaluating epoch {state.epoch}")
        if not run.folder.writes:
            return
        for evaluator in run.evaluators:
            row |= log_row(evaluator.measure(run, self.model, embeddings))
        history = [*run.folder.history, row]
        if run.options.patience:
            row |= log_row([Measurement("evaluations_without_gain", waited(history, run.options))])
        if kept(history, run.options) is row:
            for name, encoder in self.training.encoders.items():
                exported(encoder).save(run.folder.new_best(name))
        run.folder.write_history(history)
        self._summarize(row)

    def _embeddings(self, description: str) -> dict[str, np.ndarray]:
        """Embed the tables that the evaluators need. Each worker embeds its share."""
        data = self.run.data
        wanted = {"test", *(side for each in self.run.evaluators for side in each.sides(data))}
        return {
            side: self.feed.embeddings(
                side, description if side == "test" else f"{description}, {side}"
            )
            for side in data.tables
            if side in wanted
        }

    def _summarize(self, row: Mapping[str, float]) -> None:
        with self.writer.as_default(step=row["step"]):
            for name, value in row.items():
                if name not in ("epoch", "step"):
                    tf.summary.scalar(name, value)
            self.writer.flush()


def note_other_threads(options: RunOptions, before: int | None) -> None:
    """Warn if a deterministic run resumes with another number of threads.

    Args:
        options: The options of the run.
        before: Number of threads that computed the checkpoint. None without a checkpoint.
    """
    now = threads()
    if options.deterministic and before not in (None, now):
        _LOGGER.warning(
            "deterministic needs one number of threads: the run began with %d and resumes with %d, "
            "so its numbers can differ in the last bits",
            before,
            now,
        )
